"""From the sampling parameters of many rows to one token each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from orchestra.kernels.sampling import greedy, sample
from orchestra.localengine.request import SamplingParams

__all__ = ["draw"]


def draw(
    logits: Tensor, params: Sequence[SamplingParams], noise_keys: Sequence[int], positions: Sequence[int]
) -> list[int]:
    """One token id for each row of ``logits`` [rows, vocab].

    ``noise_keys`` may be any integers (64 bits of them count); ``positions`` are those of the tokens drawn. A
    row's token depends on its own logits, parameters, key and position, never on the other rows.
    """
    random = [i for i, p in enumerate(params) if not p.greedy]
    if not random:
        return _ids(greedy(logits))
    tokens = _ids(
        sample(
            logits[random],
            # below this, every token but the likeliest has no chance that float32 could hold
            temperature=torch.tensor([max(params[i].temperature, 1e-30) for i in random]),
            top_k=torch.tensor([min(params[i].top_k, logits.shape[1]) for i in random]),  # int64 holds no more
            top_p=torch.tensor([params[i].top_p for i in random], dtype=torch.float32),
            seeds=torch.tensor([_signed64(noise_keys[i]) for i in random]),
            positions=torch.tensor([positions[i] for i in random]),
        )
    )
    if len(random) == len(params):
        return tokens
    drawn = dict(zip(random, tokens, strict=True))
    rest = [i for i in range(len(params)) if i not in drawn]
    drawn.update(zip(rest, _ids(greedy(logits[rest])), strict=True))
    return [drawn[i] for i in range(len(params))]


def _ids(tokens: Tensor) -> list[int]:
    return [int(token) for token in tokens.tolist()]


def _signed64(key: int) -> int:
    key &= (1 << 64) - 1
    return key - (1 << 64) if key >> 63 else key
