"""Percentiles of what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["ENOUGH_FOR_P95", "Quantiles", "percentile"]

ENOUGH_FOR_P95 = 20
"""With fewer, no value at all lies above the 95th percentile but the largest."""


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of them lie, interpolated linearly. Raises ValueError for none."""
    if not values:
        raise ValueError("there is no percentile of nothing")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of ``count`` values: the median, what 95 and 99 of a hundred do not exceed, and the mean."""

    p50: float
    p95: float
    p99: float
    mean: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Quantiles | None:
        """Return None where there is no value."""
        ordered = sorted(values)
        if not ordered:
            return None
        p50, p95, p99 = (percentile(ordered, share) for share in (0.5, 0.95, 0.99))
        return cls(p50, p95, p99, sum(ordered) / len(ordered), len(ordered))
