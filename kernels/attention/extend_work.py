"""The work of an extend step as a flat list, made on the host: which program attends to what for which queries.

Runs are cut into tiles of queries, a program's worth each. Where that is too little work for the device, or one
tile has much more than its share, as few queries after a long context do, the context is divided too (FlashInfer,
arXiv 2501.01005): each part leaves a partial result in a slot of its own, and they are merged in their order.

Plain numpy: lengths and block tables are on the host anyway, and nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from orchestra.kernels.attention.block_table import BlockTable

__all__ = ["ITEM", "MERGE", "ExtendWork", "extend_work"]

ITEM = ("token", "size", "position", "table", "first", "begin", "end", "slot")
MERGE = ("token", "size", "slot", "count")
LEAST_PART = 256  # keys; of fewer, the partial results would be as large as what was read
_WHOLE = 1 << 40  # more keys than any context has

_Ints = NDArray[numpy.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendWork:
    """What there is to do, all int32.

    ``items`` [n, 8], longest first, so that the last programs to run are short ones. Each is of ``size`` queries
    of one run, from the ``token``-th of all. The first of them is at ``position`` of its sequence, and sees
    positions from ``first``. They attend to positions from ``begin``, a multiple of the tile of keys, to ``end``,
    which is one too or follows the last query. The block of position p is ``tables[table + p // block_size]``. The
    result is final where ``slot`` is -1; else it is partial and goes there.
    ``merges`` [m, 4]: the results of ``size`` queries from ``token`` are in the ``count`` slots from ``slot``.
    ``tables`` [blocks]: the parts of the block tables that may be read, end to end.
    """

    items: NDArray[numpy.int32]
    merges: NDArray[numpy.int32]
    tables: NDArray[numpy.int32]

    @property
    def slots(self) -> int:
        """How many slots there must be for partial results."""
        return int(self.merges[:, 3].sum())

    def flat(self) -> NDArray[numpy.int32]:
        """One array of it all: items, merges, tables. Each begins at a multiple of 16 bytes."""
        return numpy.concatenate([self.items.ravel(), self.merges.ravel(), self.tables])


def extend_work(
    block_tables: Sequence[BlockTable],
    starts: Sequence[int],
    counts: Sequence[int],
    *,
    block_size: int,
    window: int | None,
    queries: int,
    tile: int,
    programs: int,
) -> ExtendWork:
    """Cut runs of ``counts[i]`` queries from position ``starts[i]`` into tiles of ``queries``, and their contexts.

    ``tile`` is that of keys, a power of two. ``programs`` of one KV head run side by side. A part of a context is
    no longer than what each of them would do in perfect balance, rounded up to a power of two; all contexts are
    cut at multiples of it. Where none is twice as long they stay whole: merging takes a launch more.

    Raises ValueError where a block table does not cover its run.
    """
    start, count = numpy.array(starts, numpy.int64), numpy.array(counts, numpy.int64)
    table, tables = _tables(block_tables, -(-(start + count) // block_size))

    run, nth = _numbered(-(-count // queries))  # of each tile of queries
    size = numpy.minimum(queries, count[run] - nth * queries)
    position = start[run] + nth * queries
    token = _firsts(count)[run] + nth * queries
    end = position + size
    first = numpy.zeros_like(end) if window is None else numpy.maximum(position - window + 1, 0)

    share = int((end - first).sum()) // max(programs, 1)
    part = max(LEAST_PART, tile, 1 << max(share - 1, 0).bit_length())
    if int((end - first).max(initial=0)) < 2 * part:
        part = _WHOLE
    parts = -(-end // part) - first // part  # of each tile's context
    divided = parts > 1
    slot = numpy.where(divided, _firsts(numpy.where(divided, parts, 0)), -1)

    of, nth = _numbered(parts)  # the tile of each item, and which part of its context
    cut = (first[of] // part + nth) * part
    begin = numpy.maximum(cut, first[of] // tile * tile)
    stop = numpy.minimum(cut + part, end[of])
    own_slot = numpy.where(divided[of], slot[of] + nth, -1)
    columns = (token[of], size[of], position[of], table[run[of]], first[of], begin, stop, own_slot)
    items = numpy.stack(columns, axis=1)[numpy.argsort(begin - stop, kind="stable")]
    merges = numpy.stack([token, size, slot, parts], axis=1)[divided]
    return ExtendWork(items=items.astype(numpy.int32), merges=merges.astype(numpy.int32), tables=tables)


def _tables(block_tables: Sequence[BlockTable], blocks: _Ints) -> tuple[_Ints, NDArray[numpy.int32]]:
    """The first ``blocks[i]`` entries of each table, end to end, and where each begins in that."""
    parts: list[NDArray[Any]] = []
    for table, needed in zip(block_tables, blocks.tolist(), strict=True):
        if len(table) < needed:
            raise ValueError(f"a run's positions are in {needed} blocks, and its block table has {len(table)}")
        parts.append(numpy.asarray(table[:needed], numpy.int32))
    return _firsts(blocks), numpy.concatenate([*parts, numpy.empty(0, numpy.int32)])


def _firsts(counts: _Ints) -> _Ints:
    """Where each of so many pieces begin, end to end."""
    return counts.cumsum() - counts


def _numbered(counts: _Ints) -> tuple[_Ints, _Ints]:
    """For ``counts[i]`` pieces of each i, end to end: whose each is, and its number among them."""
    of = numpy.arange(len(counts)).repeat(counts)
    return of, numpy.arange(len(of)) - _firsts(counts)[of]
