"""Whether a call that is late is sent a second time.

A few answers take many times as long as the others, for reasons that a second attempt seldom meets again: a queue,
a collection of garbage, a lost packet. Whoever sends those few again after most would have been answered cuts the
tail of the distribution for a small share of extra calls.

Source: J. Dean and L. A. Barroso, "The Tail at Scale" (CACM 56(2), 2013), "hedged requests".
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Hashable

__all__ = ["Hedging", "RecentQuantile"]

_WINDOW = 512
"""Answers of each kind that are remembered: the last ones tell what is usual now."""
_SAVED = 10.0
"""Second attempts that quiet times may save up."""
_KINDS = 1024
"""Kinds of calls that are told apart at once; beyond, the one unheard of for longest is forgotten."""


class RecentQuantile:
    """The value that a share ``q`` of the last ``window`` observations stays below.

    Exact, in O(window) moves of memory and O(log window) comparisons for an observation.
    """

    __slots__ = ("_order", "_q", "_sorted", "_window")

    def __init__(self, q: float, window: int = _WINDOW) -> None:
        if not (0 < q < 1 and window >= 1):
            raise ValueError("a quantile needs 0 < q < 1 and a window of at least 1")
        self._q = q
        self._window = window
        self._order: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._order)

    def observe(self, value: float) -> None:
        """Remember ``value``, and forget the oldest beyond the window."""
        if len(self._order) == self._window:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        self._order.append(value)
        insort(self._sorted, value)

    def value(self) -> float | None:
        """Return the quantile, or None where there are too few observations to tell it."""
        count = len(self._sorted)
        if count * (1 - self._q) < 1 - 1e-9:
            return None
        return self._sorted[min(count - 1, math.ceil(self._q * count - 1e-9))]


class Hedging:
    """Decides on second attempts: when a call is late, and whether one more is within the ``share`` of all calls.

    A call is late when all but ``share`` of those of its kind had been answered: at 0.05 that is the 95th
    percentile. Each call puts ``share`` of a second attempt by, and a second attempt takes a whole one, so that of
    any number of calls from the start on no more than ``share`` are sent twice.

    What kinds of calls are alike (a route; streamed or not) is the caller's to say. Times are seconds.
    """

    def __init__(self, share: float = 0.05, *, window: int = _WINDOW) -> None:
        if not 0 < share <= 0.5:
            raise ValueError(f"the share of calls sent twice must be above 0 and at most 0.5, not {share!r}")
        self._share = share
        self._window = max(window, math.ceil(1 / share))
        self._saved = 0.0
        self._kinds: dict[Hashable, RecentQuantile] = {}

    def enter(self) -> None:
        """Count one call that may be sent twice."""
        self._saved = min(_SAVED, self._saved + self._share)

    def delay(self, kind: Hashable) -> float | None:
        """Return how long after its sending a call of that kind is late; None until enough were answered."""
        known = self._kinds.get(kind)
        return None if known is None else known.value()

    def take(self) -> bool:
        """Take one second attempt if there is one, and return whether there was."""
        if self._saved < 1 - 1e-9:
            return False
        self._saved -= 1
        return True

    def give_back(self) -> None:
        """Return a second attempt that was taken and not sent."""
        self._saved = min(_SAVED, self._saved + 1)

    def observe(self, kind: Hashable, seconds: float, *, answered: bool = True) -> None:
        """Learn that an answer began ``seconds`` after its call was sent, or had not begun when it was given up.

        Those given up count where they were late: without them the slow ones would be missing from what is usual,
        and ever quicker answers would seem late.
        """
        if not answered:
            late = self.delay(kind)
            if late is None or seconds < late:
                return
        known = self._kinds.pop(kind, None)
        if known is None:
            if len(self._kinds) >= _KINDS:
                del self._kinds[next(iter(self._kinds))]
            known = RecentQuantile(1 - self._share, self._window)
        self._kinds[kind] = known  # at the end: heard of just now
        known.observe(seconds)
