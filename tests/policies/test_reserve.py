"""The interactive reserve, and what bulk is owed."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.policies.reserve import BulkMinShare, Reserve


def test_auto_starts_at_its_least_and_stays_there_for_small_bursts():
    reserve = Reserve("auto")
    assert reserve.share(0.0) == 0.15
    reserve.observe(0.1, 5.0)
    assert reserve.share(5.0) == 0.15


def test_auto_grows_at_once_and_decays_slowly():
    reserve = Reserve("auto")
    reserve.observe(0.3, 10.0)
    assert reserve.share(10.0) == pytest.approx(0.375)
    assert reserve.share(70.0) > 0.34
    assert reserve.share(10.0 + 600.0) == pytest.approx(0.375 / 2)
    assert reserve.share(1e6) == 0.15


def test_a_smaller_burst_does_not_shorten_the_memory_of_a_larger():
    reserve = Reserve("auto")
    reserve.observe(0.3, 0.0)
    reserve.observe(0.2, 60.0)
    assert reserve.share(60.0) == pytest.approx(0.375 * 0.5**0.1)


def test_where_a_headroom_costs_work_it_decays_to_nothing():
    reserve = Reserve("auto", least=0.0)
    assert reserve.share(0.0) == 0.15
    assert reserve.share(6000.0) < 0.001


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1e4))))
def test_auto_keeps_its_bounds(bursts):
    reserve, now = Reserve("auto"), 0.0
    for burst, elapsed in bursts:
        now += elapsed
        reserve.observe(burst, now)
        assert min(0.5, burst) <= reserve.share(now) <= 0.5
        assert reserve.share(now) >= 0.15


@given(st.floats(0, 0.9), st.floats(0, 10))
def test_a_fixed_share_is_fixed(share, burst):
    reserve = Reserve(share)
    reserve.observe(burst, 1.0)
    assert reserve.share(1e6) == share


@pytest.mark.parametrize("setting", [-0.1, 1.0, 1.5, math.nan, math.inf, True, "0.2", "automatic", None])
def test_bad_reserves(setting):
    with pytest.raises(ValueError, match="interactive reserve"):
        Reserve(setting)


@settings(deadline=None)
@given(st.floats(0.01, 0.9), st.floats(0.1, 30.0))
def test_bulk_that_gets_only_what_it_is_owed_gets_its_share(share, cost):
    owed, now, got = BulkMinShare(share), 0.0, 0.0
    while now < 100.0:
        now += owed.time_until(cost, now)
        assert owed.time_until(cost, now) == 0
        owed.spend(cost, now, owed=True)
        got += cost
    assert got == pytest.approx(share * now, abs=cost + share)


def test_bulk_that_gets_its_share_anyhow_is_owed_nothing():
    owed = BulkMinShare(0.2)
    for second in range(100):
        owed.spend(0.5, float(second), owed=False)
    assert owed.time_until(0.1, 100.0) == pytest.approx(0.1 / 0.2 - 1.0, abs=0.51)
    assert owed.time_until(0.1, 100.0) <= 0.5, "room that was used is no debt"


def test_no_share_is_never_owed():
    owed = BulkMinShare(0.0)
    assert not owed
    assert owed.time_until(0.1, 1e9) == math.inf


@pytest.mark.parametrize("share", [-0.1, 1.0, math.nan, True])
def test_bad_shares(share):
    with pytest.raises(ValueError, match="bulk share"):
        BulkMinShare(share)
