"""Who asks what, and when: the calls of a load test before any is sent."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from orchestra.bench.load.arrivals import Arrivals
from orchestra.lengths import Lengths
from orchestra.policies.traffic import TrafficClass

__all__ = ["Load", "Mix", "Request", "Shape"]


@dataclass(frozen=True, slots=True)
class Request:
    """One call to come: its instant in seconds from the start of the load, and its lengths in tokens.

    ``output_tokens`` is the most that it may be answered with. ``seed`` and ``salt`` make its prompt its own: the
    salt changes the words and nothing else.
    """

    number: int
    at: float
    traffic: TrafficClass
    prompt_tokens: int
    output_tokens: int
    seed: int = 0
    salt: str = ""


class Load(Protocol):
    """What a rate of calls a second becomes."""

    def requests(self, rate: float) -> Iterator[Request]:
        """Yield the calls in the order of their instants; as many as there are, which may be without end."""
        ...

    @property
    def has_interactive(self) -> bool:
        """Whether any call is interactive."""
        ...

    def describe(self) -> dict[str, str]:
        """Return what it is in plain words, for a report."""
        ...


@dataclass(frozen=True, slots=True)
class Shape:
    """The lengths of one class of calls."""

    prompt: Lengths
    output: Lengths

    def __str__(self) -> str:
        return f"prompt {self.prompt}, output {self.output} tokens"


@dataclass(frozen=True, slots=True)
class Mix:
    """Interactive and bulk calls, of which ``bulk_share`` are bulk, each by lot.

    Every rate has the same calls in the same order, only nearer together or further apart: two rates differ by
    the rate and not by their luck.
    """

    interactive: Shape
    bulk: Shape
    bulk_share: float = 0.0
    arrivals: Arrivals = field(default_factory=Arrivals)
    seed: int = 0

    @property
    def has_interactive(self) -> bool:
        return self.bulk_share < 1

    def requests(self, rate: float) -> Iterator[Request]:
        # draws of their own, so that another process of arrivals keeps the lengths
        what = random.Random(f"{self.seed} what")
        instants = self.arrivals.instants(1.0, random.Random(f"{self.seed} when"))
        for number, at in enumerate(instants):
            is_bulk = what.random() < self.bulk_share
            shape = self.bulk if is_bulk else self.interactive
            yield Request(
                number,
                at / rate,
                TrafficClass.BULK if is_bulk else TrafficClass.INTERACTIVE,
                shape.prompt.draw(what),
                shape.output.draw(what),
                self.seed,
            )

    def describe(self) -> dict[str, str]:
        told = {"arrivals": str(self.arrivals), "seed": str(self.seed)}
        if self.bulk_share < 1:
            told["interactive"] = str(self.interactive)
        if self.bulk_share > 0:
            told["bulk"] = f"{self.bulk_share:.0%} of the calls, {self.bulk}"
        return told
