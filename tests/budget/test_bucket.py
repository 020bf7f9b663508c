"""One dimension of a limit."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.budget.bucket import Bucket

SIZES = st.floats(0.001, 1e6)
AMOUNTS = st.floats(0, 1e6)


def bucket(capacity=100.0, rate=10.0, now=0.0):
    return Bucket("tokens", capacity=capacity, rate=rate, now=now)


def test_it_starts_full_and_refills_up_to_its_capacity():
    b = bucket()
    b.reserve(60.0, 0.0)
    b.settle(60.0, 60.0, 0.0)
    assert b.available(0.0) == 40.0
    assert b.available(3.0) == 70.0
    assert b.available(1e9) == 100.0


def test_time_until_is_exact():
    b = bucket()
    b.reserve(100.0, 0.0)
    assert b.time_until(25.0, 0.0, 0.0) == pytest.approx(2.5)
    assert b.time_until(25.0, 15.0, 0.0) == pytest.approx(4.0)
    assert b.time_until(25.0, 15.0, 3.99) == pytest.approx(0.01)
    assert b.time_until(25.0, 15.0, 4.0) == 0.0


def test_an_oversize_charge_waits_until_the_bucket_is_full_and_goes_into_debt():
    b = bucket()
    b.reserve(50.0, 0.0)
    assert b.time_until(800.0, 0.0, 0.0) == pytest.approx(5.0)
    b.reserve(800.0, 5.0)
    assert b.available(5.0) == -700.0
    assert b.time_until(1.0, 0.0, 5.0) == pytest.approx(70.1)


def test_a_charge_that_does_not_fit_above_the_floor_waits_until_the_bucket_is_full():
    b = bucket()
    assert b.time_until(95.0, 15.0, 0.0) == 0.0
    b.reserve(20.0, 0.0)
    assert b.time_until(95.0, 15.0, 0.0) == pytest.approx(2.0)


def test_settling_above_the_reservation_is_debt_and_below_it_room():
    b = bucket()
    b.reserve(80.0, 0.0)
    b.settle(80.0, 130.0, 0.0)
    assert b.available(0.0) == -30.0
    b.reserve(10.0, 0.0)
    b.settle(10.0, 0.0, 0.0)
    assert b.available(0.0) == -30.0


def test_a_late_refund_never_overfills():
    b = bucket()
    b.reserve(80.0, 0.0)
    b.settle(80.0, 0.0, 100.0)
    assert b.available(100.0) == 100.0


def test_a_stock_comes_back_only_by_settling():
    slots = Bucket("concurrency", capacity=2)
    for _ in range(2):
        assert slots.time_until(1.0, 0.0, 0.0) == 0.0
        slots.reserve(1.0, 0.0)
    assert slots.time_until(1.0, 0.0, 1e9) == math.inf
    assert slots.least_wait(1.0, 1e9) == 0.0
    slots.settle(1.0, 0.0, 1e9)
    assert slots.time_until(1.0, 0.0, 1e9) == 0.0


def test_more_than_a_stock_can_ever_hold_never_comes():
    stock = Bucket("tokens", capacity=10)
    assert stock.least_wait(11.0, 0.0) == math.inf
    assert stock.time_until(11.0, 0.0, 0.0) == math.inf
    stock.reserve(6.0, 0.0)
    stock.settle(6.0, 6.0, 0.0)
    assert stock.least_wait(5.0, 0.0) == math.inf
    assert stock.least_wait(4.0, 0.0) == 0.0


def test_a_limit_of_infinity_limits_nothing_and_counts():
    b = Bucket("concurrency", capacity=math.inf)
    b.reserve(1.0, 0.0)
    assert b.time_until(1.0, 0.0, 0.0) == 0.0
    assert b.used(0.0) == 1.0


def test_a_clock_that_runs_backwards_stands_still():
    b = bucket()
    b.reserve(50.0, 10.0)
    assert b.available(5.0) == 50.0
    assert b.available(11.0) == 60.0


def test_raising_a_limit_makes_no_tokens_and_lowering_it_no_debt():
    b = bucket()
    b.reserve(80.0, 0.0)
    b.resize(200.0, 20.0, 0.0)
    assert b.available(0.0) == 20.0
    assert b.available(1.0) == 40.0
    b.resize(30.0, 3.0, 1.0)
    assert b.available(1.0) == 30.0


def test_slots_in_use_stay_in_use_when_the_limit_changes():
    slots = Bucket("concurrency", capacity=4)
    for _ in range(3):
        slots.reserve(1.0, 0.0)
    slots.resize(2, 0.0, 0.0)
    assert slots.available(0.0) == -1.0
    slots.settle(1.0, 0.0, 0.0)
    slots.settle(1.0, 0.0, 0.0)
    assert slots.time_until(1.0, 0.0, 0.0) == 0.0
    slots.resize(math.inf, 0.0, 0.0)
    assert slots.used(0.0) == 1.0


@given(SIZES, SIZES, AMOUNTS, st.floats(0, 0.9), st.lists(AMOUNTS, max_size=5), st.sampled_from([0.0, 1e5, 1.8e9]))
def test_at_the_instant_that_it_tells_it_has_what_was_asked(capacity, rate, amount, share, taken, now):
    b = bucket(capacity, rate, now)
    for one in taken:
        b.reserve(one, now)
    wait = b.time_until(amount, share * capacity, now)
    if wait:
        assert b.time_until(amount, share * capacity, now + wait / 2) > 0 or wait < 1e-3
    assert b.time_until(amount, share * capacity, now + wait) <= 1e-6 + 2 * math.ulp(now + wait)
    assert b.least_wait(amount, now) <= wait + 1e-6


@given(SIZES, SIZES, st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e5)), max_size=30))
def test_what_is_taken_fits_the_capacity_and_the_refill(capacity, rate, steps):
    """Over every window: at most the capacity, the refill of the window, and one oversize charge's excess."""
    b, now, taken, excess = bucket(capacity, rate), 0.0, 0.0, 0.0
    for pause, amount in steps:
        now += pause + b.time_until(amount, 0.0, now + pause)
        b.reserve(amount, now)
        taken += amount
        excess = max(excess, amount - capacity)
        assert taken <= (capacity + rate * now + excess) * (1 + 1e-9) + rate * 1e-6 * len(steps) + 1e-6
        b.settle(amount, amount, now)
        assert b.reserved == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("value", [0, -1, math.nan, True])
def test_bad_capacities(value):
    with pytest.raises(ValueError, match="capacity"):
        bucket(capacity=value)
    with pytest.raises(ValueError, match="capacity"):
        bucket().resize(value, 1.0, 0.0)


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, True])
def test_bad_rates(value):
    with pytest.raises(ValueError, match="rate"):
        bucket(rate=value)


def test_what_refills_is_finite():
    with pytest.raises(ValueError, match="finite"):
        bucket(capacity=math.inf)
