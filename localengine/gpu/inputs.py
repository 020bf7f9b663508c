"""The rows of a step as arrays on the host: what of them goes to the device, and what plans are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy
from numpy.typing import NDArray

from orchestra.localengine.step import PENDING, RowInput

__all__ = ["StepInputs"]

_Longs = NDArray[numpy.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """All tokens of a step end to end: ``num_decode`` rows of one token first, then runs.

    ``order`` is where each of the rows, as they are laid out, was among those given; ``rows`` and ``tables``, the
    places of their blocks, are in that order. ``token_ids``, ``positions``: int64 [tokens]. A token id below 0 is
    yet unknown on the host: ``-1 - i`` stands for the ``i``-th that the step before drew. ``slots``: int64
    [tokens, kv_heads], where keys and values go, as rows of a layer's pool flattened to slots.
    ``wanted``: int64, the tokens whose logits are asked for.
    """

    order: Sequence[int]
    rows: Sequence[RowInput]
    tables: Sequence[NDArray[numpy.int32]]
    num_decode: int
    token_ids: _Longs
    positions: _Longs
    slots: _Longs
    wanted: _Longs

    @classmethod
    def of(
        cls,
        rows: Sequence[RowInput],
        wanted: Sequence[range],
        tables: Sequence[NDArray[numpy.int32]],
        *,
        kv_heads: int,
        block_size: int,
        drawn: Mapping[int, int],
    ) -> StepInputs:
        """Lay out ``rows``, at least one; ``wanted`` and ``tables`` are theirs.

        ``drawn``: which of the tokens that the step before drew is each request's. Raises ValueError where a row
        waits for one and has none.
        """
        order = sorted(range(len(rows)), key=lambda i: len(rows[i].token_ids) > 1)
        rows, tables = [rows[i] for i in order], [tables[i] for i in order]
        counts = [len(row.token_ids) for row in rows]
        firsts = list(accumulate(counts, initial=0))  # each row's first token in the step
        ids = (row.token_ids if PENDING not in row.token_ids else _known(row, drawn) for row in rows)
        token_ids = numpy.fromiter(chain.from_iterable(ids), numpy.int64, firsts[-1])
        starts = numpy.array([row.start for row in rows], numpy.int64)
        behind = starts - numpy.array(firsts[:-1], numpy.int64)  # of a token's place in the step
        positions = numpy.arange(firsts[-1], dtype=numpy.int64) + behind.repeat(counts)
        # all tables end to end, and where in that each row's begins
        begins = numpy.array(list(accumulate(map(len, tables), initial=0))[:-1])
        blocks = numpy.concatenate(tables)[begins.repeat(counts) + positions // block_size]
        sections = blocks[:, None].astype(numpy.int64) * kv_heads + numpy.arange(kv_heads)
        asked = [first + offset for first, i in zip(firsts, order, strict=False) for offset in wanted[i]]
        return cls(
            order=order,
            rows=rows,
            tables=tables,
            num_decode=counts.count(1),
            token_ids=token_ids,
            positions=positions,
            slots=sections * block_size + positions[:, None] % block_size,
            wanted=numpy.array(asked, numpy.int64),
        )

    @property
    def lengths(self) -> list[int]:
        """How many positions each row has, those of this step included."""
        return [row.start + len(row.token_ids) for row in self.rows]


def _known(row: RowInput, drawn: Mapping[int, int]) -> Sequence[int]:
    if row.request_id not in drawn or len(row.token_ids) > 1:
        raise ValueError(f"request {row.request_id}: it waits for a token that the step before has not drawn")
    return (-1 - drawn[row.request_id],)
