"""What a limit of a day leaves to bulk, and how many days lines need of it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.budget import DayLimit
from orchestra.budget.window import DAY, Window


@pytest.mark.parametrize(
    ("limit", "calls", "each", "before", "days"),
    [
        (DayLimit("requests_per_day", 5.0), 5, 1.0, 0.0, 0),
        (DayLimit("requests_per_day", 5.0), 6, 1.0, 0.0, 1),
        (DayLimit("requests_per_day", 5.0, reserve=0.75), 20, 1.0, 0.0, 4),
        (DayLimit("requests_per_day", 5.0, used=5.0), 5, 1.0, 0.0, 1),
        (DayLimit("requests_per_day", 5.0, used=5.0), 6, 1.0, 0.0, 2),
        (DayLimit("requests_per_day", 5.0), 5, 1.0, 7.0, 2),
        (DayLimit("usd_per_day", 1.0), 10, 0.4, 0.0, 4),
        (DayLimit("usd_per_day", 1.0, reserve=0.5), 2, 0.8, 0.0, 1),
        (DayLimit("tokens_per_day", 10.0), 1, 11.0, 0.0, math.inf),
        (DayLimit("tokens_per_day", 10.0), 0, 11.0, 0.0, 0),
        (DayLimit("usd_per_day", 1.0), 1000, 0.0, 0.0, 0),
    ],
)
def test_how_many_days(limit: DayLimit, calls: int, each: float, before: float, days: float) -> None:
    assert limit.days(calls, each, before=before) == days


@given(
    capacity=st.integers(1, 30),
    used=st.integers(0, 30),
    calls=st.integers(1, 100),
    reserve=st.sampled_from([0, 0.15]),
)
def test_a_window_lets_them_in_as_fast(capacity: int, used: int, calls: int, reserve: float) -> None:
    used, floor = min(used, capacity), reserve * capacity
    window = Window("requests", capacity=capacity, window=DAY)
    window.settle(0.0, used, 0.0)
    now = 0.0
    for _ in range(calls):
        now += window.time_until(1.0, floor, now)
        window.settle(0.0, 1.0, now)
    limit = DayLimit("requests_per_day", capacity, used=used, reserve=floor)
    assert limit.days(calls, 1.0) == pytest.approx(now / DAY, abs=0.02 * (1 + now / DAY))
