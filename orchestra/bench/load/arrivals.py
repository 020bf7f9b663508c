"""When calls come: processes of people, or programs, who know nothing of each other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from orchestra.errors import InputError

__all__ = ["Arrivals"]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A process of arrivals, whatever its rate.

    ``poisson``: the gaps are exponential. ``gamma``: their standard deviation is ``variation`` times their mean;
    1 is Poisson again, above it calls come in bursts. ``constant``: every gap is the same.
    """

    kind: Literal["poisson", "gamma", "constant"] = "poisson"
    variation: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Arrivals:
        """Read ``poisson``, ``constant`` or ``gamma:VARIATION``. Raises InputError."""
        kind, _, told = text.strip().partition(":")
        try:
            if kind in ("poisson", "constant") and not told:
                return cls("poisson" if kind == "poisson" else "constant")
            if kind == "gamma" and 0.05 <= (variation := float(told)) <= 20:
                return cls("gamma", variation)
        except ValueError:
            pass
        raise InputError(
            f"{text!r} is no way of arriving; there are poisson, constant and gamma:VARIATION (0.05 to 20; "
            "gamma:3 is bursty)"
        )

    def instants(self, rate: float, draw: random.Random) -> Iterator[float]:
        """Yield the instants at ``rate`` a second, in seconds from the start, without end."""
        at = 0.0
        while True:
            at += self._gap(rate, draw)
            yield at

    def _gap(self, rate: float, draw: random.Random) -> float:
        match self.kind:
            case "constant":
                return 1 / rate
            case "gamma":
                squared = self.variation**2
                return draw.gammavariate(1 / squared, squared / rate)
            case "poisson":
                return draw.expovariate(rate)

    def __str__(self) -> str:
        return f"gamma:{self.variation:g}" if self.kind == "gamma" else self.kind
