"""What became of calls and jobs, counted from their events: of a simulation and of a real program alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestra.observe.call_log import began_at, begins_call
from orchestra.observe.events import Event
from orchestra.policies.traffic import TrafficClass

__all__ = ["ClassTally", "JobTally", "RouteTally", "Tally", "Usage"]

_HOUR = 3600.0


@dataclass(slots=True)
class Usage:
    """What calls took of their account, by the metrics of its limits: each attempt is a request, answered or not.

    ``concurrency`` is in seconds of an attempt. Tokens and ``usd`` are those of answers.
    """

    requests: float = 0.0
    tokens: float = 0.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    usd: float = 0.0
    concurrency: float = 0.0


@dataclass(slots=True)
class RouteTally:
    """What one route answered. ``unpriced`` counts answers of whose cost nothing is known."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    usd: float = 0.0
    unpriced: int = 0
    hours: dict[int, Usage] = field(default_factory=lambda: defaultdict(Usage))


@dataclass(slots=True)
class ClassTally:
    """The calls of a class. Lists are in seconds, in no order.

    ``waits``: of each call that was let go, how long it waited for that: before its first attempt for a route that
    was ready, where `Tally.came` told of it, and over all its attempts in the budget's queue or an engine's.
    ``totals``: of each that was answered, from its beginning to its answer. ``refusals`` are
    calls that were not let go, ``errors`` those that had no answer otherwise, both by reason. ``attempts`` that
    failed, and were made again there or elsewhere, are by reason, too.
    """

    calls: int = 0
    answered: int = 0
    waits: list[float] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class JobTally:
    """A durable job: when it began, and how long it took; ``lines`` and ``seconds`` are None while it goes on."""

    began: float
    time_left: float | None
    model: str | None = None
    lines: int | None = None
    seconds: float | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    is_whole: bool = False


@dataclass(slots=True)
class _UnderWay:
    traffic: TrafficClass
    began: float
    is_heard: bool = False
    waited: float = 0.0
    was_let_go: bool = False
    refused: str | None = None
    sent: dict[int | None, tuple[str, float]] = field(default_factory=dict)
    """Its attempts that go on: by their numbers, the route and when it was sent."""


class Tally:
    """Counts events: subscribe it, or call it with each. ``began`` is the instant that hours are counted from."""

    def __init__(self, began: float = 0.0) -> None:
        self._began = began
        self._under_way: dict[str, _UnderWay] = {}
        self.classes: Mapping[TrafficClass, ClassTally] = {traffic: ClassTally() for traffic in TrafficClass}
        self.routes: dict[str, RouteTally] = defaultdict(RouteTally)
        self.jobs: dict[str, JobTally] = {}

    def unfinished(self, traffic: TrafficClass) -> int:
        """Return how many calls of a class are under way."""
        return sum(call.traffic is traffic for call in self._under_way.values())

    def came(self, call: str, traffic: TrafficClass, at: float) -> None:
        """Note that a call begins: its own events begin only when it has a route that is ready."""
        if call not in self._under_way:
            self._under_way[call] = _UnderWay(traffic, at)
            self.classes[traffic].calls += 1

    def __call__(self, event: Event) -> None:
        if event.job is not None and event.kind in ("job_began", "job_ended"):
            self._job(event, event.job)
            return
        call = self._under_way.get(event.call)
        if call is None:
            if event.kind == "batch_ended" or not begins_call(event):
                return  # of no call, or late words of one that is over
            self.came(event.call, event.traffic, began_at(event))
            call = self._under_way[event.call]
        if not call.is_heard:
            call.is_heard = True
            if event.kind in ("queued", "sent"):
                call.waited += event.at - call.began
        figures = self.classes[call.traffic]
        match event.kind:
            case "admitted":
                call.waited += event.waited or 0.0
                call.was_let_go = True
            case "refused":
                call.waited += event.waited or 0.0
                call.refused = event.reason
            case "sent":
                call.sent[event.attempt] = (event.route, event.at)
                self._hour(event.route, event.at).requests += 1
            case "retried" | "fell_back":
                figures.attempts[event.reason or ""] += 1
                self._hold(call, event.at - (event.waited or 0.0))
            case "settled":
                figures.answered += 1
                figures.totals.append(event.at - call.began)
                self._settled(event)
                self._ended(event, call)
            case "failed":
                reason = event.reason or ""
                (figures.refusals if reason == call.refused else figures.errors)[reason] += 1
                self._ended(event, call)
            case "interrupted" if event.reason == "outrun":
                self._hold(call, event.at, event.attempt)
            case "interrupted":
                figures.errors[event.reason or ""] += 1
                self._ended(event, call)

    def _ended(self, event: Event, call: _UnderWay) -> None:
        self._hold(call, event.at)
        del self._under_way[event.call]
        if call.was_let_go:
            self.classes[call.traffic].waits.append(call.waited)

    def _hold(self, call: _UnderWay, until: float, *attempts: int | None) -> None:
        """Count the time of attempts that are over: of those, or of all."""
        for attempt in attempts or [*call.sent]:
            if (sent := call.sent.pop(attempt, None)) is not None:
                route, since = sent
                self._hour(route, until).concurrency += until - since

    def _hour(self, route: str, at: float) -> Usage:
        return self.routes[route].hours[int((at - self._began) // _HOUR)]

    def _settled(self, event: Event) -> None:
        route = self.routes[event.route]
        route.calls += 1
        route.input_tokens += event.input_tokens or 0
        route.output_tokens += event.output_tokens or 0
        route.cached_tokens += event.cached_tokens or 0
        route.usd += event.usd or 0.0
        route.unpriced += event.usd is None
        used = self._hour(event.route, event.at)
        used.tokens += event.charged_tokens or 0.0
        used.input_tokens += event.input_tokens or 0
        used.output_tokens += event.output_tokens or 0
        used.usd += event.usd or 0.0

    def _job(self, event: Event, name: str) -> None:
        if event.kind == "job_began":
            self.jobs.setdefault(name, JobTally(event.at, event.time_left, event.model))
        elif (job := self.jobs.get(name)) is not None:
            job.lines, job.seconds = event.lines, event.at - job.began
            job.input_tokens, job.output_tokens = event.input_tokens or 0, event.output_tokens or 0
            job.is_whole = event.reason is None
