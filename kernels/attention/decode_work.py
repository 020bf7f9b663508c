"""The work of a decode step as a flat list, made on the host: which program attends to which part of which row.

A row alone would keep few programs busy, as many as there are KV heads, and a long one among short ones would run
by itself in the end. So rows are cut into chunks, an item of the list each, such that all together fill the device
(FlashInfer, arXiv 2501.01005). A row in one chunk is done with its item. One in several leaves partial results, a
slot each, that are merged in the order of its chunks (Flash-Decoding, Dao et al., 2023).

Plain numpy: lengths and block tables are on the host anyway, and nothing waits for the device.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from orchestra.kernels.attention.block_table import BlockTable

__all__ = ["ITEM", "MERGE", "DecodeWork", "decode_work", "split_size"]

ITEM = ("row", "table", "start", "end", "slot")
MERGE = ("row", "slot", "count")
_LEAST_SPLIT = 128  # positions: below, writing and merging partial results costs more than the width gains

_Ints = NDArray[numpy.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeWork:
    """What there is to do, all int32.

    ``items`` [n, 5], longest first, so that the last programs to run are short ones: attend from position
    ``start`` of ``row`` to ``end``. The block of position p is ``tables[table + p // block_size]``. The result is
    final where ``slot`` is -1; else it is partial and goes there.
    ``merges`` [m, 3]: the result of ``row`` is in the ``count`` slots from ``slot``.
    ``tables`` [blocks]: the parts of the block tables that are read, end to end.
    """

    items: _Ints
    merges: _Ints
    tables: _Ints

    @property
    def slots(self) -> int:
        """How many slots there must be for partial results."""
        return int(self.merges[:, 2].sum())

    def flat(self, items: int, merges: int) -> _Ints:
        """One array of it all, with room for so many ``items`` and ``merges``, and then the tables.

        What is not filled is zero: items from 0 to 0 and merges of nothing, with which a program is done at once.
        """
        flat = numpy.zeros(items * len(ITEM) + merges * len(MERGE) + len(self.tables), numpy.int32)
        flat[: self.items.size] = self.items.ravel()
        rest = flat[items * len(ITEM) :]
        rest[: self.merges.size] = self.merges.ravel()
        rest[merges * len(MERGE) :] = self.tables
        return flat


def split_size(seen: NDArray[numpy.int64], programs: int, tile: int) -> int:
    """Positions in a chunk, a multiple of ``tile``, for rows that see so many of them.

    It is the smallest, from 128, that cuts all rows into at most ``programs`` chunks, which is as many as run at
    once; rows stay whole where there are more of them than that. But it is at most twice what each program would
    have to do in perfect balance, so that one long row among many short ones does not run on when they have ended.
    """
    least = -(-_LEAST_SPLIT // tile)
    longest = -(-int(seen.max()) // tile)

    def fits(tiles: int) -> bool:
        return int((-(-seen // (tiles * tile))).sum()) <= programs

    narrowest = least + bisect_left(range(least, longest), True, key=fits)
    share = -(-2 * int(seen.sum()) // (programs * tile))
    return min(narrowest, max(share, least)) * tile


def decode_work(
    block_tables: Sequence[BlockTable],
    lengths: Sequence[int],
    *,
    block_size: int,
    window: int | None,
    split: int | None,
    programs: int,
    tile: int,
) -> DecodeWork:
    """Cut rows that see their last ``window`` of ``lengths[i]`` positions into chunks of ``split``.

    Where ``split`` is None, :func:`split_size` finds it for so many ``programs``. Else a row's chunks depend on
    its own length alone. Raises ValueError for a row without positions, or whose block table does not cover them.
    """
    stop = numpy.asarray(lengths, numpy.int64)
    if not len(stop) or stop.min() < 1:
        raise ValueError(f"every row of a decode step has at least one position; lengths are {list(lengths)}")
    seen = stop if window is None else numpy.minimum(stop, window)
    begin = stop - seen
    if split is None:
        split = split_size(seen, programs, tile)
    table, tables = _tables(block_tables, begin // block_size, -(-stop // block_size))

    chunks = -(-seen // split)  # of each row
    row = numpy.arange(len(stop)).repeat(chunks)  # of each item
    nth = numpy.arange(len(row)) - (chunks.cumsum() - chunks)[row]  # chunk of its row
    start = begin[row] + nth * split
    end = numpy.minimum(start + split, stop[row])
    divided = chunks > 1
    slot = numpy.where(divided[row], divided[row].cumsum() - 1, -1)
    items = numpy.stack([row, table[row], start, end, slot], axis=1)

    several = divided.nonzero()[0]
    count = chunks[several]
    merges = numpy.stack([several, count.cumsum() - count, count], axis=1)
    return DecodeWork(
        items=items[numpy.argsort(start - end, kind="stable")].astype(numpy.int32),
        merges=merges.astype(numpy.int32),
        tables=tables,
    )


def _tables(
    block_tables: Sequence[BlockTable], lows: NDArray[numpy.int64], highs: NDArray[numpy.int64]
) -> tuple[NDArray[numpy.int64], _Ints]:
    """Entries ``lows[i]`` to ``highs[i]`` of each table, end to end, and where each table would begin in that.

    A table that several rows have, as the tokens of one prompt do, is there once: from the lowest of their entries
    to the highest.
    """
    held = list(block_tables)  # while they are, no two have the same id
    spans: dict[int, tuple[int, int]] = {}
    for table, low, high in zip(held, lows.tolist(), highs.tolist(), strict=True):
        if len(table) < high:
            raise ValueError(f"a row's positions are in {high} blocks, and its block table has {len(table)}")
        lowest, highest = spans.get(id(table), (low, high))
        spans[id(table)] = min(lowest, low), max(highest, high)
    begins: dict[int, int] = {}
    parts = []
    placed = 0
    for table in held:
        if id(table) not in begins:
            low, high = spans[id(table)]
            parts.append(numpy.asarray(table[low:high], numpy.int32))
            begins[id(table)] = placed - low
            placed += high - low
    return numpy.array([begins[id(table)] for table in held]), numpy.concatenate(parts)
