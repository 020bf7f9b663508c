"""The books of the pool: who holds which block, what is published, and what is evicted first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orchestra.localengine.scheduling.blocks import BlockPool
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


# Publishing


A, B, C = [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]


def filled(pool: BlockPool, tokens: list[int], traffic: TrafficClass = BULK, salt: str | None = None) -> list[int]:
    """A table of the class that holds ``tokens``, whole blocks, and has published them."""
    table = pool.allocate(pool.blocks_for(len(tokens)), traffic)
    pool.publish(tokens, salt, table, traffic)
    return table


def test_what_was_published_outlives_its_table_and_is_found_by_the_next():
    pool = BlockPool(4, 4)
    table = filled(pool, [*A, *B])
    assert pool.match([*A, *B, 0], None, 2) == table, "while it is held"
    pool.release(table, BULK)
    assert (pool.num_free, pool.num_blank, pool.num_cached(BULK)) == (4, 2, 2)
    assert pool.match([*A, *B, 0], None, 2) == table, "and after"
    pool.retain(table, BULK)
    assert (pool.num_free, pool.num_cached(BULK), pool.num_held(BULK)) == (2, 0, 2)
    pool.check({BULK: [table]})


def test_a_match_takes_nothing():
    pool = BlockPool(4, 4)
    pool.release(filled(pool, A), BULK)
    pool.match(A, None, 1)
    assert (pool.num_free, pool.num_cached(BULK), pool.num_held(BULK)) == (4, 1, 0)
    pool.check({})


def test_blank_blocks_go_first_then_those_cached_for_longest_and_a_prefix_after_its_continuation():
    pool = BlockPool(5, 4)
    old, new = filled(pool, [*A, *B]), filled(pool, [*C, *A])
    pool.release(old, BULK)
    pool.release(new, BULK)
    (blank,) = set(range(5)) - {*old, *new}
    assert pool.allocate(1, BULK) == [blank]
    assert pool.evictions == 0
    assert pool.allocate(1, BULK) == [old[1]]
    assert pool.match([*A, *B], None, 2) == old[:1]
    assert pool.allocate(3, BULK) == [old[0], new[1], new[0]]
    assert pool.evictions == 4
    assert pool.match([*A, *B], None, 2) == pool.match([*C, *A], None, 2) == []
    assert pool.num_free == 0


def test_what_is_used_again_is_evicted_later():
    pool = BlockPool(2, 4)
    first, second = filled(pool, A), filled(pool, B)
    pool.release(first, BULK)
    pool.release(second, BULK)
    pool.retain(first, BULK)
    pool.release(first, BULK)
    assert pool.allocate(1, BULK) == second


def test_bulks_go_before_any_of_interactives_however_old():
    pool = BlockPool(3, 4)
    kept, bulk = filled(pool, A, INTERACTIVE), filled(pool, [*B, *C], BULK)
    pool.release(kept, INTERACTIVE)
    pool.release(bulk, BULK)
    assert (pool.num_cached(INTERACTIVE), pool.num_cached(BULK)) == (1, 2)
    assert pool.allocate(3, INTERACTIVE) == [bulk[1], bulk[0], kept[0]]


@pytest.mark.parametrize("held", [True, False])
def test_a_block_belongs_to_the_most_urgent_class_that_ever_held_it(held: bool):
    pool = BlockPool(3, 4)
    table = filled(pool, A, BULK)
    assert pool.owner(table[0]) is BULK
    if not held:
        pool.release(table, BULK)
    pool.retain(table, INTERACTIVE)
    assert pool.owner(table[0]) is INTERACTIVE
    if held:
        pool.release(table, BULK)
    pool.release(table, INTERACTIVE)
    pool.retain(table, BULK)
    assert pool.owner(table[0]) is INTERACTIVE, "bulk does not lower it"
    pool.release(table, BULK)
    assert (pool.num_cached(INTERACTIVE), pool.num_cached(BULK)) == (1, 0)
    pool.check({})


def test_both_classes_may_hold_a_block_and_each_counts_it_once():
    pool = BlockPool(4, 4)
    table = filled(pool, [*A, *B], BULK)
    pool.retain(table[:1], BULK)
    pool.retain(table, INTERACTIVE)
    tables = {BULK: [table, table[:1]], INTERACTIVE: [table]}
    pool.check(tables)
    assert (pool.num_held(BULK), pool.num_held(INTERACTIVE), pool.num_free) == (2, 2, 2)
    assert [pool.references(table[0], c) for c in (BULK, INTERACTIVE)] == [2, 1]
    assert (pool.references(table[0]), pool.references(table[1])) == (3, 2)
    with pytest.raises(ValueError, match="held by interactive, once"):
        pool.release([*table, 3], INTERACTIVE)
    pool.check(tables)


def test_another_block_with_the_same_contents_is_blank_after_use():
    pool = BlockPool(4, 4)
    first, twin = filled(pool, A), filled(pool, A)
    assert pool.match(A, None, 1) == first
    pool.release(twin, BULK)
    assert pool.owner(twin[0]) is None
    assert (pool.num_blank, pool.num_cached(BULK)) == (3, 0)
    pool.check({BULK: [first]})


def test_a_cached_block_may_be_retained_and_a_blank_one_may_not():
    pool = BlockPool(4, 4)
    (cached,) = filled(pool, A)
    pool.release([cached], BULK)
    with pytest.raises(ValueError, match="held or cached"):
        pool.retain([cached, (cached + 1) % 4], INTERACTIVE)
    assert (pool.num_cached(BULK), pool.num_held(INTERACTIVE)) == (1, 0)
    pool.check({})


def test_without_caching_nothing_is_published():
    pool = BlockPool(4, 4, caching=False)
    table = filled(pool, A)
    assert pool.match(A, None, 1) == []
    pool.release(table, BULK)
    assert (pool.num_blank, pool.num_cached(BULK)) == (4, 0)
    pool.check({})


def test_a_salt_is_a_cache_of_its_own():
    pool = BlockPool(4, 4)
    mine, others = filled(pool, A, salt="mine"), filled(pool, A, salt="theirs")
    assert (pool.match(A, "mine", 1), pool.match(A, "theirs", 1), pool.match(A, None, 1)) == (mine, others, [])


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda pool, held, cached: pool._owners.pop(cached), "published and have no owner"),
        (lambda pool, held, cached: pool._owners.update({pool._blank[0]: BULK}), "published and have no owner"),
        (lambda pool, held, cached: pool._owners.update({cached: INTERACTIVE}), "belong to another class"),
        (lambda pool, held, cached: pool._prefixes.forget(cached), "published and have no owner"),
        (lambda pool, held, cached: pool._cached[BULK].pop(cached), "0 tables, 0 times free"),
        (lambda pool, held, cached: pool._cached[BULK].update({held: None}), "1 tables, 1 times free"),
        (lambda pool, held, cached: pool._blank.append(cached), "0 tables, 2 times free"),
        (lambda pool, held, cached: pool._given_up.add(cached), "0 tables, 2 times free or given up"),
        (lambda pool, held, cached: pool._blank.append(99), "do not exist"),
        (lambda pool, held, cached: pool._held.update({BULK: 0}), "bulk holds 1 blocks, not 0"),
        (lambda pool, held, cached: pool._references[INTERACTIVE].__setitem__(held, 1), "0 tables of interactive"),
    ],
)
def test_check_finds_wrong_books(damage: Callable[[BlockPool, int, int], object], told: str):
    pool = BlockPool(5, 4)
    held, cached = filled(pool, A), filled(pool, B)
    pool.release(cached, BULK)
    pool.check({BULK: [held]})
    damage(pool, held[0], cached[0])
    with pytest.raises(AssertionError, match=told):
        pool.check({BULK: [held]})


# Shrinking


def test_a_pool_shrinks_by_blank_blocks_then_bulks_then_interactives():
    pool = BlockPool(6, 4)
    held, bulk, kept = filled(pool, A), filled(pool, B), filled(pool, C, INTERACTIVE)
    pool.release(bulk, BULK)
    pool.release(kept, INTERACTIVE)
    counts = []
    for _ in range(5):
        pool.shrink(1)
        pool.check({BULK: [held]})
        counts.append((pool.num_blocks, pool.num_blank, pool.num_cached(BULK), pool.num_cached(INTERACTIVE)))
    assert counts == [(5, 2, 1, 1), (4, 1, 1, 1), (3, 0, 1, 1), (2, 0, 0, 1), (1, 0, 0, 0)]
    assert pool.match(A, None, 1) == held
    with pytest.raises(ValueError, match="1 of 1 blocks cannot be given up: 0 are free"):
        pool.shrink(1)


def test_the_last_block_cannot_be_given_up_and_a_failed_shrink_changes_nothing():
    pool = BlockPool(3, 4)
    table = pool.allocate(1, BULK)
    for count in (3, -1):
        with pytest.raises(ValueError, match="cannot be given up"):
            pool.shrink(count)
    pool.release(table, BULK)
    with pytest.raises(ValueError, match="3 of 3 blocks cannot be given up: 3 are free, one must stay"):
        pool.shrink(3)
    assert (pool.num_blocks, pool.num_free) == (3, 3)
    pool.check({})


def test_what_was_given_up_is_never_handed_out():
    pool = BlockPool(8, 4)
    pool.shrink(5)
    table = pool.allocate(3, BULK)
    with pytest.raises(ValueError, match="1 blocks asked for, 0 are free"):
        pool.allocate(1, BULK)
    pool.check({BULK: [table]})


class PoolMachine(RuleBasedStateMachine):
    """Requests with prompts that begin alike come and go. What a table is given holds just its tokens.

    ``written`` is what each block really holds: the salt and all tokens up to its end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(10, 2)
        self.tables: list[tuple[TrafficClass, list[int], list[int], str | None]] = []
        self.written: dict[int, tuple[object, ...]] = {}
        self.owners: dict[int, TrafficClass] = {}

    @rule(
        traffic=st.sampled_from([BULK, INTERACTIVE]),
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9),
        salt=st.sampled_from([None, "a"]),
        computes=st.booleans(),
    )
    def request(self, traffic: TrafficClass, tokens: list[int], salt: str | None, computes: bool) -> None:
        pool = self.pool
        matched = pool.match(tokens, salt, (len(tokens) - 1) // 2)
        for end, block in enumerate(matched, 1):
            assert self.written[block] == (salt, *tokens[: 2 * end])
        pool.retain(matched, traffic)
        for block in matched:
            if traffic is INTERACTIVE:
                self.owners[block] = INTERACTIVE
            assert pool.owner(block) is self.owners[block]
        missing = pool.blocks_for(len(tokens)) - len(matched)
        if missing > pool.num_free:
            pool.release(matched, traffic)
            return
        cached = {c: pool.num_cached(c) for c in TrafficClass}
        short = max(0, missing - pool.num_blank)
        fresh = pool.allocate(missing, traffic)
        assert pool.num_cached(BULK) == max(0, cached[BULK] - short)
        assert pool.num_cached(INTERACTIVE) == cached[INTERACTIVE] - max(0, short - cached[BULK])
        table = [*matched, *fresh]
        for end, block in enumerate(table, 1):
            if block in fresh:
                self.owners.pop(block, None)
                self.written[block] = (salt, *tokens[: 2 * end])
        if computes:
            full = len(tokens) // 2
            pool.publish(tokens[: 2 * full], salt, table[:full], traffic)
            for block in fresh:
                if pool.owner(block) is not None:
                    self.owners[block] = traffic
            assert len(pool.match(tokens, salt, full)) == full
        self.tables.append((traffic, table, tokens, salt))

    @precondition(lambda self: self.tables)
    @rule(number=st.integers(0, 99))
    def end(self, number: int) -> None:
        traffic, table, *_ = self.tables.pop(number % len(self.tables))
        free = self.pool.num_free
        self.pool.release(table, traffic)
        others = {block for _, other, *_ in self.tables for block in other}
        assert self.pool.num_free == free + len(set(table) - others)

    @precondition(lambda self: self.pool.num_blocks > 4 and self.pool.num_free)
    @rule()
    def shrink(self) -> None:
        self.pool.shrink(1)

    @invariant()
    def books_agree(self) -> None:
        self.pool.check({c: [table for traffic, table, *_ in self.tables if traffic is c] for c in TrafficClass})

    @invariant()
    def tables_hold_their_tokens(self) -> None:
        for _, table, tokens, salt in self.tables:
            for end, block in enumerate(table, 1):
                assert self.written[block] == (salt, *tokens[: 2 * end])


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
