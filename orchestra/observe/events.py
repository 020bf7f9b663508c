"""One stream of typed events about everything decided: the ground for logs, metrics, and status.

An event holds names, numbers and reasons. It never holds a key, a prompt, or an answer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from orchestra.policies.traffic import TrafficClass

__all__ = ["Event", "EventBus", "EventKind"]

EventKind = Literal[
    "admitted",  # the budget let an attempt go
    "sent",  # its request is on the wire
    "first_byte",  # a streamed answer shows its first content
    "retried",  # an attempt failed and the call tries the same route again
    "fell_back",  # an attempt failed and the call takes another route
    "refused",  # the budget did not let the call go
    "paused",  # a provider says that an account is spent
    "settled",  # an answer is complete and its usage accounted for
    "interrupted",  # a stream broke, or was given up, after content had been shown
    "failed",  # the call has no answer, or an error for one
    "passed_through",  # nobody meters this call: its host is not configured
]

_log = logging.getLogger("orchestra.events")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a call, at the instant ``at`` of the monotonic clock."""

    kind: EventKind
    call: str
    traffic: TrafficClass
    at: float
    route: str = ""
    detail: Mapping[str, float | int | str] = field(default_factory=dict)


class EventBus:
    """Hands every event to all subscribers, and to the logger ``orchestra.events`` at level DEBUG.

    A subscriber runs in whatever thread the event arose in, must be quick, and must not block; what it raises is
    logged and goes no further. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribers: tuple[Callable[[Event], None], ...] = ()

    def subscribe(self, subscriber: Callable[[Event], None]) -> Callable[[], None]:
        """Call ``subscriber`` with every event from now on. Returns the function that ends it."""
        with self._lock:
            self._subscribers = (*self._subscribers, subscriber)

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers = tuple(one for one in self._subscribers if one is not subscriber)

        return unsubscribe

    def emit(self, event: Event) -> None:
        if _log.isEnabledFor(logging.DEBUG):
            detail = " ".join(f"{name}={value}" for name, value in event.detail.items())
            _log.debug("%s call=%s route=%s %s", event.kind, event.call, event.route or "-", detail)
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:
                _log.exception("a subscriber failed on %s", event.kind)
