from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.localengine.blocks import BlockPool
from orchestra.policies.traffic import TrafficClass

BULK, INTERACTIVE = TrafficClass.BULK, TrafficClass.INTERACTIVE


def test_allocation_is_all_or_nothing():
    pool = BlockPool(4, 16)
    table = pool.allocate(3, BULK)
    with pytest.raises(ValueError, match="2 blocks asked for, 1 are free"):
        pool.allocate(2, BULK)
    assert pool.num_free == 1
    pool.check({BULK: [table]})


def test_a_shared_block_is_free_only_when_its_last_holder_lets_go():
    pool = BlockPool(4, 16)
    first = pool.allocate(2, BULK)
    pool.retain(first[:1], BULK)
    second = first[:1]
    pool.check({BULK: [first, second]})
    pool.release(first, BULK)
    assert pool.num_free == 3
    pool.check({BULK: [second]})
    pool.release(second, BULK)
    assert pool.num_free == 4
    pool.check({BULK: []})


def test_releasing_a_free_block_changes_nothing():
    pool = BlockPool(4, 16)
    table = pool.allocate(2, BULK)
    for wrong in ([table[0], 3], [table[0], table[0]]):
        with pytest.raises(ValueError, match="not every one"):
            pool.release(wrong, BULK)
        with pytest.raises(ValueError, match="not every one"):
            pool.retain(wrong, BULK)
    pool.check({BULK: [table]})


def test_check_finds_leaks_and_double_use():
    pool = BlockPool(4, 16)
    table = pool.allocate(2, BULK)
    for tables in ([], [table[:1]], [table, table], [table, [3]], [[*table, 9]]):
        with pytest.raises(AssertionError):
            pool.check({BULK: tables})


@pytest.mark.parametrize(("blocks", "size"), [(0, 16), (4, 0)])
def test_an_empty_pool_is_refused(blocks, size):
    with pytest.raises(ValueError, match="at least 1"):
        BlockPool(blocks, size)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_for_rounds_up(tokens, blocks):
    assert BlockPool(8, 4).blocks_for(tokens) == blocks


@given(st.lists(st.tuples(st.sampled_from(["take", "share", "drop"]), st.integers(0, 5)), max_size=60))
def test_books_agree_after_any_sequence_of_operations(operations):
    pool = BlockPool(8, 4)
    tables: list[list[int]] = []
    for what, number in operations:
        if what == "take" and number <= pool.num_free:
            tables.append(pool.allocate(number, BULK))
        elif what == "share" and tables:
            table = list(tables[number % len(tables)])
            pool.retain(table, BULK)
            tables.append(table)
        elif what == "drop" and tables:
            pool.release(tables.pop(number % len(tables)), BULK)
        pool.check({BULK: tables})
        assert pool.num_free + len({block for table in tables for block in table}) == 8
