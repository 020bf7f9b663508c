"""How many calls at once a server bears that does not say.

Additive increase, multiplicative decrease, with a slow start, as TCP finds its congestion window (Jacobson, 1988;
RFC 5681), and as there the limit grows only while it is really used (RFC 7661). A round is the time from when a
call is let go until it, or one let go later, is answered.
"""

from __future__ import annotations

import math

__all__ = ["ConcurrencyLimit"]


class ConcurrencyLimit:
    """A limit on calls at once that is found by trying.

    It starts at ``start`` and doubles with each clean round in which it was reached, until the first cut; from
    then on it grows by one a round: until then it is ``guessing``. A throttled call cuts it to ``decrease`` of
    itself, once an episode: a call that was let go before the last cut says nothing about the limit in force now.
    ``round`` counts the rounds: whoever lets a call go notes it, and says it again with what became of the call.
    Started at infinity it limits nothing.
    """

    __slots__ = ("_cut_before", "_decrease", "_peak", "guessing", "limit", "round")

    def __init__(self, start: float = math.inf, *, decrease: float = 0.7) -> None:
        if not start >= 1:
            raise ValueError(f"a concurrency limit starts at one call or more, not {start!r}")
        if not 0 < decrease < 1:
            raise ValueError(f"a decrease is a share between 0 and 1, not {decrease!r}")
        self.limit = float(start)
        self._decrease = decrease
        self.guessing = True
        self.round = 0
        self._cut_before = 0
        self._peak = 0.0

    def departed(self, in_flight: float) -> bool:
        """Note that a call was let go, as the ``in_flight``-th under way, slots that it may not use included.

        Return whether that is as many as may go.
        """
        if in_flight > self._peak:
            self._peak = in_flight
        return in_flight + 1 > self.limit

    def answered(self, departed_in: int, in_flight: float) -> bool:
        """Note that a call that was let go in that round was answered with success, ``in_flight`` being under way.

        Return whether the limit grew.
        """
        if departed_in < self.round:
            return False
        reached = self._peak + 1 > self.limit
        if reached:
            self.limit = self.limit * 2 if self.guessing else self.limit + 1
        self._next_round(in_flight)
        return reached

    def throttled(self, departed_in: int, in_flight: float) -> bool:
        """Note that a call that was let go in that round was turned away because too many were under way.

        Return whether the limit was cut.
        """
        if departed_in < self._cut_before or self.limit == math.inf:
            return False
        self.limit = max(1.0, self.limit * self._decrease)
        self.guessing = False
        self._next_round(in_flight)
        self._cut_before = self.round
        return True

    def lift(self) -> None:
        """Limit nothing any more: what bounds the calls is known."""
        self.limit = math.inf

    def _next_round(self, in_flight: float) -> None:
        self.round += 1
        self._peak = in_flight
