"""A lease ends once, whoever ends it and however often."""

import gc

import pytest

from orchestra.budget import Pool
from orchestra.call import Charge
from orchestra.config import LimitsConfig, TrafficConfig
from orchestra.policies.traffic import TrafficClass

CHARGE = Charge(tokens=100.0)


@pytest.fixture
def pool():
    return Pool(LimitsConfig(tokens_per_minute=600.0, max_concurrency=2), TrafficConfig(), clock=lambda: 0.0)


@pytest.mark.parametrize("amount", [-1.0, float("nan"), float("inf"), 10**400])
def test_an_amount_that_cannot_be_ends_nothing(pool, lease, amount):
    with pytest.raises(ValueError, match="must be finite"):
        lease.settle(Charge(tokens=amount))
    assert in_use(pool) == 1
    lease.keep()
    assert in_use(pool) == 0


@pytest.fixture
def lease(pool):
    return pool.acquire_sync(CHARGE, traffic=TrafficClass.INTERACTIVE)


def tokens(pool):
    return pool.snapshot()["dimensions"]["tokens"]


def in_use(pool):
    return pool.snapshot()["in_use"]["interactive"]


def test_it_holds_its_charge_until_it_ends(pool, lease):
    assert (lease.charge, lease.traffic, lease.waited, lease.ended) == (
        CHARGE,
        TrafficClass.INTERACTIVE,
        0.0,
        False,
    )
    assert (tokens(pool)["used"], tokens(pool)["reserved"], in_use(pool)) == (100.0, 100.0, 1)


@pytest.mark.parametrize(
    ("end", "used"),
    [
        (lambda lease: lease.settle(Charge(tokens=30.0)), 30.0),
        (lambda lease: lease.settle(Charge(tokens=900.0)), 900.0),
        (lambda lease: lease.refund(), 0.0),
        (lambda lease: lease.keep(), 100.0),
    ],
)
def test_each_end_frees_the_slot_and_only_the_first_counts(pool, lease, end, used):
    end(lease)
    assert lease.ended
    lease.keep()
    lease.refund()
    lease.settle(Charge(tokens=5.0))
    assert (tokens(pool)["used"], tokens(pool)["reserved"], in_use(pool)) == (used, 0.0, 0)


def test_a_block_keeps_it_unless_it_was_ended_inside(pool):
    with pool.acquire_sync(CHARGE, traffic=TrafficClass.BULK):
        pass
    assert tokens(pool)["used"] == 100.0
    with pool.acquire_sync(CHARGE, traffic=TrafficClass.BULK) as lease:
        lease.refund()
    assert tokens(pool)["used"] == 100.0
    with pytest.raises(ZeroDivisionError), pool.acquire_sync(CHARGE, traffic=TrafficClass.BULK) as lease:
        raise ZeroDivisionError
    assert lease.ended
    assert (tokens(pool)["used"], in_use(pool)) == (200.0, 0)


def test_one_that_is_dropped_is_kept(pool):
    pool.acquire_sync(CHARGE, traffic=TrafficClass.INTERACTIVE)
    gc.collect()
    assert (tokens(pool)["used"], tokens(pool)["reserved"], in_use(pool)) == (100.0, 0.0, 0)


def test_one_that_is_dropped_in_a_cycle_is_kept_when_the_cycle_is_found(pool):
    cycle = {"lease": pool.acquire_sync(CHARGE, traffic=TrafficClass.INTERACTIVE)}
    cycle["self"] = cycle
    del cycle
    gc.collect()
    assert in_use(pool) == 0


def test_it_shows_what_it_is(lease):
    assert "interactive" in repr(lease)
    assert "ended" not in repr(lease)
    lease.keep()
    assert "ended" in repr(lease)
