"""The stream of events."""

from __future__ import annotations

import logging

import pytest

from orchestra.observe.events import Event, EventBus
from orchestra.policies.traffic import TrafficClass

EVENT = Event("retried", "call-1", TrafficClass.BULK, 12.5, "one/m", {"attempt": 2, "reason": "429"})


def test_every_subscriber_sees_every_event_until_it_leaves():
    bus, first, second = EventBus(), [], []
    leave = bus.subscribe(first.append)
    bus.subscribe(second.append)
    bus.emit(EVENT)
    leave()
    leave()
    bus.emit(EVENT)
    assert (len(first), len(second)) == (1, 2)


def test_a_subscriber_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture):
    bus, seen = EventBus(), []

    def broken(event: Event) -> None:
        raise RuntimeError("broken subscriber")

    bus.subscribe(broken)
    bus.subscribe(seen.append)
    bus.emit(EVENT)
    assert seen == [EVENT]
    assert "failed on retried" in caplog.text


def test_events_go_to_the_debug_log(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.DEBUG, "orchestra.events"):
        EventBus().emit(EVENT)
    assert caplog.messages == ["retried call=call-1 route=one/m attempt=2 reason=429"]
