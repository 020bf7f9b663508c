"""Draws and scores on a device: all is launched first, and read when it has come back to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from orchestra.localengine.execution.sampler import filters, process, signed64, token_scores
from orchestra.localengine.gpu.device import Device
from orchestra.localengine.gpu.staging import bring_back, send, upload
from orchestra.localengine.request import SamplingParams
from orchestra.localengine.step import RowInput, TokenScore

__all__ = ["DeviceSampler", "Drawn", "Scored"]

_AT_ONCE = 64  # rows that are ranked together: their scratch takes some forty bytes a token of the vocabulary


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of some tokens, ``places`` among all that were drawn, on their way to the host."""

    places: Sequence[int]
    tops: Sequence[int]
    parts: Sequence[Tensor]  # what `rank_tokens` returns

    def read(self, tokens: Sequence[int]) -> list[TokenScore]:
        """The scores of ``tokens``, once they have arrived."""
        value, rank, top_values, top_tokens = self.parts
        return token_scores(tokens, self.tops, value, rank, top_values, top_tokens)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens of some rows, on their way to the host, and the scores that were asked for."""

    on_device: Tensor  # int64 [rows]
    tokens: Tensor  # the same on the host
    scores: Sequence[Scored]

    def read(self) -> list[tuple[int, TokenScore | None]]:
        """A token for each row, with its score where one was asked for, once they have arrived."""
        tokens = [int(token) for token in self.tokens.tolist()]
        told: dict[int, TokenScore] = {}
        for scored in self.scores:
            told.update(zip(scored.places, scored.read([tokens[i] for i in scored.places]), strict=True))
        return [(token, told.get(i)) for i, token in enumerate(tokens)]


class DeviceSampler:
    """Draws and scores from logits on ``device``, by ``kernels``: the functions of `orchestra.kernels.sampling`.

    A row's result depends on no other row, as on a CPU. Nothing here waits for the device.
    """

    def __init__(self, device: Device, kernels: ModuleType) -> None:
        self._device = device
        self._kernels = kernels

    def draw(self, logits: Tensor, rows: Sequence[RowInput]) -> Drawn:
        """Draw a token for each of ``rows``, all with ``sampling``, from ``logits`` [rows, vocab].

        ``logits`` may be written to.
        """
        params = [row.sampling for row in rows if row.sampling is not None]
        modes = [p.logprobs_mode if p.logprobs is not None else None for p in params]
        raw, processed = ([i for i, own in enumerate(modes) if own == mode] for mode in ("raw", "processed"))
        untouched = self._rows(logits, raw) if raw else None  # before anything changes them
        process(logits, params, [row.extras for row in rows], self._kernels, self._upload)
        tokens = self._tokens(logits, rows, params)
        scores = []
        if untouched is not None:
            scores.append(self._scored(untouched, raw, tokens, params))
        if processed:
            chosen = [params[i] for i in processed]
            kept_by = {name: self._upload(own) for name, own in filters(chosen, logits.shape[1]).items()}
            likelihood = self._kernels.log_probabilities(self._rows(logits, processed), **kept_by)
            scores.append(self._scored(likelihood, processed, tokens, params, normalized=True))
        (host,) = bring_back(self._device, [tokens])
        return Drawn(tokens, host, scores)

    def score(self, logits: Tensor, targets: Sequence[int], top: int) -> Scored:
        """The raw score of ``targets[i]`` by row ``i`` of ``logits`` [rows, vocab], with the ``top`` likeliest."""
        chosen = self._upload(torch.tensor(targets, dtype=torch.int64))
        ranked = self._ranked(logits, chosen, top, normalized=False)
        return Scored(range(len(targets)), [top] * len(targets), bring_back(self._device, ranked))

    def _tokens(self, logits: Tensor, rows: Sequence[RowInput], params: Sequence[SamplingParams]) -> Tensor:
        if all(p.greedy for p in params):
            tokens: Tensor = self._kernels.greedy(logits)
            return tokens
        told = {name: own.numpy() for name, own in filters(params, logits.shape[1]).items()}
        # 0 is greedy on a device, so that mixed rows need no copy
        told["temperature"] = numpy.where([p.greedy for p in params], numpy.float32(0), told["temperature"])
        filtered = (told["top_k"] > 0).any() or (told["top_p"] < 1).any() or "min_p" in told
        # what keeps all stays on the host: then it is seen there, and nothing is launched for it
        here: dict[str, Any] = {} if filtered else {n: torch.from_numpy(told.pop(n)) for n in ("top_k", "top_p")}
        arrays: dict[str, NDArray[Any]] = {
            **told,
            "seeds": numpy.array([signed64(row.noise_key) for row in rows], numpy.int64),
            "positions": numpy.array([row.start + len(row.token_ids) for row in rows], numpy.int64),
        }
        drawn: Tensor = self._kernels.sample(logits, **here, **send(self._device, arrays))
        return drawn

    def _scored(
        self,
        values: Tensor,
        places: Sequence[int],
        tokens: Tensor,
        params: Sequence[SamplingParams],
        *,
        normalized: bool = False,
    ) -> Scored:
        """Of the tokens at ``places``, whose logits or log-probabilities are ``values`` [len(places), vocab]."""
        tops = [params[i].logprobs or 0 for i in places]
        ranked = self._ranked(values, self._rows(tokens, places), max(tops), normalized=normalized)
        return Scored(places, tops, bring_back(self._device, ranked))

    def _ranked(self, values: Tensor, chosen: Tensor, top: int, *, normalized: bool) -> list[Tensor]:
        parts = []
        for own, tokens in zip(torch.split(values, _AT_ONCE), torch.split(chosen, _AT_ONCE), strict=True):
            likelihood = own if normalized else torch.log_softmax(own, dim=-1)
            parts.append(self._kernels.rank_tokens(likelihood, tokens, top))
        return [torch.cat(column) for column in zip(*parts, strict=True)]

    def _rows(self, tensor: Tensor, places: Sequence[int]) -> Tensor:
        return tensor.index_select(0, self._upload(torch.tensor(places)))

    def _upload(self, tensor: Tensor) -> Tensor:
        return upload(self._device, tensor)
