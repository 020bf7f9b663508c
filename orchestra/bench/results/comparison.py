"""From what became of the same calls in several ways to what tells the ways apart. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import TypeVar

from orchestra.bench.results.intervals import Interval, draws, of_draws, of_rounds, of_share
from orchestra.bench.results.measurement import Measurement
from orchestra.bench.results.quantiles import percentile
from orchestra.bench.results.slo import Slo
from orchestra.bench.results.way import Way
from orchestra.policies.traffic import TrafficClass

__all__ = ["Comparison", "Measure", "compare"]


class Measure(StrEnum):
    """What is compared. Times in seconds; of interactive calls but for the last three.

    ``KEPT``: the share of the calls that kept the SLO; ``GOODPUT``: those calls, a second, while calls came.
    ``BULK_SPEED``: bulk's output tokens a second, until its last answer. ``OUTPUT_SPEED``: all output tokens a
    second, until the last answer of all; ``DRAIN``: how long that took from the start.
    """

    TTFT_P50 = "ttft_p50"
    TTFT_P95 = "ttft_p95"
    TPOT_P50 = "tpot_p50"
    TPOT_P95 = "tpot_p95"
    KEPT = "kept"
    GOODPUT = "goodput"
    BULK_SPEED = "bulk_tokens_per_s"
    OUTPUT_SPEED = "output_tokens_per_s"
    DRAIN = "drain"

    @property
    def more_is_better(self) -> bool:
        return self in (Measure.KEPT, Measure.GOODPUT, Measure.BULK_SPEED, Measure.OUTPUT_SPEED)


_OF_CALLS: dict[Measure, tuple[str, float | None]] = {  # of what which share is not above it, or its mean
    Measure.TTFT_P50: ("ttft", 0.5),
    Measure.TTFT_P95: ("ttft", 0.95),
    Measure.TPOT_P50: ("tpot", 0.5),
    Measure.TPOT_P95: ("tpot", 0.95),
    Measure.KEPT: ("kept", None),
}
_OF_ROUNDS = (Measure.BULK_SPEED, Measure.OUTPUT_SPEED, Measure.DRAIN)

_Ratios = Mapping[Way, Mapping[Way, Interval]]
_Sample = tuple[float, list[float]]
"""A measure of all calls, and of each draw of them; nan where no call tells it."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Comparison:
    """``rounds`` whole rounds of ``calls`` interactive calls in all, through each way.

    ``figures`` are the measures of each way; one that nobody knows is left out. ``ratios`` are those of one way to
    another, by measure, and pair the same calls of the same rounds. ``alone`` are the times of interactive calls
    with nobody beside them, and ``beside_alone`` what they are times those in each way. ``full_batch`` is the
    output in tokens a second while all slots of one engine are taken. ``idle`` is the share of the time until the
    last answer in which the half of each class had no call, of `Way.POOLS`.
    """

    rounds: int
    calls: int
    figures: Mapping[Way, Mapping[Measure, Interval]]
    ratios: Mapping[Measure, _Ratios]
    alone: Mapping[Measure, Interval]
    beside_alone: Mapping[Measure, Mapping[Way, Interval]]
    full_batch: float
    idle: Mapping[TrafficClass, float]

    def ratio(self, measure: Measure, one: Way, other: Way) -> Interval | None:
        """Return how many times as much one way has as the other; None where that is not known."""
        return self.ratios.get(measure, {}).get(one, {}).get(other)

    def order(self, measure: Measure) -> list[tuple[Way, bool]]:
        """Return the ways, the best first, each with whether it is shown to be better than the next."""
        found = [way for way in Way if measure in self.figures.get(way, {})]
        found.sort(key=lambda way: self.figures[way][measure].value, reverse=measure.more_is_better)
        told = []
        for way, after in itertools.zip_longest(found, found[1:]):
            ratio = None if after is None else self.ratio(measure, way, after)
            shown = ratio is not None and (ratio.above_one if measure.more_is_better else ratio.below_one)
            told.append((way, shown))
        return told


@dataclass(frozen=True, slots=True)
class _Times:
    """What counts of an interactive call; nan where it has no such time."""

    ttft: float
    tpot: float
    kept: float


def compare(
    rounds: Sequence[Mapping[Way, Sequence[Measurement]]],
    alone: Sequence[Measurement],
    *,
    slo: Slo,
    span: float,
    full_batch: float,
    seed: int = 0,
) -> Comparison:
    """Return what tells the ways apart, of one round at least. All its calls, and those ``alone``, were answered.

    ``span`` is for how many seconds interactive calls came in each round; ``seed`` is that of the bootstrap.
    """
    people = {way: [[_times(call, slo) for call in _people(one[way])] for one in rounds] for way in Way}
    sizes = [len(one) for one in people[Way.CLASSES]]
    together, apart = draws(sizes, str(seed)), draws([1] * len(alone), f"{seed} alone")
    by_itself = [[_times(call, slo)] for call in alone]
    figures: dict[Way, dict[Measure, Interval]] = {way: {} for way in Way}
    ratios: dict[Measure, _Ratios] = {}
    told_alone: dict[Measure, Interval] = {}
    beside_alone: dict[Measure, dict[Way, Interval]] = {}

    def quotient(above: _Sample, below: _Sample) -> Interval | None:
        if not below[0] or 0 in below[1]:
            return None
        return of_draws(above[0] / below[0], [a / b for a, b in zip(above[1], below[1], strict=True)], len(rounds))

    for measure in _OF_CALLS:
        base = _sample(measure, by_itself, apart)
        samples = {way: _sample(measure, people[way], together) for way in Way}
        known = {way: sample for way, sample in samples.items() if not math.isnan(sample[0])}
        is_share = measure is Measure.KEPT
        for way, sample in known.items():
            found = of_share(*sample, len(rounds), sum(sizes)) if is_share else of_draws(*sample, len(rounds))
            figures[way][measure] = found
        ratios[measure] = _pairs(known, quotient)
        if not math.isnan(base[0]):
            by_call = len(alone)  # each is a round of its own
            told_alone[measure] = of_share(*base, by_call, by_call) if is_share else of_draws(*base, by_call)
            beside = {way: quotient(sample, base) for way, sample in known.items()}
            beside_alone[measure] = {way: ratio for way, ratio in beside.items() if ratio is not None}
    offered = sum(sizes) / (len(rounds) * span)
    for one in figures.values():
        one[Measure.GOODPUT] = one[Measure.KEPT].scaled(offered)
    ratios[Measure.GOODPUT] = ratios[Measure.KEPT]
    for measure in _OF_ROUNDS:
        each = {way: [_of_round(measure, one[way]) for one in rounds] for way in Way}
        for way, values in each.items():
            figures[way][measure] = of_rounds(values)
        ratios[measure] = _pairs(
            each, lambda one, other: of_rounds([a / b for a, b in zip(one, other, strict=True)])
        )
    idle = {traffic: fmean(_idle(one[Way.POOLS], traffic) for one in rounds) for traffic in TrafficClass}
    return Comparison(len(rounds), sum(sizes), figures, ratios, told_alone, beside_alone, full_batch, idle)


def _pairs(of: Mapping[Way, _T], ratio: Callable[[_T, _T], Interval | None]) -> _Ratios:
    found = {one: {other: ratio(of[one], of[other]) for other in of if other is not one} for one in of}
    return {one: {other: told for other, told in row.items() if told is not None} for one, row in found.items()}


def _people(calls: Iterable[Measurement]) -> list[Measurement]:
    """Return the interactive calls by their instants: each has the same place in every way."""
    found = [call for call in calls if call.traffic is TrafficClass.INTERACTIVE]
    return sorted(found, key=lambda call: call.intended)


def _times(call: Measurement, slo: Slo) -> _Times:
    ttft, tpot = (math.nan if value is None else value for value in (call.ttft, call.tpot))
    return _Times(ttft, tpot, float(slo.met_by(call)))


def _sample(
    measure: Measure, rounds: Sequence[Sequence[_Times]], drawn: Sequence[Sequence[tuple[int, int]]]
) -> _Sample:
    name, share = _OF_CALLS[measure]
    values = [[getattr(call, name) for call in one] for one in rounds]

    def of(calls: Iterable[float]) -> float:
        known = [value for value in calls if not math.isnan(value)]
        if not known:
            return math.nan
        return fmean(known) if share is None else percentile(known, share)

    return of(itertools.chain.from_iterable(values)), [of(values[r][p] for r, p in places) for places in drawn]


def _of_round(measure: Measure, calls: Sequence[Measurement]) -> float:
    last = max(call.end for call in calls)
    if measure is Measure.DRAIN:
        return last
    if measure is Measure.OUTPUT_SPEED:
        return sum(call.output_tokens for call in calls) / last
    bulk = [call for call in calls if call.traffic is TrafficClass.BULK]
    return sum(call.output_tokens for call in bulk) / max(call.end for call in bulk)


def _idle(calls: Sequence[Measurement], traffic: TrafficClass) -> float:
    """Return the share of the time until the last answer in which no call of that class was under way."""
    last = max(call.end for call in calls)
    busy, until = 0.0, 0.0
    for call in sorted((call for call in calls if call.traffic is traffic), key=lambda call: call.intended):
        busy += max(0.0, call.end - max(call.intended, until))
        until = max(until, call.end)
    return 1 - busy / last
