"""Traffic by a few figures: how many calls, of which sizes, and which jobs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from orchestra.bench.load.arrivals import Arrivals
from orchestra.bench.load.workload import Mix, Shape
from orchestra.durations import parse_duration
from orchestra.errors import InputError
from orchestra.policies.traffic import TrafficClass
from orchestra.simulate.clock_time import parse_clock_time
from orchestra.simulate.day_shape import DayShape
from orchestra.simulate.traffic import Ask, Burst, Size, Traffic

__all__ = ["Generated", "PlannedJob"]

_MOST_LINES = 10_000_000


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A durable job of so many ``lines`` that comes at a second of the day, with a deadline in seconds or none."""

    at: float
    lines: int
    deadline: float | None = None

    @classmethod
    def parse(cls, text: str) -> PlannedJob:
        """Read ``02:00:5000`` or, with a deadline, ``02:00:5000:6h``. Raises InputError."""
        try:
            hour, minute, lines, *rest = text.strip().split(":")
            if len(rest) <= 1 and 1 <= int(lines) <= _MOST_LINES:
                deadline = parse_duration(rest[0]) if rest else None
                return cls(parse_clock_time(f"{hour}:{minute}"), int(lines), deadline)
        except ValueError:
            pass
        raise InputError(
            f"{text!r} is no job: write when it comes, how many lines it has and, if it has one, its deadline: "
            "02:00:5000:6h"
        )

    @property
    def name(self) -> str:
        """When it comes, as a name."""
        return f"{int(self.at // 3600):02d}h{int(self.at % 3600 // 60):02d}"


@dataclass(frozen=True, slots=True)
class Generated:
    """``rate`` calls a second on average, all for ``model``, for ``seconds`` from the start of a day.

    ``bulk_share`` of them are bulk, by lot. Interactive calls must be let go within ``patience`` seconds, or are
    refused; None: they wait as long as it takes. ``most_output`` is the bound on answers that all calls name;
    None: as much as each is answered with. The lines of ``jobs`` are as long as other bulk calls.
    """

    model: str
    rate: float
    interactive: Shape
    bulk: Shape
    bulk_share: float = 0.0
    seconds: float = 86_400.0
    shape: DayShape = field(default_factory=lambda: DayShape.parse("flat"))
    arrivals: Arrivals = field(default_factory=Arrivals)
    jobs: Sequence[PlannedJob] = ()
    patience: float | None = 60.0
    most_output: int | None = None
    seed: int = 0

    def traffic(self) -> Traffic:
        """Return the traffic; the same each time. Raises InputError for a job that comes after the end."""
        return Traffic(self._calls(), self._jobs(), self.seconds, about=self._about())

    def _calls(self) -> Iterator[Ask]:
        if not self.rate:
            return
        mix = Mix(self.interactive, self.bulk, self.bulk_share, self.arrivals, self.seed)
        for request in mix.requests(self.rate):
            at = self.shape.instant(request.at)
            if at >= self.seconds:
                return
            size = Size(request.prompt_tokens, request.output_tokens, self.most_output or request.output_tokens)
            patience = self.patience if request.traffic is TrafficClass.INTERACTIVE else None
            yield Ask(at, request.traffic, self.model, size, patience)

    def _jobs(self) -> list[Burst]:
        bursts = []
        for number, job in enumerate(self.jobs):
            if job.at >= self.seconds:
                raise InputError(f"the job at {job.name} comes after the end of what is simulated")
            draw = random.Random(f"{self.seed} job {number}")
            sizes = [(self.bulk.prompt.draw(draw), self.bulk.output.draw(draw)) for _ in range(job.lines)]
            lines = [Size(prompt, output, self.most_output or output) for prompt, output in sizes]
            bursts.append(Burst(f"{number + 1}-{job.name}", job.at, self.model, lines, job.deadline))
        return bursts

    def _about(self) -> dict[str, str]:
        told = {"calls": f"{self.rate:g} a second, {self.arrivals}, {self.shape.text} over the day"}
        if self.rate and self.bulk_share < 1:
            told["interactive"] = str(self.interactive)
        if self.jobs or (self.rate and self.bulk_share > 0):
            told["bulk"] = f"{self.bulk_share:.0%} of the calls, {self.bulk}"
        return {**told, "seed": str(self.seed)}
