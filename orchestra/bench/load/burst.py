"""A bulk job that comes at once, and people who come meanwhile: the load by which ways to serve are compared."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean

from orchestra.bench.load.arrivals import Arrivals
from orchestra.bench.load.workload import Request, Shape
from orchestra.policies.traffic import TrafficClass

__all__ = ["Burst"]

_SPAN = 0.75  # of the time that the job is to take: nobody comes when it is done
_PEOPLE = 0.25  # of the output tokens are theirs, unless their rate is given
_FEWEST_PEOPLE = 4
_SAMPLE = 400


@dataclass(frozen=True, slots=True)
class Burst:
    """``bulk_calls`` at the start, and ``interactive_calls`` that come over the ``span`` seconds after it.

    Each way gets the very same calls at the same instants, and all of them count: nothing is thrown away to warm
    up, and how long the job takes is told as well. A load of bulk calls that are always under way would let the
    quicker way have more of them.
    """

    interactive: Shape
    bulk: Shape
    interactive_calls: int
    bulk_calls: int
    span: float
    arrivals: Arrivals = field(default_factory=Arrivals)
    seed: int = 0

    @classmethod
    def sized(
        cls,
        interactive: Shape,
        bulk: Shape,
        *,
        tokens_per_s: float,
        seconds: float,
        slots: int,
        rate: float | None = None,
        arrivals: Arrivals | None = None,
        seed: int = 0,
    ) -> Burst:
        """Return a load that an engine of ``tokens_per_s`` output tokens a second needs about ``seconds`` for.

        ``rate`` is the interactive calls a second; without it, they get a quarter of the output. There are as many
        bulk calls as the engine has ``slots``, at least: with fewer, nobody would wait for one.
        """
        span, all_output = _SPAN * seconds, tokens_per_s * seconds
        answer = _mean_output(interactive)
        people = max(_FEWEST_PEOPLE, round(_PEOPLE * all_output / answer if rate is None else rate * span))
        if rate is not None:
            span = people / rate
        calls = max(slots, round((all_output - people * answer) / _mean_output(bulk)))
        return cls(interactive, bulk, people, calls, span, arrivals or Arrivals(), seed)

    @property
    def rate(self) -> float:
        """Interactive calls a second."""
        return self.interactive_calls / self.span

    def requests(self, number: int, salt: str = "") -> list[Request]:
        """Return the calls of round ``number`` by their instants.

        Interactive calls come as a process of that rate does of which it is known how many there are: its instants
        are stretched so that the first that is too many would come at the end of the span. Of a Poisson process,
        that is exactly how they would lie.
        """
        what = random.Random(f"{self.seed} what {number}")
        when = random.Random(f"{self.seed} when {number}")
        instants = list(islice(self.arrivals.instants(1.0, when), self.interactive_calls + 1))
        stretch = self.span / instants[-1]
        kinds = [(0.0, TrafficClass.BULK, self.bulk)] * self.bulk_calls
        people = (min(at * stretch, self.span) for at in instants[:-1])
        kinds += [(at, TrafficClass.INTERACTIVE, self.interactive) for at in people]
        return [
            Request(place, at, traffic, shape.prompt.draw(what), shape.output.draw(what), self.seed, salt)
            for place, (at, traffic, shape) in enumerate(kinds)
        ]

    def describe(self) -> dict[str, str]:
        """Return what it is in plain words, for a report."""
        return {
            "bulk": f"{self.bulk_calls} calls at the start of a round, {self.bulk}",
            "interactive": f"{self.interactive_calls} calls in the {self.span:.1f} s after it, "
            f"{self.rate:.3g} a second, {self.interactive}",
            "arrivals": str(self.arrivals),
            "seed": str(self.seed),
        }


def _mean_output(shape: Shape) -> float:
    draw = random.Random("mean")
    return fmean(shape.output.draw(draw) for _ in range(_SAMPLE))
