"""A limit whose use leaves only when it is old enough: so many in any minute, in any day."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from orchestra.budget.bucket import Bucket, Metric, check_limit

__all__ = ["DAY", "HOUR", "MINUTE", "Past", "Window"]

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0

Past = list[tuple[float, float]]
"""What was spent: in how many seconds it leaves, and how much, the oldest first."""

_SLOTS_A_MINUTE, _SLOTS_A_DAY = 60, 96
_SLACK_SECONDS = 1e-6


class Window(Bucket):
    """So many units in any ``window`` seconds, whenever they begin.

    It keeps what was spent by slots of time, a minute in slots of a second and a day in slots of a quarter of an
    hour, and forgets a slot when its end is a window old. So in every span of that length, wherever a provider
    lets its own begin, no more is spent than the capacity; it is late by a slot at most.

    From an hour on it is a ``hard`` limit: what exceeds its capacity never goes, and a call that is under way
    counts as it is reserved, until its settlement says what it spent then. In a shorter one it goes when nothing
    else is used, as it does from a `Bucket`; and what is reserved is spent at once, as providers that count by the
    minute do when a request arrives, so that a call may take longer than the window.
    """

    __slots__ = ("_past", "_slot", "_spent", "hard", "window")

    def __init__(
        self, metric: Metric, *, capacity: float, window: float, now: float = 0.0, name: str | None = None
    ) -> None:
        if isinstance(window, bool) or not 0 < window < math.inf:
            raise ValueError(f"a window must be a number of seconds, above zero, not {window!r}")
        super().__init__(metric, capacity=capacity, rate=capacity / window, now=now, name=name)
        self.window = window
        self.hard = window >= HOUR
        self._slot = window / (_SLOTS_A_DAY if self.hard else _SLOTS_A_MINUTE)
        self._past: deque[list[float]] = deque()  # [when it leaves, how much], the oldest first
        self._spent = 0.0

    def used(self, now: float) -> float:
        return self._left_by(now) + (self.reserved if self.hard else 0.0)

    def time_until(self, amount: float, floor: float, now: float) -> float:
        """As a bucket's. Nothing is always there, even in debt."""
        if amount <= 0:
            return 0.0
        if self.hard and amount > self.capacity:
            return math.inf
        needed = min(amount + floor, self.capacity)
        return self.time_to_fill(needed - self.capacity + self.used(now), now)

    def least_wait(self, amount: float, now: float) -> float:
        if amount <= 0:
            return 0.0
        if self.hard and amount > self.capacity:
            return math.inf
        spent = self._left_by(now) - (0.0 if self.hard else self.reserved)
        return self.time_to_fill(min(amount, self.capacity) - self.capacity + spent, now)

    def time_to_fill(self, lacking: float, now: float) -> float:
        """Return in how many seconds ``lacking`` has left; infinity where only a settlement can help."""
        lacking -= 1e-9 + 1e-12 * self.capacity  # rounding is nobody's
        if lacking <= 0:
            return 0.0
        for leaves_at, amount in self._past:
            lacking -= amount
            if lacking <= 0:
                return max(0.0, leaves_at - now) + _SLACK_SECONDS
        return math.inf

    def reserve(self, amount: float, now: float) -> None:
        self.reserved += amount
        if not self.hard:
            self._spend(amount, now)

    def settle(self, reserved: float, spent: float, now: float) -> None:
        self.reserved = max(0.0, self.reserved - reserved)
        more = spent if self.hard else spent - reserved
        if more >= 0:
            self._spend(more, now)
        else:
            self._take_back(-more, now)

    def give_back(self, amount: float, now: float) -> None:
        """As a bucket's. Nobody knows here when it was spent: so it comes off what leaves first, which at no later
        instant makes less of the rest than there is."""
        self._left_by(now)
        self._forgo(amount)

    def set_available(self, available: float, now: float) -> None:
        spent = max(0.0, self.capacity - available - (self.reserved if self.hard else 0.0))
        surplus = self._left_by(now) - spent
        if surplus <= 0:
            self._spend(-surplus, now)
        self._forgo(surplus)

    def resize(self, capacity: float, rate: float, now: float) -> None:
        """Change the limit to ``capacity`` in the same window. What is used stays used."""
        check_limit(capacity, capacity / self.window)
        self.capacity = capacity
        self.rate = capacity / self.window

    def past(self, now: float) -> Past:
        """Return what was spent and has not left, for `restore`."""
        self._left_by(now)
        return [(leaves_at - self._at, amount) for leaves_at, amount in self._past]

    def restore(self, past: Iterable[tuple[float, float]], now: float) -> None:
        """Go on from the `past` of an earlier one, as if no time had gone by since."""
        self._at = max(self._at, now)
        self._past = deque([self._at + float(leaves_in), float(amount)] for leaves_in, amount in past)
        self._sum_up()

    def _left_by(self, now: float) -> float:
        """Return how much of what was spent is still in the window at ``now``."""
        if now > self._at:
            self._at = now
        past = self._past
        if past and past[0][0] <= self._at:
            while past and past[0][0] <= self._at:
                past.popleft()
            self._sum_up()
        return self._spent

    def _spend(self, amount: float, now: float) -> None:
        if amount <= 0:
            return
        self._left_by(now)
        leaves_at = (math.floor(self._at / self._slot) + 1) * self._slot + self.window
        past = self._past
        if past and leaves_at <= past[-1][0]:
            past[-1][1] += amount
        else:
            past.append([leaves_at, amount])
        self._spent += amount

    def _take_back(self, amount: float, now: float) -> None:
        """Unspend what was spent last. What has left the window since is worth nothing."""
        self._left_by(now)
        while amount > 0 and self._past:
            part = min(amount, self._past[-1][1])
            amount -= part
            self._past[-1][1] -= part
            if self._past[-1][1] <= 0:
                self._past.pop()
        self._sum_up()

    def _forgo(self, amount: float) -> None:
        """Unspend what leaves first: the rest stays for as long as it was."""
        while amount > 0 and self._past:
            part = min(amount, self._past[0][1])
            amount -= part
            self._past[0][1] -= part
            if self._past[0][1] <= 0:
                self._past.popleft()
        self._sum_up()

    def _sum_up(self) -> None:
        self._spent = math.fsum(amount for _, amount in self._past)
