"""Where the lines of an input would go, what that would cost, and how long it would take, without asking anybody.

It decides as a run does (`orchestra.policies.diversion.choose`), by what the settings say and earlier batches have
shown. What a run learns on its way, this cannot know.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from orchestra.batches import BatchDesk, BatchRoute
from orchestra.budget import CostRange, estimate
from orchestra.call import Call
from orchestra.dispatch.accounts import Account
from orchestra.dispatch.route_table import Target
from orchestra.jobs.intake.survey import Kind, Survey
from orchestra.jobs.progress.day_wait import DayWait, DayWaits, taken_by
from orchestra.jobs.progress.pace import AllowedPace, Metered, pace_of
from orchestra.policies.diversion import SyncPace, choose
from orchestra.providers import Endpoint

__all__ = ["Forecast", "Way", "forecast"]

_DAY = 86_400.0
_AROUND = 250
"""Bytes that a line grows by in a batch."""
_SPLIT = "a batch gets no more than could still be answered in time if it were late"


@dataclass(frozen=True, slots=True)
class Way:
    """Where lines of one endpoint and model would go, and why.

    ``route`` is the one that they would take first, ``batches`` how many they would fill, 0 where they go by
    themselves. ``cost`` is None where no price is known, and then ``setting`` is what to add. ``seconds`` is how
    long it takes as far as is known, ``at_most`` when such batches are over in any case.
    """

    path: str
    model: str
    lines: int
    route: str
    via: str
    why: str
    batches: int = 0
    cost: CostRange | None = None
    setting: str | None = None
    seconds: float | None = None
    at_most: float | None = None


@dataclass(frozen=True, slots=True)
class Forecast:
    """All ways, in the order of their lines in the input, and the limits of a day that make lines wait."""

    ways: tuple[Way, ...]
    waits: tuple[DayWait, ...] = ()

    @property
    def cost(self) -> CostRange:
        """What is known of the cost; lines of ``unpriced`` ways come on top."""
        return sum((way.cost for way in self.ways if way.cost is not None), start=CostRange(0.0, 0.0))

    @property
    def unpriced(self) -> tuple[Way, ...]:
        """The ways of whose price nothing is known."""
        return tuple(way for way in self.ways if way.cost is None)

    @property
    def seconds(self) -> float | None:
        """How long the slowest way takes; None where one is not known."""
        seconds = [way.seconds for way in self.ways]
        return None if None in seconds else max((each for each in seconds if each is not None), default=None)


def forecast(
    survey: Survey,
    desk: BatchDesk,
    *,
    deadline: float | None,
    p90: Callable[[str], float | None] = lambda outlet: None,
) -> Forecast:
    """Return where the lines would go. ``deadline`` is unix time.

    ``p90`` says how long batches of an outlet took lately: see `BatchLedger.p90`.
    """
    waits = DayWaits()
    kinds = [_Kind(kind, desk, waits) for kind in survey.kinds.values()]
    pace = pace_of([kind.pace for kind in kinds])
    ways: list[Way] = []
    riding = 0
    for kind in kinds:
        found = kind.ways(deadline, desk.wall(), pace, survey.lines - riding, riding, p90)
        riding += sum(way.lines for way in found if way.batches)
        ways += found
    return Forecast(tuple(ways), waits.longer_than_a_day())


class _Sync(NamedTuple):
    """A route that lines take by themselves."""

    account: Account
    endpoint: Endpoint
    model: str


class _Kind:
    def __init__(self, kind: Kind, desk: BatchDesk, waits: DayWaits) -> None:
        self._kind = kind
        self._desk = desk
        self._waits = waits
        self._call = call = Call.originate(kind.path, {"model": kind.model})
        self._first: Target = desk.targets(call)[0]
        self._batches = desk.routes(call)
        self.pace = AllowedPace()
        if (route := self._metered()) is not None:
            for body in kind.samples:
                self.pace.look(route, json.loads(body))

    def _metered(self) -> Metered | None:
        first = self._first
        if self._batches:
            return self._batches[0]
        if first.account is None or first.model is None:
            return None
        return _Sync(first.account, first.account.provider.endpoint(first.path), first.model)

    def ways(
        self,
        deadline: float | None,
        now: float,
        pace: SyncPace,
        waiting: int,
        riding: int,
        p90: Callable[[str], float | None],
    ) -> list[Way]:
        kind = self._kind
        outlets = [route.outlet(p90(f"{route.name}|{route.path}")) for route in self._batches]
        choice = choose(deadline, now, outlets, pace, waiting, riding=riding)
        lines = min(choice.lines, kind.lines)
        if choice.outlet is None or not lines:
            return [self._alone(kind.lines, self._why_alone(choice.why, deadline))]
        route = next(route for route in self._batches if route.name == choice.outlet.name)
        window = max(choice.outlet.hard_expiry or 0.0, choice.window)
        riders = Way(
            kind.path,
            kind.model,
            lines,
            route.name,
            route.form.via,
            choice.why,
            batches=self._count(route, lines),
            cost=self._batch_cost(route, lines),
            setting=_setting(route.account, route.model),
            seconds=_with_days(choice.outlet.duration, self._days_of_riders(route, lines)),
            at_most=window if deadline is None else min(window, deadline - now),
        )
        rest = kind.lines - lines
        return [riders, self._alone(rest, _SPLIT)] if rest else [riders]

    def _why_alone(self, why: str, deadline: float | None) -> str:
        if self._first.local is not None and not self._batches:
            return "answered in this process"
        if not self._batches and deadline is not None:
            return "none of its routes has batches for this endpoint"
        return why

    def _alone(self, lines: int, why: str) -> Way:
        first, kind = self._first, self._kind
        is_local = first.local is not None
        rate = self.pace.lines_per_second()
        return Way(
            kind.path,
            kind.model,
            lines,
            first.name,
            "local" if is_local else "sync",
            why,
            cost=self._sync_cost(lines),
            setting=None if first.account is None else _setting(first.account, first.model or ""),
            seconds=_with_days(None if is_local or not rate else lines / rate, self._days_alone(lines)),
        )

    def _days_of_riders(self, route: BatchRoute, lines: int) -> float:
        """Return for how many days lines wait before they ride. A batch is no call: it counts in dollars alone."""
        each = taken_by(self._kind.samples, route.account, route.endpoint, route.model, factor=route.price_factor)
        counted = each if route.form.is_call else {"usd": each["usd"]}
        return self._days(route.account, route.model, lines, counted)

    def _days_alone(self, lines: int) -> float:
        account, model = self._first.account, self._first.model
        if account is None or model is None:
            return 0.0
        endpoint = account.provider.endpoint(self._first.path)
        return self._days(account, model, lines, taken_by(self._kind.samples, account, endpoint, model))

    def _days(self, account: Account, model: str, lines: int, each: Mapping[str, float]) -> float:
        if (group := account.limits(model)) is None:
            return 0.0
        limits = self._desk.day_limits(account, self._call, model)
        return self._waits.add(account.name, group.models, limits, lines, each)

    def _count(self, route: BatchRoute, lines: int) -> int:
        bytes = lines * (self._kind.size / self._kind.lines + _AROUND)
        return max(math.ceil(lines / route.max_requests), math.ceil(bytes / route.max_bytes))

    def _tokens(self, lines: int) -> tuple[int, int | None]:
        """Return the input tokens of so many lines, and the most of output, as far as it is bounded."""
        kind = self._kind
        share = lines / kind.lines
        return round(kind.input_tokens * share), None if kind.unbounded else round(kind.output_tokens * share)

    def _batch_cost(self, route: BatchRoute, lines: int) -> CostRange | None:
        price = route.account.price(route.model)
        cost = estimate(price, *self._tokens(lines), least_factor=route.price_factor)
        alone = self._sync_cost(lines)  # where they have to leave it in the end
        if cost is None or alone is None or cost.high is None or alone.high is None:
            return cost
        return CostRange(cost.low, max(cost.high, alone.high))

    def _sync_cost(self, lines: int) -> CostRange | None:
        if self._first.account is None:
            return CostRange(0.0, 0.0)  # nobody sends a bill
        return estimate(self._first.account.price(self._first.model or ""), *self._tokens(lines))


def _with_days(seconds: float | None, days: float) -> float | None:
    """Return how long lines take that are let in over so many days; None where some never are."""
    if not days:
        return seconds
    return None if days == math.inf else max(seconds or 0.0, days * _DAY)


def _setting(account: Account, model: str) -> str | None:
    """Return the setting to add where nobody knows what a model costs."""
    return None if account.price(model) is not None else f"[[providers.{account.name}.prices]]"
