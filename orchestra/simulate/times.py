"""How long things take: a distribution of durations, and the words that name one."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from statistics import NormalDist

from orchestra.durations import parse_duration
from orchestra.errors import InputError

__all__ = ["Times"]

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Times:
    """A log-normal distribution of seconds around ``median``; ``sigma`` is the standard deviation of the
    logarithm, 0 where it is always the same. ``text`` is how it was written."""

    median: float
    sigma: float = 0.0
    text: str = ""

    @classmethod
    def parse(cls, text: str) -> Times:
        """Read ``400ms``, which it always is, or two percentiles, as ``400ms:p50,2s:p95``. Raises InputError."""
        try:
            found = [_point(part) for part in text.split(",")]
            if len(found) == 1 and found[0][0] is None:
                return cls(found[0][1], 0.0, text.strip())
            (low, shorter), (high, longer) = sorted((deviate, at) for deviate, at in found if deviate is not None)
            if low < high and 0 < shorter <= longer:
                sigma = (math.log(longer) - math.log(shorter)) / (high - low)
                return cls(math.exp(math.log(shorter) - sigma * low), sigma, text.strip())
        except ValueError:
            pass
        raise InputError(f"{text[:60]!r} is no time: write 400ms, or two percentiles as 400ms:p50,2s:p95")

    def draw(self, draw: random.Random) -> float:
        """Return one duration."""
        return self.median * math.exp(draw.normalvariate(0.0, self.sigma)) if self.sigma else self.median

    def __str__(self) -> str:
        return self.text


def _point(part: str) -> tuple[float | None, float]:
    duration, _, percentile = part.strip().partition(":")
    seconds = parse_duration(duration)
    if not percentile:
        return None, seconds
    if not percentile.startswith("p"):
        raise ValueError("no percentile")
    return _NORMAL.inv_cdf(float(percentile[1:]) / 100), seconds
