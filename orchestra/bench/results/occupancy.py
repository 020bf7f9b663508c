"""How full something was over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Stay", "occupancy"]

_BINS = 240


class Stay(Protocol):
    """From ``at``, for ``seconds``, so many of each class were there."""

    @property
    def at(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    @property
    def interactive(self) -> int: ...
    @property
    def bulk(self) -> int: ...


def occupancy(stays: Sequence[Stay], end: float, bins: int = _BINS) -> list[tuple[float, float, float]]:
    """Return (time, interactive, bulk): the mean over each of ``bins`` equal spans from 0 to ``end``.

    A span in which nothing was there counts as zero for that share of it.
    """
    width = end / bins
    interactive = [0.0] * bins
    bulk = [0.0] * bins
    for stay in stays:
        first = int(stay.at / width)
        last = min(int((stay.at + stay.seconds) / width), bins - 1)
        for index in range(first, last + 1):
            inside = min(stay.at + stay.seconds, (index + 1) * width) - max(stay.at, index * width)
            interactive[index] += stay.interactive * inside / width
            bulk[index] += stay.bulk * inside / width
    return [((index + 0.5) * width, interactive[index], bulk[index]) for index in range(bins)]
