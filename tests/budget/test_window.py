"""A limit in any span of time of its length."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.budget.window import DAY, MINUTE, Window

STARTS = st.sampled_from([0.0, 12345.678, 1.8e9])


def day(capacity=100.0, now=0.0):
    return Window("tokens", capacity=capacity, window=DAY, now=now)


def minute(capacity=100.0, now=0.0):
    return Window("tokens", capacity=capacity, window=MINUTE, now=now)


def spend(window, amount, now):
    window.reserve(amount, now)
    window.settle(amount, amount, now)


def test_what_is_spent_leaves_when_it_is_a_window_old_and_a_slot_at_most():
    w = day()
    spend(w, 60.0, 1000.0)
    assert w.available(1000.0) == 40.0
    assert w.available(1000.0 + DAY - 1) == 40.0
    assert w.available(1000.0 + DAY + 900.0) == 100.0


def test_time_until_comes_from_the_slots():
    w = minute()
    spend(w, 30.0, 0.5)
    spend(w, 70.0, 10.5)
    assert w.time_until(30.0, 0.0, 20.0) == pytest.approx(41.0, abs=1e-5)
    assert w.time_until(31.0, 0.0, 20.0) == pytest.approx(51.0, abs=1e-5)
    assert w.time_until(30.0, 15.0, 20.0) == pytest.approx(51.0, abs=1e-5)
    assert w.time_until(0.0, 15.0, 20.0) == 0.0


def test_what_is_reserved_only_a_settlement_brings_back():
    w = day()
    w.reserve(80.0, 0.0)
    assert w.time_until(30.0, 0.0, 0.0) == math.inf
    assert w.least_wait(30.0, 0.0) == 0.0
    w.settle(80.0, 50.0, 2 * DAY)
    assert w.time_until(30.0, 0.0, 2 * DAY) == 0.0
    assert w.time_until(60.0, 0.0, 2 * DAY) == pytest.approx(DAY + 900.0, abs=1e-5), "it ages from its end on"


def test_in_a_minute_a_call_counts_from_when_it_goes_however_long_it_takes():
    w = minute()
    for start in (0.0, 61.0, 122.0):  # each call takes ten minutes
        assert w.time_until(100.0, 0.0, start) == 0.0
        w.reserve(100.0, start)
        assert w.time_until(1.0, 0.0, start) == pytest.approx(61.0, abs=1e-5)
    w.settle(100.0, 130.0, 600.0)
    assert w.used(600.0) == 30.0, "what it took beyond its reservation counts from its end on"
    w.settle(100.0, 0.0, 601.0)
    assert w.used(601.0) == 0.0
    assert w.reserved == 100.0


def test_what_exceeds_a_day_never_goes_and_what_exceeds_a_minute_goes_alone():
    assert day().least_wait(101.0, 0.0) == day().time_until(101.0, 0.0, 0.0) == math.inf
    w = minute()
    assert w.time_until(250.0, 0.0, 0.0) == 0.0
    spend(w, 1.0, 0.0)
    assert w.time_until(250.0, 0.0, 0.0) == pytest.approx(61.0, abs=1e-5)


def test_a_settlement_above_the_reservation_is_a_debt_that_ages():
    w = day(1.0)
    w.reserve(0.3, 0.0)
    w.settle(0.3, 1.4, 0.0)
    assert w.available(0.0) == pytest.approx(-0.4)
    assert w.time_until(0.1, 0.0, 0.0) == pytest.approx(DAY + 900.0)
    assert w.time_until(0.0, 0.0, 0.0) == 0.0, "what costs nothing goes"


def test_a_changed_limit_keeps_what_is_used():
    w = day()
    spend(w, 80.0, 0.0)
    w.resize(200.0, 200.0 / DAY, 0.0)
    assert w.available(0.0) == 120.0
    w.resize(50.0, 50.0 / DAY, 0.0)
    assert w.available(0.0) == -30.0


def test_what_is_left_can_be_put_right():
    w = day()
    spend(w, 80.0, 0.0)
    w.set_available(50.0, 0.0)
    assert w.used(0.0) == pytest.approx(50.0)
    w.set_available(10.0, 0.0)
    assert w.used(0.0) == pytest.approx(90.0)


def test_what_is_given_back_never_makes_less_of_what_was_spent():
    """Whenever it was spent: at no later instant is less counted than without it."""
    dice = random.Random(5)
    for _ in range(200):
        spends = sorted((dice.uniform(0, DAY), dice.choice([1.0, 2.0, 5.0])) for _ in range(6))
        false = dice.randrange(6)
        window, honest = (Window("usd", capacity=100.0, window=DAY) for _ in range(2))
        for at, (when, amount) in enumerate(spends):
            window.settle(0.0, amount, when)
            honest.settle(0.0, 0.0 if at == false else amount, when)
        now = dice.uniform(spends[-1][0], spends[false][0] + DAY)
        window.give_back(spends[false][1], now)
        assert window.used(now) == pytest.approx(honest.used(now))
        for later in (now + dice.uniform(0, 1.1 * DAY) for _ in range(5)):
            assert window.used(later) >= honest.used(later) - 1e-9


def test_it_goes_on_from_its_past():
    w = minute()
    spend(w, 30.0, 0.5)
    spend(w, 20.0, 30.5)
    again = minute(now=1e6)
    again.restore(w.past(40.0), 1e6)
    assert again.used(1e6) == 50.0
    assert again.used(1e6 + 21.1) == 20.0
    spend(again, 5.0, 1e6 + 22.0)
    assert again.used(1e6 + 51.1) == 5.0
    assert again.used(1e6 + 83.1) == 0.0


def test_a_clock_that_runs_backwards_stands_still():
    w = minute()
    spend(w, 50.0, 100.0)
    assert w.used(0.0) == 50.0
    spend(w, 10.0, 50.0)
    assert w.used(162.0) == 0.0


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True])
def test_bad_sizes(value):
    with pytest.raises(ValueError, match=r".*"):
        Window("tokens", capacity=value, window=DAY)
    with pytest.raises(ValueError, match="window"):
        Window("tokens", capacity=1.0, window=value)
    with pytest.raises(ValueError, match=r".*"):
        day().resize(value, 1.0, 0.0)


STEPS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.3, 1.0, 9.9, 59.9, 61.0]), st.floats(0.0, 120.0), st.floats(0.0, 1.5)),
    max_size=40,
)


@given(STEPS, STARTS, st.booleans())
def test_in_any_span_no_more_than_the_limit_and_room_exactly_when_told(steps, start, held_long):
    """Each goes when it may: in every span of a minute, what goes stays within the limit, but for debts."""
    w, now, history, debts = minute(now=start), start, [], 0.0
    for pause, amount, factor in steps:
        now += pause
        wait = w.time_until(amount, 0.0, now)
        assert wait < math.inf
        if wait > 2e-6:
            assert w.time_until(amount, 0.0, now + 0.99 * wait) > 0.0
        now += wait
        assert w.time_until(amount, 0.0, now) == 0.0
        assert w.least_wait(amount, now) == 0.0
        recent = sum(spent for at, spent in history if at > now - MINUTE)
        assert min(amount, 100.0) <= max(0.0, 100.0 - recent) + 1e-6 or not amount
        w.reserve(amount, now)
        history.append((now, min(1.0, factor) * amount))
        if held_long:
            now += 5.0
        w.settle(amount, factor * amount, now)
        history.append((now, max(0.0, factor - 1.0) * amount))
        debts = max(debts, (factor - 1.0) * amount, amount - 100.0, factor * amount - 100.0)
        assert w.used(now) >= sum(spent for at, spent in history if at > now - MINUTE) - 1e-6
        assert len(w.past(now)) <= 62
    for end, _ in history:
        span = sum(spent for at, spent in history if end - MINUTE < at <= end)
        assert span <= 100.0 + debts + 1e-6, "one call's misestimate at most"
