"""How a decode step's rows are cut into a work list."""

from __future__ import annotations

from itertools import pairwise

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from orchestra.kernels.attention.decode_work import DecodeWork, decode_work, split_size

TILE = 64
PAGE = 16


def work_of(
    lengths: list[int], *, window: int | None = None, split: int | None = None, programs: int = 176
) -> DecodeWork:
    tables = [range(1000 * i, 1000 * i + -(-length // PAGE)) for i, length in enumerate(lengths)]
    return decode_work(tables, lengths, block_size=PAGE, window=window, split=split, programs=programs, tile=TILE)


@given(
    lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=40),
    window=st.none() | st.integers(1, 3000),
    split=st.sampled_from([None, 256]),
    programs=st.integers(1, 300),
)
def test_every_position_is_seen_once(
    lengths: list[int], window: int | None, split: int | None, programs: int
) -> None:
    work = work_of(lengths, window=window, split=split, programs=programs)
    slots: dict[int, tuple[int, int]] = {}  # the row and the start of what is kept in each
    ends: dict[int, list[tuple[int, int]]] = {}
    for row, table, start, end, slot in work.items.tolist():
        ends.setdefault(row, []).append((start, end))
        assert work.tables[table + start // PAGE] == 1000 * row + start // PAGE
        assert work.tables[table + (end - 1) // PAGE] == 1000 * row + (end - 1) // PAGE
        if slot >= 0:
            assert slot not in slots
            slots[slot] = row, start
    for row, length in enumerate(lengths):
        parts = sorted(ends[row])
        assert parts[0][0] == (0 if window is None else max(0, length - window))
        assert parts[-1][1] == length
        assert all(end == start for (_, end), (start, _) in pairwise(parts))
    merged = {row: list(range(first, first + count)) for row, first, count in work.merges.tolist()}
    assert sorted(merged) == sorted(row for row, parts in ends.items() if len(parts) > 1)
    for row, own in merged.items():  # in the order of the positions
        assert [slots[slot] for slot in own] == [(row, start) for start, _ in sorted(ends[row])]
    assert work.slots == len(slots) == sum(map(len, merged.values()))
    sizes = work.items[:, 3] - work.items[:, 2]
    assert (numpy.diff(sizes) <= 0).all()


@given(
    seen=st.lists(st.integers(1, 50_000), min_size=1, max_size=60).map(numpy.array),
    programs=st.integers(1, 300),
)
def test_chunks_are_the_smallest_that_run_side_by_side(seen: NDArray[numpy.int64], programs: int) -> None:
    size = split_size(seen, programs, TILE)
    assert size % TILE == 0
    assert size >= 128
    chunks = int((-(-seen // size)).sum())
    # what a captured graph has room for
    assert chunks <= max(programs, len(seen) + programs // 2)
    fair = seen.sum() / programs
    if chunks <= programs:
        smaller = int((-(-seen // (size - TILE))).sum())
        assert size == 128 or smaller > programs
    else:  # more rows than programs, or one much longer than the others
        assert size <= max(128, 2 * fair + TILE)


def test_one_row_is_spread_over_the_device() -> None:
    assert len(work_of([32_768]).items) == 171  # of 192 positions; of 128 they were 256
    assert len(work_of([100]).items) == 1
    assert len(work_of([1000] * 8).items) == 64


def test_a_long_row_among_many_short_ones_is_cut() -> None:
    """Whole rows are more than run side by side already; uncut, the long one would take twenty times as long."""
    work = work_of([100] * 600 + [32_000])
    sizes = work.items[:, 3] - work.items[:, 2]
    assert sizes.max() <= 1088  # twice 92,000 positions over 176 programs, rounded up
    assert len(work.items) == 600 + len(work.items[work.items[:, 0] == 600])


def test_equal_rows_stay_whole_where_they_fill_the_device() -> None:
    assert len(work_of([1000] * 100).merges) == 0
    assert len(work_of([1000] * 500).merges) == 0


def test_a_table_that_rows_share_is_there_once_and_only_what_is_read() -> None:
    prompt = list(range(100, 140))
    work = decode_work(
        [prompt, prompt, [1, 2, 3], prompt],
        [320, 400, 20, 350],
        block_size=PAGE,
        window=100,
        split=None,
        programs=8,
        tile=TILE,
    )
    # positions 220 to 400 of the shared table, and 0 to 20 of the other
    assert work.tables.tolist() == [*range(113, 125), 1, 2]
    assert {row: table for row, table, *_ in work.items.tolist()} == {0: -13, 1: -13, 2: 12, 3: -13}


def test_lists_are_padded_with_nothing_to_do() -> None:
    work = work_of([300, 20], split=128)
    flat = work.flat(8, 4)
    items, merges, tables = flat[:40].reshape(8, 5), flat[40:52].reshape(4, 3), flat[52:]
    assert (items[: len(work.items)] == work.items).all()
    assert not items[len(work.items) :].any()
    assert (merges[0] == work.merges[0]).all()
    assert not merges[1:].any()
    assert (tables == work.tables).all()


@pytest.mark.parametrize("lengths", [[], [0], [5, -1]])
def test_rows_without_positions_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="at least one position"):
        work_of(lengths)
