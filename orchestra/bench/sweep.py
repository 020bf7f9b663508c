"""Which rate is tried next on the way to saturation. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Tried", "first_rate", "next_rate"]

_MOST_DOUBLINGS = 14
_CLOSE_ENOUGH = 1.3
"""The edge is known where the lowest bad rate is at most so many times the highest good one."""


def first_rate(seconds: float) -> float:
    """Return where to start, from how long one call took by itself: half of one call at a time, rounded."""
    rate = 0.505 / max(seconds, 1e-3)  # what is a hair below a round rate is meant
    unit = 10.0 ** math.floor(math.log10(rate))
    return max(step * unit for step in (1.0, 2.0, 5.0) if step * unit <= rate)


@dataclass(frozen=True, slots=True)
class Tried:
    """A rate that was measured: whether it was ``good``, and whether the target was ``saturated``."""

    rate: float
    good: bool
    saturated: bool


def next_rate(tried: Sequence[Tried], first: float) -> float | None:
    """Return the next rate, or None where the edge is known.

    Rates are doubled until the target is saturated, then halved while none is good, and then the span between the
    highest good rate below every bad one and the lowest bad one is halved, geometrically. A saturated rate is bad.
    """
    if not tried:
        return first
    if not any(one.saturated for one in tried):
        highest = max(one.rate for one in tried)
        return _rounded(2 * highest) if highest < first * 2**_MOST_DOUBLINGS else None
    bad = min(one.rate for one in tried if one.saturated or not one.good)
    good = max((one.rate for one in tried if one.rate < bad), default=None)
    if good is None:
        return _rounded(bad / 2) if bad > first / 2**_MOST_DOUBLINGS else None
    return None if bad / good <= _CLOSE_ENOUGH else _rounded(math.sqrt(good * bad))


def _rounded(rate: float) -> float:
    """Return a rate that reads well, to three digits."""
    return float(f"{rate:.3g}")
