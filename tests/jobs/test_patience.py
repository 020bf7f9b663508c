"""Patience and progress: both pure, both in made-up time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.jobs.progress.progress import Progress, RateMeter
from orchestra.jobs.sending.patience import Patience


def test_pauses_double_and_a_success_ends_them() -> None:
    patience = Patience(limit=100, first_pause=1, longest_pause=4)
    now, pauses = 10.0, []
    for _ in range(4):
        assert patience.fault(now)
        pauses.append(patience.pause(now))
        now += pauses[-1]
        assert patience.pause(now) == 0
        assert patience.trying
    assert pauses == [1, 2, 4, 4]
    patience.success()
    assert not patience.trying
    assert patience.fault(now)
    assert patience.pause(now) == 1


def test_faults_of_calls_sent_before_the_pause_do_not_lengthen_it() -> None:
    patience = Patience()
    for _ in range(256):
        assert patience.fault(5.0)
    assert patience.pause(5.0) == 1
    assert patience.pause(5.5) == 0.5


def test_the_providers_wish_is_a_floor() -> None:
    patience = Patience(limit=60)
    assert patience.fault(0.0, 20.0)
    assert patience.pause(0.0) == 20
    assert patience.fault(0.0, 5.0)
    assert patience.pause(0.0) == 20
    assert not Patience(limit=60).fault(0.0, 3600.0)


@given(st.floats(1, 1000), st.floats(0.1, 5), st.floats(5, 60))
def test_runs_out_within_the_limit(limit: float, first: float, longest: float) -> None:
    patience = Patience(limit=limit, first_pause=first, longest_pause=longest)
    now = 0.0
    while patience.fault(now):
        now += patience.pause(now)
        assert now <= limit
    assert now + longest > limit


def test_rate_is_that_of_the_last_window() -> None:
    meter = RateMeter(100.0, window=10)
    assert meter.rate(100.0) is None
    assert meter.rate(101.0) is None
    for second in range(1, 31):
        meter.add(100.0 + second, 2)
    assert meter.rate(130.0) == pytest.approx(2.0)
    for second in range(31, 61):
        meter.add(100.0 + second, 8)
    assert meter.rate(160.0) == pytest.approx(8.0)
    assert meter.rate(180.0) == pytest.approx(8 * 1 / 21, rel=1.5), "a rate without events falls"


def test_a_rate_of_few_events_promises_no_end() -> None:
    meter = RateMeter(0.0)
    for second in (2.0, 4.0, 6.0, 8.0):
        meter.add(second, 1)
    assert meter.rate(8.0) == pytest.approx(0.5)
    assert meter.seconds_for(10, 8.0) is None
    meter.add(10.0, 1)
    assert meter.seconds_for(10, 10.0) == pytest.approx(20.0)
    assert "1.2 lines/min" in str(Progress(10, 3, 0, 0, 0, whole=True, rate=0.02))


def test_rate_costs_no_memory() -> None:
    meter = RateMeter(0.0, window=10)
    for event in range(100_000):
        meter.add(event / 1000, 1)
    assert len(meter._marks) < 300
    assert meter.rate(100.0) == pytest.approx(1000, rel=0.05)


def test_progress_says_itself() -> None:
    progress = Progress(10, 3, 1, 0, 0, whole=True, rate=2.0, seconds_left=3.0)
    assert str(progress) == "4 of 10 lines, 1 failed, 2.0 lines/s, about 3.0s left"
    assert not progress.ended
    assert str(Progress(4, 4, 0, 0, 0, whole=False)) == "4 of 4 lines, not all read yet"
    assert str(Progress(0, 0, 0, 0, 0, whole=False)) == "reading the requests"
    assert Progress(4, 4, 0, 0, 0, whole=True).ended
