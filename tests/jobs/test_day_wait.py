"""How long lines wait for the limits of a day, when several kinds of them share one."""

from __future__ import annotations

from orchestra.budget import DayLimit
from orchestra.jobs.progress.day_wait import DayWaits


def test_lines_that_take_nothing_of_a_limit_do_not_shorten_the_wait_of_those_before() -> None:
    waits, limit = DayWaits(), DayLimit("usd_per_day", 10.0)
    assert waits.add("one", ("m",), [limit], 40, {"usd": 1.0}) == 3.0
    assert waits.add("one", ("m",), [limit], 5, {"usd": 0.0}) == 0.0
    (wait,) = waits.longer_than_a_day()
    assert (wait.days, wait.wanted) == (3.0, 40.0)
