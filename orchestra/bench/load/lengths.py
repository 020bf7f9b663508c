"""How long prompts and answers are."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Literal

from orchestra.errors import InputError

__all__ = ["Lengths"]

LONGEST = 1_000_000


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths in tokens, from ``low`` to ``high``.

    ``constant``: always ``low``. ``uniform``: each length is as likely. ``lognormal``: around ``median``, with the
    long tail of real texts; ``sigma`` is the standard deviation of the logarithm, and what falls outside the
    bounds is moved to them.
    """

    kind: Literal["constant", "uniform", "lognormal"]
    low: int
    high: int
    median: float = 0.0
    sigma: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """Read ``128``, ``uniform:LOW:HIGH`` or ``lognormal:MEDIAN:SIGMA[:MOST]``. Raises InputError."""
        match text.strip().split(":"):
            case [length] if length.isdecimal():
                found = cls("constant", int(length), int(length))
            case ["uniform", least, most] if least.isdecimal() and most.isdecimal():
                found = cls("uniform", int(least), int(most))
            case ["lognormal", median, sigma, *bound] if len(bound) <= 1 and all(map(str.isdecimal, bound)):
                high = int(bound[0]) if bound else LONGEST
                found = cls("lognormal", 1, high, _number(median, text), _number(sigma, text))
            case _:
                raise _no_lengths(text)
        if found.kind == "lognormal" and not (1 <= found.median <= found.high and 0 <= found.sigma <= 5):
            raise _no_lengths(text)
        if not 1 <= found.low <= found.high <= LONGEST:
            raise _no_lengths(text)
        return found

    def draw(self, draw: random.Random) -> int:
        """Return one length."""
        match self.kind:
            case "constant":
                return self.low
            case "uniform":
                return draw.randint(self.low, self.high)
            case "lognormal":
                length = round(draw.lognormvariate(math.log(self.median), self.sigma))
                return min(self.high, max(self.low, length))

    def __str__(self) -> str:
        match self.kind:
            case "constant":
                return str(self.low)
            case "uniform":
                return f"uniform:{self.low}:{self.high}"
            case "lognormal":
                most = "" if self.high == LONGEST else f":{self.high}"
                return f"lognormal:{self.median:g}:{self.sigma:g}{most}"


def _number(told: str, text: str) -> float:
    try:
        return float(told)
    except ValueError:
        raise _no_lengths(text) from None


def _no_lengths(text: str) -> InputError:
    return InputError(
        f"{text!r} is no distribution of lengths; write 128, uniform:64:256, or lognormal:128:0.8:1024 "
        "(median, sigma of the logarithm, and the most, which may be left out)"
    )
