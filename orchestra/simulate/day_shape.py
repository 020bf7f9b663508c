"""How a rate of calls goes over a day."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache

from orchestra.errors import InputError

__all__ = ["DayShape"]

_HOUR = 3600.0
_OFFICE = (1, 1, 1, 1, 1, 2, 4, 8, 14, 18, 20, 18, 15, 17, 20, 20, 18, 14, 9, 6, 4, 3, 2, 1)
"""Relative rates of an application that people use at work, in one time zone."""


@dataclass(frozen=True, slots=True)
class DayShape:
    """24 relative rates, one an hour; their mean over the day is the rate itself. ``text``: how it was written."""

    weights: tuple[float, ...]
    text: str

    @classmethod
    def parse(cls, text: str) -> DayShape:
        """Read ``flat``, ``office``, or 24 numbers separated by commas. Raises InputError."""
        match text.strip():
            case "flat":
                return cls((1.0,) * 24, "flat")
            case "office":
                return cls(tuple(float(weight) for weight in _OFFICE), "office")
        try:
            weights = tuple(float(part) for part in text.split(","))
        except ValueError:
            weights = ()
        if len(weights) != 24 or not all(0 <= one < math.inf for one in weights) or not sum(weights):
            raise InputError(
                f"{text[:60]!r} is no shape of a day: write flat, office, or 24 relative rates by hour: 1,1,2,..."
            )
        return cls(weights, text.strip())

    def instant(self, at: float) -> float:
        """Return when of a day what would come ``at`` a second of it, were the rate the same all the time.

        Arrivals of an even rate become those of this shape: the time change theorem of point processes (Daley and
        Vere-Jones, 2003, "An Introduction to the Theory of Point Processes", theorem 7.4.I).
        """
        days, rest = divmod(at, 24 * _HOUR)
        reached = _reached(self.weights)
        hour = min(bisect_right(reached, rest), 24) - 1
        width = reached[hour + 1] - reached[hour]
        within = min(1.0, (rest - reached[hour]) / width) if width else 1.0
        return days * 24 * _HOUR + (hour + within) * _HOUR


@lru_cache(maxsize=8)
def _reached(weights: tuple[float, ...]) -> tuple[float, ...]:
    """Return how much of the day's calls have come when each hour begins, in seconds of the mean rate."""
    total = sum(weights)
    return (0.0, *itertools.accumulate(24 * _HOUR * weight / total for weight in weights))
