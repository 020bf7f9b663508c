"""How long texts are: a distribution of lengths in tokens, and the words that name one."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field
from statistics import NormalDist

from orchestra.errors import InputError

__all__ = ["LENGTHS_HELP", "Lengths"]

LENGTHS_HELP = "128, 200:p50,1500:p95, uniform:64:256, or lognormal:128:0.8:1024 (median, sigma, most)"
"""All forms that are read, for a help text."""

_LONGEST = 10_000_000
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths in tokens, from ``low`` to ``high``.

    Without ``points`` each length is as likely. With them it is log-normal, as lengths of texts mostly are:
    ``points`` are pairs of a standard normal deviate and the logarithm of the length there, both rising. Between
    two of them the logarithm goes straight, beyond the outer ones it goes on, and what falls outside the bounds is
    moved to them. ``text`` is how it was written.
    """

    low: int
    high: int
    points: tuple[tuple[float, float], ...] = ()
    text: str = field(kw_only=True, compare=False)

    @classmethod
    def parse(cls, text: str, what: str = "") -> Lengths:
        """Read a length or a distribution, ``what`` being a word for an error, as prompt.

        ``128`` is always that. ``200:p50,1500:p95`` is log-normal through the two percentiles; with more it
        changes its width at each. ``uniform:LOW:HIGH`` is as likely at each length.
        ``lognormal:MEDIAN:SIGMA[:MOST]`` has the standard deviation SIGMA of the logarithm. Raises InputError.
        """
        text = text.strip()
        try:
            match text.split(":"):
                case ["uniform", least, most]:
                    return cls(*_rising(least, most), text=text)
                case ["lognormal", median, sigma, *bound] if len(bound) <= 1:
                    high = _tokens(bound[0]) if bound else _LONGEST
                    return cls(1, high, _around(median, sigma, high), text=text)
                case ["uniform" | "lognormal" as kind, *_]:
                    raise ValueError(f"{kind} has other parts")
                case _:
                    return cls._of_percentiles(text)
        except ValueError as error:
            whose = f"the {what} lengths" if what else "the lengths"
            raise InputError(f"{whose} {text[:80]!r} cannot be read: {error}. Write {LENGTHS_HELP}") from None

    @classmethod
    def _of_percentiles(cls, text: str) -> Lengths:
        found = []
        for part in text.split(","):
            length, _, percentile = part.strip().partition(":")
            tokens = _tokens(length)
            found.append((tokens, _deviate(percentile.strip()) if percentile else None))
        if len(found) == 1:  # one length, of whatever percentile, is all that is known
            return cls(found[0][0], found[0][0], text=text)
        known = sorted((deviate, tokens) for tokens, deviate in found if deviate is not None)
        if len(known) < len(found):
            raise ValueError("each of several lengths needs its percentile")
        for (low, shorter), (high, longer) in itertools.pairwise(known):
            if low == high or shorter > longer:
                raise ValueError("a higher percentile must have the greater length")
        return cls(1, _LONGEST, tuple((deviate, math.log(tokens)) for deviate, tokens in known), text=text)

    def draw(self, draw: random.Random) -> int:
        """Return one length."""
        if self.points:
            return self._at_deviate(draw.normalvariate(0, 1))
        return self.low if self.low == self.high else draw.randint(self.low, self.high)

    def at(self, share: float) -> int:
        """Return the length that a ``share`` of all does not exceed, above 0 and below 1."""
        if self.points:
            return self._at_deviate(_NORMAL.inv_cdf(share))
        return min(self.high, self.low + int(share * (self.high - self.low + 1)))

    def _at_deviate(self, deviate: float) -> int:
        points = self.points
        above = next((i for i, (x, _) in enumerate(points) if i and x >= deviate), len(points) - 1)
        (x0, y0), (x1, y1) = points[above - 1 : above + 1]
        y = y0 + (y1 - y0) * (deviate - x0) / (x1 - x0)
        return min(self.high, max(self.low, round(math.exp(min(y, math.log(_LONGEST))))))

    def __str__(self) -> str:
        return self.text


def _around(median: str, sigma: str, high: int) -> tuple[tuple[float, float], ...]:
    middle, width = _number(median), _number(sigma)
    if not 1 <= middle <= high:
        raise ValueError("its median must be from 1 to its most")
    if not 0 <= width <= 5:
        raise ValueError("its sigma must be from 0 to 5")
    return ((0.0, math.log(middle)), (1.0, math.log(middle) + width))


def _rising(least: str, most: str) -> tuple[int, int]:
    low, high = _tokens(least), _tokens(most)
    if low > high:
        raise ValueError("the least is above the most")
    return low, high


def _tokens(text: str) -> int:
    digits = text.strip().replace("_", "")
    whole = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 10 else 0
    if not 1 <= whole <= _LONGEST:
        raise ValueError(f"{text.strip()[:40]!r} is no number of tokens")
    return whole


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is no number") from None


def _deviate(percentile: str) -> float:
    share = _number(percentile.removeprefix("p")) / 100 if percentile.startswith("p") else math.nan
    if not 0 < share < 1:
        raise ValueError(f"{percentile[:40]!r} is no percentile from p0.1 to p99.9")
    return _NORMAL.inv_cdf(share)
