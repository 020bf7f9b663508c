"""The step on a CPU: lay the rows out flat, run the model, draw the tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import numpy
import torch
from torch import Tensor

from orchestra.localengine.execution.lanes import Lanes
from orchestra.localengine.execution.row_rules import check_blocks, check_row, wanted_of
from orchestra.localengine.execution.sampler import draw_and_score, score
from orchestra.localengine.models.batch import Batch
from orchestra.localengine.models.operations import cpu_operations
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.models.transformer import Transformer
from orchestra.localengine.precision import Precision
from orchestra.localengine.step import RowInput, RowOutput, TokenScore

__all__ = ["Runner"]

_FLOAT32_BYTES = 4


class Runner:
    """Runs steps of one model on a CPU, and owns its weights and its paged KV pool, which is float32.

    ``weights`` are taken over (see :class:`Transformer`). The pool is ``num_blocks`` blocks of ``block_size``
    tokens; memory is committed as blocks are first written. ``threads`` sets torch's intra-op threads, which are
    process-wide; None leaves them as they are. Steps of many rows are divided among that many `Lanes`.
    ``precision`` and ``strict`` are those of
    :class:`~orchestra.localengine.config.EngineConfig`.

    Implements :class:`~orchestra.localengine.step.StepRunner`. Not thread-safe: one thread at a time.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: dict[str, Tensor],
        *,
        num_blocks: int,
        block_size: int,
        threads: int | None = None,
        precision: Precision = "float32",
        strict: bool = False,
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks and block_size must be at least 1, not {num_blocks} and {block_size}")
        if threads is not None:
            torch.set_num_threads(threads)
        self.spec = spec
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._strict = strict
        self._lanes = Lanes(torch.get_num_threads())
        self._model: Transformer | None = Transformer(spec, weights, cpu_operations(precision, strict=strict))
        shape = (spec.num_layers, num_blocks, spec.num_kv_heads, block_size, 2 * spec.head_dim)
        # numpy's zeros, unlike torch's, leave untouched pages to the operating system
        self._pools = torch.from_numpy(numpy.zeros(shape, numpy.float32))

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def kv_bytes_per_block(self) -> int:
        """Bytes of one block over all layers."""
        return self.spec.kv_values_per_token * self._block_size * _FLOAT32_BYTES

    def run(self, rows: Sequence[RowInput], abandon: Callable[[], bool] | None = None) -> list[RowOutput]:
        """Compute one step; one output for each row with ``sampling`` or ``targets``, in the order of ``rows``.

        Raises ValueError where a row breaks the rules of :class:`RowInput`, before anything is written.
        ``abandon`` is asked between layers; where it says yes, StepAbandoned is raised.
        """
        wanted = [wanted_of(row) for row in rows]
        sampled = [(row, row.sampling) for row in rows if row.sampling is not None]
        with torch.inference_mode():
            logits = self._forward(rows, wanted, abandon)
            # what is asked of the prompt first: drawing may write to the logits
            asked = [(row, part) for row, part in zip(rows, logits, strict=True) if row.targets]
            scores = {
                row.request_id: score(part[: len(row.targets)], row.targets, [row.num_top] * len(row.targets))
                for row, part in asked
            }
            drawn: dict[int, tuple[int, TokenScore | None]] = {}
            if sampled:
                last = torch.cat(
                    [part[-1:] for row, part in zip(rows, logits, strict=True) if row.sampling is not None]
                )
                tokens = draw_and_score(
                    last,
                    [params for _, params in sampled],
                    [row.noise_key for row, _ in sampled],
                    [row.start + len(row.token_ids) for row, _ in sampled],
                    [row.extras for row, _ in sampled],
                )
                drawn = {row.request_id: token for (row, _), token in zip(sampled, tokens, strict=True)}
        outputs = []
        for row in rows:
            if row.sampling is not None or row.targets:
                token_id, told = drawn.get(row.request_id, (None, None))
                targets = tuple(scores.get(row.request_id, ()))
                outputs.append(RowOutput(row.request_id, row.epoch, token_id, told, targets))
        return outputs

    def logits(self, rows: Sequence[RowInput]) -> list[Tensor]:
        """Compute one step and return the logits of every token of each row: float32 [len(token_ids), vocab].

        Keys and values are written as by :meth:`run`, and the same errors are raised.
        """
        with torch.inference_mode():
            return self._forward(rows, [range(len(row.token_ids)) for row in rows])

    def close(self) -> None:
        """Release weights and pool. Closing twice is harmless."""
        self._lanes.close()
        self._model = None
        self._pools = torch.empty(0)

    def _forward(
        self, rows: Sequence[RowInput], wanted: Sequence[range], abandon: Callable[[], bool] | None = None
    ) -> list[Tensor]:
        """Logits [len(wanted[i]), vocab] of each row."""
        model = self._model
        if model is None:
            raise RuntimeError("the runner is closed")
        if not rows:
            return []
        for row in rows:
            check_row(row, self.spec, self._block_size)
            check_blocks(row, row.block_table, self._num_blocks)
        shares = self._lanes.divide([len(row.token_ids) for row in rows])
        if len(shares) == 1 or self._strict:  # strictly, a product has the same bits by the same threads only
            return self._together(model, rows, wanted, abandon)

        def share_of(places: Sequence[int]) -> list[Tensor]:
            with torch.inference_mode():  # a matter of each thread
                return self._together(model, [rows[i] for i in places], [wanted[i] for i in places], abandon)

        computed = self._lanes.run(share_of, shares)
        by_row = dict(zip(chain(*shares), chain(*computed), strict=True))
        return [by_row[i] for i in range(len(rows))]

    def _together(
        self,
        model: Transformer,
        rows: Sequence[RowInput],
        wanted: Sequence[range],
        abandon: Callable[[], bool] | None,
    ) -> list[Tensor]:
        """Logits [len(wanted[i]), vocab] of each row, computed as one batch."""
        # rows of one token first, and by length, so that attention pads little
        order = sorted(range(len(rows)), key=lambda i: (len(rows[i].token_ids) > 1, rows[i].start))
        computed, asked = [rows[i] for i in order], [wanted[i] for i in order]
        if self._strict:
            computed, asked = _apart(computed, asked)
        batch = Batch.of(computed, asked, self._pools[0], self.spec.num_heads, model.windows, strict=self._strict)
        logits = model.forward(batch, self._pools, abandon)
        by_row = dict(zip(order, torch.split(logits, [len(wanted[i]) for i in order]), strict=True))
        return [by_row[i] for i in range(len(rows))]


def _apart(rows: Sequence[RowInput], wanted: Sequence[range]) -> tuple[list[RowInput], list[range]]:
    """Each token as a row of its own.

    Such a row is computed alike in any company, so that it does not matter either how its prompt was divided.
    """
    singles, asked = [], []
    for row, offsets in zip(rows, wanted, strict=True):
        for offset, token in enumerate(row.token_ids):
            singles.append(replace(row, token_ids=(token,), start=row.start + offset))
            asked.append(range(int(offset in offsets)))
    return singles, asked
