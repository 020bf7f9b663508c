"""One dimension of a limit."""

from __future__ import annotations

import math
from typing import Literal

__all__ = ["Bucket", "Metric", "check_limit"]

Metric = Literal["requests", "tokens", "input_tokens", "output_tokens", "usd", "concurrency"]

_SLACK_SECONDS = 1e-6
"""A microsecond of refill is nobody's: it keeps rounding from putting an instant off for ever."""


class Bucket:
    """What one metric may take: ``capacity`` at once, refilled continuously at ``rate`` units a second.

    A bucket that does not refill (rate 0) is a stock: what is reserved comes back only when it is settled, as the
    slots of a concurrency limit do. A capacity of infinity limits nothing, and counts.

    What is used is the sum of outstanding reservations and of what was spent and has not refilled yet. It may
    exceed the capacity (debt) by an oversize reservation or by a settlement above what was reserved.

    ``name`` tells it from others of its metric in the same pool. What is used of a `Window` leaves only when it is
    ``window`` seconds old; here that is zero. A ``hard`` limit never lets go a call of more than its capacity.

    Instants are float seconds of any clock that does not run backwards; one that does is taken to stand still.
    """

    __slots__ = ("_at", "_used", "capacity", "metric", "name", "rate", "reserved")

    window: float = 0.0
    hard: bool = False

    def __init__(
        self,
        metric: Metric,
        *,
        capacity: float,
        rate: float = 0.0,
        now: float = 0.0,
        name: str | None = None,
    ) -> None:
        check_limit(capacity, rate)
        self.metric: Metric = metric
        self.name: str = name or metric
        self.capacity = capacity
        self.rate = rate
        self.reserved = 0.0
        self._used = 0.0
        self._at = now if rate else math.inf  # nothing ever refills a stock

    def used(self, now: float) -> float:
        """Return how much is used at ``now``."""
        if now > self._at:
            self._refill(now)
        return self._used

    def available(self, now: float) -> float:
        """Return how much is left at ``now``; below zero in debt."""
        return self.capacity - self.used(now)

    def time_until(self, amount: float, floor: float, now: float) -> float:
        """Return in how many seconds ``amount`` can be taken so that ``floor`` stays, if nothing else changes.

        Zero if at once; infinity where only a settlement can help. More than the bucket can ever hold waits until
        a bucket that refills is full, and then goes into debt.
        """
        if now > self._at:
            self._refill(now)
        beyond = amount + floor - self.capacity
        if beyond > 0 and (self.rate or amount <= self.capacity):
            beyond = 0.0
        lacking = beyond + self._used
        return self.time_to_fill(lacking, now) if lacking > 0 else 0.0

    def least_wait(self, amount: float, now: float) -> float:
        """Return the shortest wait conceivable: as `time_until`, if all that is outstanding came back at once.

        Infinity means never.
        """
        if now > self._at:
            self._refill(now)
        needed = min(amount, self.capacity) if self.rate else amount
        return self.time_to_fill(needed - self.capacity + self._used - self.reserved, now)

    def is_known(self, now: float) -> bool:
        """Return whether what is left is more than a guess."""
        return True

    def used_up_for(self, amount: float, now: float) -> float:
        """Return for how many seconds a ``hard`` limit has too little left for ``amount``; zero where it has, or
        nobody knows."""
        return self.time_until(amount, 0.0, now) if self.hard else 0.0

    def time_to_fill(self, lacking: float, now: float) -> float:
        """Return in how many seconds ``lacking`` more is there, if nothing else changes; infinity if never."""
        if lacking <= self.rate * _SLACK_SECONDS + 1e-9:
            return 0.0
        return lacking / self.rate if self.rate else math.inf

    def reserve(self, amount: float, now: float) -> None:
        """Take ``amount`` until it is settled. Does not ask whether it is there: that is `time_until`."""
        if now > self._at:
            self._refill(now)
        self._used += amount
        self.reserved += amount

    def settle(self, reserved: float, spent: float, now: float) -> None:
        """End a reservation: ``spent`` of it stays used, or more than it."""
        self.reserved -= reserved
        if spent != reserved:
            used = self.used(now) + spent - reserved
            self._used = used if used > 0 else 0.0

    def give_back(self, amount: float, now: float) -> None:
        """Make good ``amount`` that was spent and, as is known only now, was not. It must not have left since."""
        self.settle(0.0, -amount, now)

    def set_available(self, available: float, now: float) -> None:
        """Put right how much is left, as far as it fits. What is reserved stays reserved."""
        used = self.capacity - available
        self._used = used if used > 0 else 0.0
        self._at = max(self._at, now)

    def resize(self, capacity: float, rate: float, now: float) -> None:
        """Change the limit. What was there stays, as far as it fits; slots in use stay in use.

        A limit that refills never gains tokens by being raised: the greater refill brings them.
        """
        check_limit(capacity, rate)
        used = self.used(now)
        if rate and self.rate:
            used = max(0.0, used + capacity - self.capacity)
        if bool(rate) != bool(self.rate):
            self._at = now if rate else math.inf
        self._used = used
        self.capacity = capacity
        self.rate = rate

    def _refill(self, now: float) -> None:
        used = self._used - (now - self._at) * self.rate
        self._used = used if used > 0 else 0.0
        self._at = now


def check_limit(capacity: float, rate: float) -> None:
    """Raise ValueError where there can be no such limit."""
    if isinstance(capacity, bool) or not capacity > 0:
        raise ValueError(f"a capacity must be above zero, not {capacity!r}")
    if isinstance(rate, bool) or not 0 <= rate < math.inf:
        raise ValueError(f"a rate must be a number of units a second, zero or above, not {rate!r}")
    if rate and capacity == math.inf:
        raise ValueError("what refills must have a finite capacity")
