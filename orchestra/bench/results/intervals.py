"""Between which bounds a figure would lie if it were measured again. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

__all__ = ["Interval", "draws", "of_draws", "of_rounds", "of_share"]

_DRAWS = 400  # a standard error needs 200 (Efron and Tibshirani, section 6.4)
# Student's t at 0.975 for 1, 2, ... degrees of freedom; beyond them the last serves, which is a little wide
_NORMAL = 1.96
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True, slots=True)
class Interval:
    """``value`` as measured, and 95 % bounds for it; None where too little was measured to know them."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def above_one(self) -> bool:
        """Of a ratio: whether it is shown to be above 1."""
        return self.low is not None and self.low > 1

    @property
    def below_one(self) -> bool:
        """Of a ratio: whether it is shown to be below 1."""
        return self.high is not None and self.high < 1

    def within(self, least: float, most: float) -> Interval:
        """Return it with bounds that no value lies beyond."""
        low, high = (None if bound is None else min(most, max(least, bound)) for bound in (self.low, self.high))
        return Interval(self.value, low, high)

    def scaled(self, factor: float) -> Interval:
        """Return it in another unit."""
        low, high = (None if bound is None else bound * factor for bound in (self.low, self.high))
        return Interval(self.value * factor, low, high)


def draws(sizes: Sequence[int], seed: str, count: int = _DRAWS) -> list[list[tuple[int, int]]]:
    """Return ``count`` resamples of calls, each a list of (round, place in it); ``sizes`` are the calls by round.

    The bootstrap in two stages (A. C. Davison and D. V. Hinkley, "Bootstrap Methods and their Application", 1997,
    section 3.8): rounds are drawn first, then as many calls of each. Calls of one round wait behind the same work,
    on a machine that is as quick as it is just then, so that calls drawn from all rounds alike would promise too
    much. Whoever compares two ways takes the same draws for both, which have the same calls: what is hard in a
    call is so in both, and drops out of their ratio (paired).
    """
    lot = random.Random(f"bootstrap {seed}")
    found = []
    for _ in range(count):
        rounds = [lot.randrange(len(sizes)) for _ in sizes]
        found.append([(one, lot.randrange(sizes[one])) for one in rounds for _ in range(sizes[one])])
    return found


def of_draws(value: float, drawn: Sequence[float], rounds: int) -> Interval:
    """Return ``value`` with the bounds that its resamples give it, of so many rounds.

    Student's interval with the bootstrap's standard error (B. Efron and R. J. Tibshirani, "An Introduction to the
    Bootstrap", 1993, sections 6.2 and 12.2), of the logarithms where all values are above 0. The percentiles of
    the resamples would not do: three rounds that are slower by chance are so in every draw of them. For the same
    reason the error is too small by the root of (rounds - 1) / rounds, and is given that back. One round, or what
    some draw does not know, has no bounds.
    """
    if rounds < 2 or any(map(math.isnan, drawn)):
        return Interval(value)
    if min(value, *drawn) > 0:
        reach = _reach(stdev(map(math.log, drawn)) * math.sqrt(rounds / (rounds - 1)), rounds)
        return Interval(value, value * math.exp(-reach), value * math.exp(reach))
    reach = _reach(stdev(drawn) * math.sqrt(rounds / (rounds - 1)), rounds)
    return Interval(value, value - reach, value + reach)


def of_share(value: float, drawn: Sequence[float], rounds: int, calls: int) -> Interval:
    """Return a share of so many ``calls`` with its bounds, from 0 to 1: as `of_draws` where calls differ.

    Where none or all of them count, so they do in every draw, and the other bound is that of Wilson's score
    interval (E. B. Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", 1927).
    """
    found = of_draws(value, drawn, rounds)
    if found.low is None or 0 < value < 1:
        return found.within(0.0, 1.0)
    reach = _NORMAL**2 / (calls + _NORMAL**2)
    return Interval(value, 1 - reach, 1.0) if value else Interval(value, 0.0, reach)


def of_rounds(values: Sequence[float]) -> Interval:
    """Return the geometric mean of a figure that each round has once, and Student's interval of it.

    Of the logarithms, since what disturbs a machine makes it slower by a factor. One round alone has no bounds.
    The values must be above 0.
    """
    logs = [math.log(value) for value in values]
    mean = fmean(logs)
    if len(logs) < 2:
        return Interval(math.exp(mean))
    reach = _reach(stdev(logs) / math.sqrt(len(logs)), len(logs))
    return Interval(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))


def _reach(error: float, rounds: int) -> float:
    return _STUDENT[min(rounds - 1, len(_STUDENT)) - 1] * error
