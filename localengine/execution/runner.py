"""The step on a CPU: lay the rows out flat, run the model, draw the tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy
import torch
from torch import Tensor

from orchestra.localengine.execution.sampler import draw_and_score, score
from orchestra.localengine.models.batch import Batch
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
    process-wide; None leaves them as they are. ``precision`` and ``strict`` are those of
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
        self._model: Transformer | None = Transformer(spec, weights, precision, strict=strict)
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
        wanted = [_wanted(row) for row in rows]
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
        self._model = None
        self._pools = torch.empty(0)

    def _forward(
        self, rows: Sequence[RowInput], wanted: Sequence[range], abandon: Callable[[], bool] | None = None
    ) -> list[Tensor]:
        """Logits [len(wanted[i]), vocab] of each row."""
        if self._model is None:
            raise RuntimeError("the runner is closed")
        if not rows:
            return []
        for row in rows:
            self._check(row)
        # rows of one token first, and by length, so that attention pads little
        order = sorted(range(len(rows)), key=lambda i: (len(rows[i].token_ids) > 1, rows[i].start))
        computed, asked = [rows[i] for i in order], [wanted[i] for i in order]
        if self._strict:
            computed, asked = _apart(computed, asked)
        batch = Batch.of(
            computed, asked, self._pools[0], self.spec.num_heads, self._model.windows, strict=self._strict
        )
        logits = self._model.forward(batch, self._pools, abandon)
        by_row = dict(zip(order, torch.split(logits, [len(wanted[i]) for i in order]), strict=True))
        return [by_row[i] for i in range(len(rows))]

    def _check(self, row: RowInput) -> None:
        stop = row.start + len(row.token_ids)
        if not row.token_ids or row.start < 0:
            raise ValueError(f"request {row.request_id}: a row needs at least one token and a start of 0 or more")
        if stop > self.spec.max_position:
            raise ValueError(
                f"request {row.request_id}: position {stop - 1} is beyond the context of {self.spec.max_position}"
            )
        if stop > len(row.block_table) * self._block_size:
            raise ValueError(
                f"request {row.request_id}: {stop} tokens do not fit the {len(row.block_table)} blocks given"
            )
        if min(row.block_table) < 0 or max(row.block_table) >= self._num_blocks:
            raise ValueError(f"request {row.request_id}: a block outside 0..{self._num_blocks - 1} in its table")
        if min(row.token_ids) < 0 or max(row.token_ids) >= self.spec.vocab_size:
            raise ValueError(f"request {row.request_id}: a token outside the vocabulary of {self.spec.vocab_size}")


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


def _wanted(row: RowInput) -> range:
    """The tokens of the row whose logits are needed, as offsets into its ``token_ids``."""
    end = len(row.token_ids)
    if row.targets:
        return range(end if row.sampling is not None else len(row.targets))
    return range(end - 1, end) if row.sampling is not None else range(0)
