"""How many calls a second a server takes that does not say.

Asleep until the server first turns a call away; then it finds the rate by cutting it and growing it again along a
cubic that is flat around where it was turned away last (CUBIC, RFC 9438), as the adaptive retry mode of the AWS
SDKs does. Here the curve runs over answers instead of seconds, and in shares of the rate: it finds one call a
minute as well as a thousand a second.
"""

from __future__ import annotations

import math

__all__ = ["SendRate"]

_START = 10.0
"""Calls a second at which it wakes at least: a stray refusal should not slow down whoever hardly calls."""
_DECREASE = 0.8
_RECOVERY_SECONDS = 5.0
_RECOVERY_ANSWERS = 10.0
"""After a cut the rate is back where it was after so many answers, or what comes in so many seconds."""
_PROBING = 3.0
"""How many times as slowly it then feels its way beyond: what a server has saved up hides that it is too fast."""
_OUTAGE_SECONDS = 10.0
"""Where nothing has succeeded for so long it is no rate that is exceeded, and going slower does not help."""
_SAMPLE_SECONDS = 0.5
_SAMPLE_WEIGHT = 0.8


class SendRate:
    """A rate in calls a second; infinity while it is asleep.

    A throttled call cuts it, once an episode: ``cuts`` counts the episodes, and a call that was let go before the
    last cut says nothing about the rate in force now. It is cut from the rate at which calls really go, if that is
    less, and grows only while it is used: never beyond twice that.
    """

    __slots__ = ("_answered_at", "_answers", "_count", "_counted_from", "_measured", "_top", "cuts", "rate")

    def __init__(self, now: float = 0.0) -> None:
        self.rate = math.inf
        self.cuts = 0
        self._top = math.inf
        self._answers = 0
        self._answered_at = now
        self._measured = 0.0
        self._count = 0
        self._counted_from = now

    @property
    def awake(self) -> bool:
        return self.rate < math.inf

    def sent(self, now: float) -> None:
        """Count a call that is let go."""
        self._count += 1
        if now - self._counted_from >= _SAMPLE_SECONDS:
            sample = self._count / (now - self._counted_from)
            self._measured += _SAMPLE_WEIGHT * (sample - self._measured)
            self._count, self._counted_from = 0, now

    def measured(self, now: float) -> float:
        """Return at what rate calls went lately."""
        return max(self._measured, self._count / max(now - self._counted_from, _SAMPLE_SECONDS))

    def is_used(self, now: float) -> bool:
        """Return whether calls go about as fast as they may."""
        return self.measured(now) >= 0.9 * self.rate

    def answered(self, now: float) -> None:
        """Note that a call was answered with success."""
        self._answered_at = now
        if not self.awake:
            return
        self._answers += 1
        recovery = max(_RECOVERY_ANSWERS, _RECOVERY_SECONDS * self._top)
        shape = (self._answers - recovery) / recovery
        if shape > 0:
            shape /= _PROBING
        curve = self._top * (1 + (1 - _DECREASE) * shape**3)
        self.rate = max(self.rate, min(curve, 2 * self.measured(now)))

    def throttled(self, cuts: int, now: float) -> bool:
        """Note that a call was turned away that was let go after ``cuts`` cuts. Return whether it cut the rate."""
        if cuts < self.cuts or now - self._answered_at > _OUTAGE_SECONDS:
            return False
        least = self.rate / 2 if self.awake else _START
        rate = min(self.rate, max(least, self.measured(now)))
        # Turned away below where it was last time: others have come, so leave them room.
        self._top = rate if rate >= self._top else rate * (1 + _DECREASE) / 2
        self.rate = rate * _DECREASE
        self._answers = 0
        self.cuts += 1
        return True
