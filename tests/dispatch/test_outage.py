"""Why nobody answers, as those are told who wait."""

from __future__ import annotations

from orchestra.dispatch.health import RouteHealth
from orchestra.dispatch.route_table import Target


def test_an_outage_is_when_no_route_may_be_asked_and_says_the_latest_fault_and_the_next_try():
    now = 100.0
    health = RouteHealth(lambda: now)
    first, second = Target("one/m"), Target("two/m")
    assert health.outage() is None, "nobody was asked"
    for fault in ("busy", "busy", "busy", "busy", "connection to one:80 refused"):
        health.failed(first, fault)
    assert health.outage() == ("no answer from one/m (connection to one:80 refused)", 1.0)
    health.answered(second)
    assert health.outage() is None, "another answers"
    for _ in range(5):
        health.failed(second, "timed out")
    assert health.outage() == (
        "no answer from one/m (connection to one:80 refused); no answer from two/m (timed out)",
        1.0,
    )
    now += 1.0
    assert health.try_pass(first, now)
    health.answered(first)
    assert health.outage() is None
