"""How many calls at once."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.policies.concurrency import ConcurrencyLimit


def depart(limit: ConcurrencyLimit, in_flight: float) -> int:
    limit.departed(in_flight)
    return limit.round


def one_round(limit: ConcurrencyLimit, calls: int) -> None:
    departed_in = [depart(limit, number + 1) for number in range(calls)]
    for number, departed in enumerate(departed_in):
        limit.answered(departed, calls - number - 1)


def test_it_doubles_with_each_clean_round_that_reached_it():
    limit = ConcurrencyLimit(8)
    for expected in (16, 32, 64):
        one_round(limit, int(limit.limit))
        assert limit.limit == expected


def test_it_does_not_grow_while_it_is_not_used():
    limit = ConcurrencyLimit(8)
    for _ in range(50):
        one_round(limit, 7)
    assert limit.limit == 8


def test_slots_that_a_call_may_not_use_count_as_used():
    limit = ConcurrencyLimit(8)
    limit.answered(depart(limit, 6 + 2), 5)
    assert limit.limit == 16


def test_after_a_cut_it_grows_by_one_a_round():
    limit = ConcurrencyLimit(10)
    assert limit.throttled(depart(limit, 10), 9)
    assert (limit.limit, limit.guessing) == (7, False)
    for expected in (8, 9, 10):
        one_round(limit, int(limit.limit))
        assert limit.limit == expected


def test_an_episode_cuts_once_however_many_are_turned_away():
    limit = ConcurrencyLimit(100)
    departed_in = [depart(limit, number + 1) for number in range(100)]
    assert [limit.throttled(departed, 50) for departed in departed_in] == [True] + [False] * 99
    assert limit.limit == pytest.approx(70)
    assert limit.throttled(depart(limit, 70), 69), "let go under the new limit: a new episode"
    assert limit.limit == pytest.approx(49)


def test_answers_to_calls_of_an_earlier_round_do_not_make_it_grow():
    limit = ConcurrencyLimit(4)
    old = [depart(limit, number + 1) for number in range(4)]
    assert limit.throttled(old[0], 3)
    for departed in old[1:]:
        assert not limit.answered(departed, 0)


def test_it_never_falls_below_one_call():
    limit = ConcurrencyLimit(2)
    for _ in range(20):
        limit.throttled(depart(limit, 1), 0)
    assert limit.limit == 1


def test_whoever_goes_as_the_last_that_may_is_told_so():
    limit = ConcurrencyLimit(8)
    assert [limit.departed(7), limit.departed(8), limit.departed(9)] == [False, True, True]


def test_infinite_it_limits_nothing_and_stays_so():
    limit = ConcurrencyLimit()
    assert not limit.departed(10_000)
    assert not limit.throttled(limit.round, 0)
    assert limit.limit == math.inf


@pytest.mark.parametrize(("start", "decrease"), [(0, 0.5), (-1, 0.5), (math.nan, 0.5), (1, 0), (1, 1)])
def test_what_makes_no_sense_is_refused(start: float, decrease: float):
    with pytest.raises(ValueError, match="not"):
        ConcurrencyLimit(start, decrease=decrease)


@given(st.lists(st.tuples(st.integers(1, 200), st.booleans()), max_size=200))
def test_it_stays_within_reach_of_what_was_used(steps: list[tuple[int, bool]]):
    limit, peak = ConcurrencyLimit(8), 8
    for in_flight, fine in steps:
        peak = max(peak, in_flight)
        departed = depart(limit, in_flight)
        (limit.answered if fine else limit.throttled)(departed, in_flight - 1)
        assert 1 <= limit.limit <= 2 * (peak + 1)
