"""From the sampling parameters of many rows to one token each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

import torch
from torch import Tensor

from orchestra.kernels import sampling
from orchestra.kernels.sampling import (
    greedy,
    log_probabilities,
    rank_tokens,
    sample,
)
from orchestra.localengine.request import SamplingParams
from orchestra.localengine.step import DrawExtras, TokenScore

__all__ = ["draw", "draw_and_score", "filters", "process", "score", "signed64", "token_scores"]

_NEVER = float("-inf")


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def draw_and_score(
    logits: Tensor,
    params: Sequence[SamplingParams],
    noise_keys: Sequence[int],
    positions: Sequence[int],
    extras: Sequence[DrawExtras | None],
) -> list[tuple[int, TokenScore | None]]:
    """One token id for each row of ``logits`` [rows, vocab], with its score where ``logprobs`` are asked for.

    The arguments are those of `draw`; ``logits`` may be written to. A row's result depends on no other row, and
    only rows with something extra cost something extra.
    """
    raw = [i for i, p in enumerate(params) if p.logprobs is not None and p.logprobs_mode == "raw"]
    processed = [i for i, p in enumerate(params) if p.logprobs is not None and p.logprobs_mode == "processed"]
    likelihood = torch.log_softmax(logits[raw], dim=-1) if raw else None  # before anything changes them
    process(logits, params, extras)
    tokens = draw(logits, params, noise_keys, positions)
    scores: dict[int, TokenScore] = {}
    if likelihood is not None:
        scores |= _scores(likelihood, raw, tokens, params)
    if processed:
        chosen = [params[i] for i in processed]
        drawn_by = log_probabilities(logits[processed], **filters(chosen, logits.shape[1]))
        scores |= _scores(drawn_by, processed, tokens, params)
    return [(token, scores.get(i)) for i, token in enumerate(tokens)]


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
            seeds=torch.tensor([signed64(noise_keys[i]) for i in random]),
            positions=torch.tensor([positions[i] for i in random]),
            **filters([params[i] for i in random], logits.shape[1]),
        )
    )
    if len(random) == len(params):
        return tokens
    drawn = dict(zip(random, tokens, strict=True))
    rest = [i for i in range(len(params)) if i not in drawn]
    drawn.update(zip(rest, _ids(greedy(logits[rest])), strict=True))
    return [drawn[i] for i in range(len(params))]


def score(logits: Tensor, targets: Sequence[int], tops: Sequence[int]) -> list[TokenScore]:
    """The raw score of ``targets[i]`` by row ``i`` of ``logits`` [rows, vocab], with the ``tops[i]`` likeliest."""
    return _ranked(torch.log_softmax(logits, dim=-1), targets, tops)


def process(
    logits: Tensor,
    params: Sequence[SamplingParams],
    extras: Sequence[DrawExtras | None],
    kernels: ModuleType = sampling,
    here: Callable[[Tensor], Tensor] = _as_it_is,
) -> None:
    """Bias, penalties and prohibitions, in place; rows without any are left alone.

    A banned token is one whose bias is minus infinity, which no penalty brings back. ``kernels`` has the
    functions of `orchestra.kernels.sampling` for the device of ``logits``, and ``here`` brings tensors to it.
    """
    nothing = DrawExtras()
    told = [extra or nothing for extra in extras]
    biases = [
        (i, token, value)
        for i, (p, extra) in enumerate(zip(params, told, strict=True))
        if p.logit_bias or extra.banned
        for token, value in (*p.logit_bias.items(), *((banned, _NEVER) for banned in extra.banned))
    ]
    if biases:
        places, tokens, values = zip(*biases, strict=True)
        rows = sorted(set(places))
        within = {row: place for place, row in enumerate(rows)}
        entries = torch.tensor([within[row] for row in places]), torch.tensor(tokens), _floats(values)
        held = here(torch.tensor(rows))
        logits[held] = kernels.add_bias(logits[held], *map(here, entries))
    penalized = [i for i, p in enumerate(params) if p.penalizes and told[i].history]
    if penalized:
        histories = [torch.tensor(told[i].history) for i in penalized]
        tokens_said = torch.nn.utils.rnn.pad_sequence(histories, batch_first=True, padding_value=-1)
        starts = torch.tensor([told[i].num_prompt for i in penalized])[:, None]
        place = torch.arange(tokens_said.shape[1])
        held = here(torch.tensor(penalized))
        logits[held] = kernels.penalize(
            logits[held],
            here(tokens_said),
            here((place >= starts) & (tokens_said >= 0)),
            repetition=here(_floats([params[i].repetition_penalty for i in penalized])),
            frequency=here(_floats([params[i].frequency_penalty for i in penalized])),
            presence=here(_floats([params[i].presence_penalty for i in penalized])),
        )
    masks = [(i, extra.allowed()) for i, extra in enumerate(told) if extra.allowed is not None]
    if masks:
        held = here(torch.tensor([i for i, _ in masks]))
        words = torch.stack([torch.frombuffer(bytearray(mask), dtype=torch.int32) for _, mask in masks])
        logits[held] = kernels.forbid(logits[held], here(words))


def filters(params: Sequence[SamplingParams], vocab: int) -> dict[str, Tensor]:
    """Temperature and filters as the kernels take them; greedy rows have none."""
    told = {
        # below this, every token but the likeliest has no chance that float32 could hold
        "temperature": _floats([1.0 if p.greedy else max(p.temperature, 1e-30) for p in params]),
        # int64 holds no more
        "top_k": torch.tensor([0 if p.greedy else min(p.top_k, vocab) for p in params]),
        "top_p": _floats([1.0 if p.greedy else p.top_p for p in params]),
    }
    if any(p.min_p for p in params):
        told["min_p"] = _floats([0.0 if p.greedy else p.min_p for p in params])
    return told


def _scores(
    likelihood: Tensor, rows: Sequence[int], tokens: Sequence[int], params: Sequence[SamplingParams]
) -> dict[int, TokenScore]:
    """The scores of the tokens of ``rows``; ``likelihood`` [len(rows), vocab] is theirs."""
    ranked = _ranked(likelihood, [tokens[i] for i in rows], [params[i].logprobs or 0 for i in rows])
    return dict(zip(rows, ranked, strict=True))


def _ranked(likelihood: Tensor, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenScore]:
    chosen = torch.tensor(tokens, dtype=torch.int64)
    return token_scores(tokens, tops, *rank_tokens(likelihood, chosen, max(tops, default=0)))


def token_scores(
    tokens: Sequence[int],
    tops: Sequence[int],
    value: Tensor,
    rank: Tensor,
    top_values: Tensor,
    top_tokens: Tensor,
) -> list[TokenScore]:
    """What `rank_tokens` says of ``tokens``, each with as many of the likeliest as ``tops`` asks for."""
    return [
        TokenScore(token, logprob, place, tuple(zip(ids[:top], values[:top], strict=True)))
        for token, logprob, place, ids, values, top in zip(
            tokens,
            value.tolist(),
            rank.tolist(),
            top_tokens.tolist(),
            top_values.tolist(),
            tops,
            strict=True,
        )
    ]


def _floats(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def _ids(tokens: Tensor) -> list[int]:
    return [int(token) for token in tokens.tolist()]


def signed64(key: int) -> int:
    """The 64 bits of ``key`` that count, as a signed number."""
    key &= (1 << 64) - 1
    return key - (1 << 64) if key >> 63 else key
