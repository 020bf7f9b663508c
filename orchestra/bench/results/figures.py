"""From what became of each call to the figures of a rate. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestra.bench.results.measurement import Ended, Measurement
from orchestra.bench.results.occupancy import occupancy
from orchestra.bench.results.quantiles import Quantiles, percentile
from orchestra.bench.results.slo import Slo
from orchestra.policies.traffic import TrafficClass

__all__ = ["ClassFigures", "RateFigures", "Window", "figures_of"]

_BINS = 60
_GROWTH = 0.1
_REASONS = 3
_FIRST = 20  # calls, from whose times it is known how long a load takes to fill its target
_ENOUGH = 0.25  # of the window, in which the target has filled up: only there a queue that grows is seen
_LATE = 0.05
_TIMED = (Ended.ANSWERED, Ended.UNFINISHED)


@dataclass(frozen=True, slots=True)
class Window:
    """The steady state, in seconds from the start of the load: what came in it counts."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def __contains__(self, at: float) -> bool:
        return self.start <= at < self.end


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """The calls of one class that were to be sent in the window, and their latencies in seconds.

    ``met`` of ``calls`` kept the SLO (None without one). Calls that were refused or failed have no latency; those
    that were unfinished took until nobody waited any longer, at least, and count as that. ``at_once`` had several
    tokens in one piece, so that their TPOT is not known. ``over`` are the bounds of the SLO that are too short for
    the share of the calls that it names: each with what that share of them did not exceed.
    """

    calls: int
    answered: int
    refused: int
    failed: int
    unfinished: int
    met: int | None
    ttft: Quantiles | None
    tpot: Quantiles | None
    gap: Quantiles | None
    e2e: Quantiles | None
    at_once: int = 0
    over: tuple[tuple[str, float], ...] = ()

    @property
    def attainment(self) -> float | None:
        """The share of the calls that kept the SLO."""
        return None if self.met is None or not self.calls else self.met / self.calls


@dataclass(frozen=True, slots=True)
class RateFigures:
    """What a rate came to.

    ``rate`` is what was asked for, ``offered`` what came of it in the window. ``answered_per_s`` and
    ``output_tokens_per_s`` count what arrived in the window, whenever it was asked for; ``goodput`` counts the
    calls of the window that kept the SLO, a second. ``depth`` is (seconds, interactive, bulk): the calls that
    waited or were being answered, over the whole load; ``depth_mean`` is their mean in the window. ``drain`` is
    how long the last of them took after the window. ``lag_p99`` is how late the generator itself was.
    ``usd_per_million_tokens`` counts those in and out, and is None where nobody knows a price.
    ``filled`` is when the first calls had an answer: before it, more and more are under way, whatever the target.
    ``cached`` is the share of the prompts' tokens that the target had already, None where it tells no tokens.
    ``began`` is when the first call came. ``whole`` is False where the load was cut short: so were its unfinished
    calls, and whether the target keeps up is not told.
    """

    rate: float
    window: Window
    offered: float
    answered_per_s: float
    output_tokens_per_s: float
    goodput: float | None
    depth: tuple[tuple[float, float, float], ...]
    depth_mean: float
    drain: float
    lag_p99: float
    usd_per_million_tokens: float | None
    saturated: bool
    classes: dict[TrafficClass, ClassFigures]
    reasons: tuple[tuple[str, int], ...] = ()
    began: float = 0.0
    filled: float = 0.0
    cached: float | None = None
    whole: bool = True

    @property
    def calls(self) -> int:
        return sum(one.calls for one in self.classes.values())

    @property
    def judged(self) -> ClassFigures:
        """The class whose latencies say how good the service is: interactive, where there is such a call."""
        return self.classes.get(TrafficClass.INTERACTIVE) or self.classes[TrafficClass.BULK]

    @property
    def attainment(self) -> float | None:
        """The share of the interactive calls that kept the SLO; None where there was none, of either."""
        people = self.classes.get(TrafficClass.INTERACTIVE)
        return None if people is None else people.attainment

    @property
    def filling(self) -> bool:
        """Whether the target was only filling up in so much of the window that its throughput is too low there."""
        since = max(self.window.start, self.began)  # before the first call there is nothing to fill it with
        return not self.saturated and self.filled - since > _GROWTH * self.window.seconds

    @property
    def unjudged(self) -> bool:
        """Whether nobody knows if it keeps up: the target filled up late in the window, or never answered."""
        full = _full(self.window, self.filled).seconds
        return not self.saturated and (self.silent or full < _ENOUGH * self.window.seconds)

    @property
    def silent(self) -> bool:
        """Whether no call of the window had any end yet when nobody waited any longer."""
        return all(one.unfinished == one.calls for one in self.classes.values())

    @property
    def late(self) -> bool:
        """Whether the generator itself was so late that the target is not to blame for what took long."""
        return self.lag_p99 > _LATE

    def keeps(self, slo: Slo) -> bool:
        """Return whether the SLO holds at this rate, and the target keeps up with it. Without an interactive call
        nobody knows, and it does not."""
        return not self.saturated and self.attainment is not None and self.attainment >= slo.share


@dataclass(frozen=True, slots=True)
class _Stay:
    at: float
    seconds: float
    interactive: int
    bulk: int


def figures_of(
    calls: Sequence[Measurement],
    rate: float,
    window: Window,
    *,
    slo: Slo | None = None,
    dollars_per_hour: float | None = None,
    whole: bool = True,
) -> RateFigures:
    """Return the figures of one load.

    ``dollars_per_hour`` is what the target's machine costs; without it calls are priced one by one. ``whole`` is
    False where the load was cut short. Raises ValueError where no call was to be sent in the window.
    """
    counted = [call for call in calls if call.intended in window]
    if not counted:
        raise ValueError("no call was to be sent in the window")
    end = max([window.end, *(call.end for call in calls)])
    stays = [_stay(call) for call in calls]
    classes = {
        traffic: _class_figures(those, slo)
        for traffic in TrafficClass
        if (those := [call for call in counted if call.traffic is traffic])
    }
    arrived = sum(call.ended is Ended.ANSWERED and call.end in window for call in calls)
    output = sum(call.output_within(window.start, window.end) for call in calls)
    lags = Quantiles.of(max(0.0, call.sent - call.intended) for call in counted)
    reasons = Counter(call.reason for call in counted if call.reason is not None)
    met = [one.met for one in classes.values() if one.met is not None]
    prompts = sum(call.prompt_tokens for call in counted)
    filled = _filled(calls)
    return RateFigures(
        rate=rate,
        window=window,
        offered=len(counted) / window.seconds,
        answered_per_s=arrived / window.seconds,
        output_tokens_per_s=output / window.seconds,
        goodput=sum(met) / window.seconds if slo is not None else None,
        depth=tuple(occupancy(stays, end, _BINS)),
        depth_mean=_depth(calls, window.start, window.end),
        drain=max(0.0, end - window.end),
        lag_p99=0.0 if lags is None else lags.p99,
        usd_per_million_tokens=_dollars(calls, counted, window, dollars_per_hour),
        saturated=whole and _saturated(calls, counted, window, filled),
        classes=classes,
        reasons=tuple(reasons.most_common(_REASONS)),
        began=min(call.intended for call in calls),
        filled=filled,
        cached=sum(call.cached_tokens for call in counted) / prompts if prompts else None,
        whole=whole,
    )


def _stay(call: Measurement) -> _Stay:
    is_bulk = call.traffic is TrafficClass.BULK
    return _Stay(call.intended, call.e2e, interactive=int(not is_bulk), bulk=int(is_bulk))


def _class_figures(calls: Sequence[Measurement], slo: Slo | None) -> ClassFigures:
    ends = Counter(call.ended for call in calls)
    timed = [call for call in calls if call.ended in _TIMED]
    ttft, e2e = list(_first_tokens(timed)), [call.e2e for call in timed]
    tpot = [each for call in timed if (each := call.tpot) is not None]
    over: list[tuple[str, float]] = []
    if slo is not None and calls[0].traffic is TrafficClass.INTERACTIVE:
        bounds = (("TTFT", slo.ttft, ttft), ("TPOT", slo.tpot, tpot), ("end to end", slo.e2e, e2e))
        for name, bound, values in bounds:
            if bound is not None and values and (found := percentile(values, slo.share)) > bound:
                over.append((name, found))
    return ClassFigures(
        calls=len(calls),
        answered=ends[Ended.ANSWERED],
        refused=ends[Ended.REFUSED],
        failed=ends[Ended.FAILED],
        unfinished=ends[Ended.UNFINISHED],
        met=None if slo is None else sum(map(slo.met_by, calls)),
        ttft=Quantiles.of(ttft),
        tpot=Quantiles.of(tpot),
        gap=Quantiles.of(gap for call in timed for gap in call.gaps),
        e2e=Quantiles.of(e2e),
        at_once=sum(call.came_at_once for call in calls),
        over=tuple(over),
    )


def _first_tokens(calls: Sequence[Measurement]) -> Iterator[float]:
    for call in calls:
        if call.ttft is not None:
            yield call.ttft
        elif call.ended is Ended.UNFINISHED:
            yield call.e2e


def _depth(calls: Sequence[Measurement], start: float, end: float) -> float:
    return sum(call.overlap(start, end) for call in calls) / (end - start)


def _filled(calls: Sequence[Measurement]) -> float:
    """Return from when on as many calls end as come, if the target keeps up: after as long as a call takes.

    Until then more and more are under way however fast the target is. Only the first calls tell: where a queue
    grows, those after them take longer and longer.
    """
    first = sorted((call for call in calls if call.ended in _TIMED), key=lambda call: call.intended)[:_FIRST]
    times = Quantiles.of(call.e2e for call in first)
    return 0.0 if times is None else first[0].intended + times.p95


def _full(window: Window, filled: float) -> Window:
    """Return the part of the window in which the target has filled up; empty where there is none."""
    return Window(min(max(window.start, filled), window.end), window.end)


def _saturated(
    calls: Sequence[Measurement], counted: Sequence[Measurement], window: Window, filled: float
) -> bool:
    """Return whether calls came faster than they were answered.

    Two signs: more than a tenth of them had no answer; or the number under way grew by more than a tenth of those
    that came, and by more than chance moves it (two standard deviations, as if it were Poisson's), after the
    target had filled up.
    """
    # who was given up sooner than others are answered might have been answered, too; and where none is, who knows
    answered = Quantiles.of(call.e2e for call in calls if call.ended is Ended.ANSWERED)
    patience = math.inf if answered is None else answered.p95
    known = [call for call in counted if call.ended is not Ended.UNFINISHED or call.e2e >= patience]
    unanswered = sum(call.ended is not Ended.ANSWERED for call in known)
    if unanswered > _GROWTH * len(known):
        return True
    full = _full(window, filled)
    if full.seconds < _ENOUGH * window.seconds:
        return False
    quarter = full.seconds / 4
    first = _depth(calls, full.start, full.start + quarter)
    last = _depth(calls, full.end - quarter, full.end)
    growth = last - first
    came = sum(call.intended in full for call in counted) * 0.75  # between the middles of the two quarters
    return growth > _GROWTH * came and growth > 2 * math.sqrt(first + 1)


def _dollars(
    calls: Sequence[Measurement],
    counted: Sequence[Measurement],
    window: Window,
    dollars_per_hour: float | None,
) -> float | None:
    if dollars_per_hour is not None:  # of whatever was read and written in the window, whenever it was asked for
        spent = dollars_per_hour * window.seconds / 3600
        output = sum(call.output_within(window.start, window.end) for call in calls)
        read = sum(call.prompt_tokens for call in calls if call.chunks and call.chunks[0] in window)
        return spent / (output + read) * 1e6 if output + read else None
    priced = [call for call in counted if call.usd is not None]
    tokens = sum(call.prompt_tokens + call.output_tokens for call in priced)
    return sum(call.usd or 0.0 for call in priced) / tokens * 1e6 if tokens else None
