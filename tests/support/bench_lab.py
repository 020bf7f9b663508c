"""A target whose laws are known, to measure in virtual time what can be computed by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import anyio

from orchestra.bench.load.arrivals import Arrivals
from orchestra.bench.load.target import Answer
from orchestra.bench.load.workload import Mix, Request, Shape
from orchestra.bench.results.figures import RateFigures, Window, figures_of
from orchestra.bench.results.measurement import Ended, Measurement
from orchestra.bench.results.slo import Slo
from orchestra.lengths import Lengths
from orchestra.policies.traffic import TrafficClass

__all__ = ["BUSY", "Listed", "QueueTarget", "measured", "mix", "point"]

BUSY = Window(10.0, 20.0)


@dataclass(slots=True)
class QueueTarget:
    """``servers`` at once, in turn; an answer takes ``first`` seconds, and ``gap`` for each token after the first.

    ``errors`` are raised for the calls of these numbers, after ``first`` seconds.
    """

    servers: int = 1
    first: float = 0.1
    gap: float = 0.0
    errors: dict[int, Exception] = field(default_factory=dict)
    told: bool = True
    name: str = "queue"
    asked: list[Request] = field(default_factory=list)
    _free: anyio.Semaphore | None = None

    async def ask(self, request: Request, came: Callable[[], None]) -> Answer:
        self.asked.append(request)
        if self._free is None:
            self._free = anyio.Semaphore(self.servers)
        async with self._free:
            await anyio.sleep(self.first)
            if request.number in self.errors:
                raise self.errors[request.number]
            came()
            for _ in range(request.output_tokens - 1):
                await anyio.sleep(self.gap)
                came()
        return Answer(request.prompt_tokens, request.output_tokens, 0, self.told, "queue/m")

    def tell(self, error: Exception) -> str:
        return str(error)


@dataclass(frozen=True, slots=True)
class Listed:
    """A load of these calls, whatever the rate."""

    calls: Sequence[Request]

    @property
    def has_interactive(self) -> bool:
        return any(call.traffic is TrafficClass.INTERACTIVE for call in self.calls)

    def requests(self, rate: float) -> Iterator[Request]:
        return iter(self.calls)

    def describe(self) -> dict[str, str]:
        return {"calls": str(len(self.calls))}


def mix(*, arrivals: str = "constant", output: str = "1", bulk_share: float = 0.0, seed: int = 0) -> Mix:
    shape = Shape(Lengths.parse("8"), Lengths.parse(output))
    return Mix(shape, shape, bulk_share, Arrivals.parse(arrivals), seed)


def measured(at: float, seconds: float = 1.0, *, ttft: float | None = None, **more: object) -> Measurement:
    """A call that was answered in two pieces of one token each."""
    first = at + (seconds / 2 if ttft is None else ttft)
    call = Measurement(
        TrafficClass.INTERACTIVE, at, at, at + seconds, Ended.ANSWERED, (first, at + seconds), 10, 2, None, None
    )
    return replace(call, **more)  # type: ignore[arg-type]


def point(rate: float, seconds: float, *, slo: Slo | None = None, growing: float = 0.0) -> RateFigures:
    """The figures of a rate at which every call took so long, and ``growing`` seconds more for each second."""
    count = max(1, round(20 * rate))
    calls = [
        measured(number / rate, seconds + growing * number / rate, ttft=seconds / 2) for number in range(count)
    ]
    return figures_of(calls, rate, BUSY, slo=slo)
