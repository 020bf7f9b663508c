"""What keeps retries a small share of all traffic, so that they do not make an outage worse.

Source: the retry budget of Twitter's Finagle (20 % of requests plus 10 a second), with its defaults.
"""

from __future__ import annotations

__all__ = ["RetryBudget"]


class RetryBudget:
    """A bucket of retries: each new call puts in ``ratio``, time puts in ``per_second``, a retry takes one.

    Holds ``capacity`` at most, and starts full. Times are seconds on the caller's clock.
    """

    def __init__(self, *, ratio: float = 0.2, per_second: float = 10.0, capacity: float = 100.0) -> None:
        if not (ratio >= 0 and per_second > 0 and capacity >= 1):
            raise ValueError("a retry budget needs ratio >= 0, per_second > 0 and capacity >= 1")
        self._ratio = ratio
        self._per_second = per_second
        self._capacity = capacity
        self._tokens = capacity
        self._at: float | None = None

    def deposit(self, now: float) -> None:
        """Count one new call."""
        self._refill(now)
        self._tokens = min(self._capacity, self._tokens + self._ratio)

    def take(self, now: float) -> bool:
        """Take one retry if there is one, and return whether there was."""
        self._refill(now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def reserve(self, now: float) -> float:
        """Take one retry, if need be ahead of its time, and return the seconds to wait before using it."""
        self._refill(now)
        self._tokens -= 1
        return max(0.0, -self._tokens / self._per_second)

    def _refill(self, now: float) -> None:
        if self._at is not None and now > self._at:
            self._tokens = min(self._capacity, self._tokens + (now - self._at) * self._per_second)
        self._at = now if self._at is None else max(now, self._at)
