"""When a batch that is being filled is sent off, and when an open one is looked at."""

from __future__ import annotations

import math

__all__ = ["Grouping", "PollPace"]

_GROWTH = 1.5


class Grouping:
    """The batch that awaited calls are gathered into: one object a batch.

    It is sent off ``window`` seconds after the last arrival, ``window_max`` after the first, or when it is full.
    Nobody who awaits knows that more calls will come; they come in bursts, and a burst is over when it pauses.
    """

    __slots__ = ("_first", "_last", "_max_bytes", "_max_requests", "_window", "_window_max", "bytes", "count")

    def __init__(self, window: float, window_max: float, *, max_requests: int, max_bytes: int) -> None:
        if not (0 <= window <= window_max and max_requests >= 1 and max_bytes >= 1):
            raise ValueError("a grouping needs 0 <= window <= window_max, and room for one request of one byte")
        self._window = window
        self._window_max = window_max
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._first = self._last = math.inf
        self.count = 0
        self.bytes = 0

    @property
    def full(self) -> bool:
        return self.count >= self._max_requests or self.bytes >= self._max_bytes

    def fits(self, size: int) -> bool:
        """Return whether a line of ``size`` bytes still goes in. What does not fit an empty batch never will."""
        return self.count < self._max_requests and self.bytes + size <= self._max_bytes

    def add(self, now: float, size: int) -> bool:
        """Take in a line and return whether that was the last. Raises ValueError where it does not fit."""
        if not self.fits(size):
            raise ValueError(f"a line of {size} bytes does not fit: ask `fits` first")
        if not self.count:
            self._first = now
        self._last = now
        self.count += 1
        self.bytes += size
        return self.full

    def due_at(self) -> float:
        """Return when it is to be sent off; infinity while it is empty."""
        if self.full:
            return self._last
        return min(self._last + self._window, self._first + self._window_max)


class PollPace:
    """When an open batch is looked at: after ``first`` seconds, then half as long again each time, up to ``most``.

    A status that has changed starts over: a batch changes it a few times in its life, and mostly near its end. A
    failed look is no news, so the pace goes on slowing; the provider's Retry-After is a floor.
    """

    __slots__ = ("_first", "_most", "_status", "_wait")

    def __init__(self, first: float, most: float) -> None:
        if not 0 < first <= most < math.inf:
            raise ValueError("the first wait must be above zero, and no longer than the longest")
        self._first = first
        self._most = most
        self._wait = first
        self._status: str | None = None

    def looked(self, now: float, status: str) -> float:
        """Note what a look told and return the instant of the next."""
        if status != self._status:
            self._status, self._wait = status, self._first
        return self._next(now, 0.0)

    def failed(self, now: float, retry_after: float | None = None) -> float:
        """Note that a look failed and return the instant of the next."""
        return self._next(now, retry_after or 0.0)

    def _next(self, now: float, floor: float) -> float:
        wait, self._wait = self._wait, min(self._most, _GROWTH * self._wait)
        return now + max(wait, floor)
