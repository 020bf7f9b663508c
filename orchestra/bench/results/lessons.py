"""What a comparison teaches, in sentences that hold whichever way its figures turn out. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestra.bench.results.comparison import Comparison, Measure
from orchestra.bench.results.intervals import Interval
from orchestra.bench.results.way import Way
from orchestra.durations import format_duration
from orchestra.policies.traffic import TrafficClass

__all__ = ["Lesson", "lessons", "times"]


@dataclass(frozen=True, slots=True)
class Lesson:
    """``about`` is a heading of a few words, ``text`` a few sentences."""

    about: str
    text: str


def lessons(found: Comparison) -> list[Lesson]:
    """Return what batching gives and costs, and what becomes of two kinds of traffic together and apart.

    That one way has more than another is said only where the interval of their ratio excludes 1. Empty without a
    whole round.
    """
    if not found.rounds:
        return []
    return [_batching(found), _company(found), _one_queue(found), _pools(found)]


def times(ratio: Interval | None, rounds: int) -> str:
    """Return a ratio of so many rounds with its bounds: ``1.5 times (1.4 to 1.7)``."""
    if ratio is None:
        return "unknown times"
    told = f"{_short(ratio.value)} times"
    if ratio.low is None or ratio.high is None:
        why = "need a second round" if rounds < 2 else "are not known: too few calls tell it"
        return f"{told} (bounds {why})"
    return f"{told} ({_short(ratio.low)} to {_short(ratio.high)})"


def _batching(found: Comparison) -> Lesson:
    queue = _short(_value(found, Way.ONE_QUEUE, Measure.OUTPUT_SPEED))
    static = _short(_value(found, Way.STATIC, Measure.OUTPUT_SPEED))
    ratio = found.ratio(Measure.OUTPUT_SPEED, Way.ONE_QUEUE, Way.STATIC)
    token = found.alone.get(Measure.TPOT_P50)
    alone = "" if token is None else f"; one call alone gets {_short(1 / token.value)}"
    return Lesson(
        "What batching buys",
        f"With all slots taken, one engine gives {_short(found.full_batch)} output tokens/s in all{alone}. "
        f"Over the whole load, a batch that calls join and leave one by one gives {queue} tokens/s, and batches "
        f"computed to their end give {static}: {times(ratio, found.rounds)} as many"
        + _verdict(ratio, "a slot that is filled again at once pays", "here static batches were the faster ones"),
    )


def _company(found: Comparison) -> Lesson:
    alone = found.alone.get(Measure.TPOT_P50)
    ratio = found.beside_alone.get(Measure.TPOT_P50, {}).get(Way.ONE_QUEUE)
    if alone is None or ratio is None:
        return Lesson("What it costs", "The answers are too short to know how long a token takes.")
    queue = format_duration(_value(found, Way.ONE_QUEUE, Measure.TPOT_P50))
    classes = format_duration(_value(found, Way.CLASSES, Measure.TPOT_P50))
    return Lesson(
        "What it costs",
        f"A token of an interactive answer takes {format_duration(alone.value)} alone, and {queue} in the company "
        f"of one queue (medians): {times(ratio, found.rounds)} as long"
        + _verdict(ratio, "a step computes for all who share it", "here company did not make it slower")
        + f" With classes it takes {classes}.",
    )


def _one_queue(found: Comparison) -> Lesson:
    first = found.ratio(Measure.TTFT_P50, Way.ONE_QUEUE, Way.CLASSES)
    bulk = found.ratio(Measure.BULK_SPEED, Way.CLASSES, Way.ONE_QUEUE)
    queue = format_duration(_value(found, Way.ONE_QUEUE, Measure.TTFT_P50))
    classes = format_duration(_value(found, Way.CLASSES, Measure.TTFT_P50))
    return Lesson(
        "Why keep the two kinds apart",
        f"The first token of an interactive call takes {queue} in one queue, and {classes} with classes "
        f"(medians): {times(first, found.rounds)} as long"
        + _verdict(first, "there it waits behind work that has time", "here the queue was the better place for it")
        + f" Bulk's output with classes is {times(bulk, found.rounds)} that in one queue"
        + _verdict(bulk, "here classes cost it nothing", "that is what it pays"),
    )


def _pools(found: Comparison) -> Lesson:
    bulk = found.ratio(Measure.BULK_SPEED, Way.POOLS, Way.CLASSES)
    first = found.ratio(Measure.TTFT_P50, Way.POOLS, Way.CLASSES)
    people, work = (f"{found.idle[traffic]:.0%}" for traffic in (TrafficClass.INTERACTIVE, TrafficClass.BULK))
    return Lesson(
        "What two pools lose",
        f"Bulk's output on half of the machine is {times(bulk, found.rounds)} that on all of it with classes"
        + _verdict(bulk, "here the halves lose it nothing", "a half lends the other nothing")
        + f" The interactive half has no call for {people} of the time, the bulk half for {work}. The first token "
        f"of an interactive call takes {times(first, found.rounds)} as long in its pool as with classes"
        + _verdict(first, "classes are the better place for it", "the pool is the better place for it"),
    )


def _verdict(ratio: Interval | None, above: str, below: str) -> str:
    """Return the end of the sentence: what a ratio shows, where it shows anything."""
    if ratio is None or ratio.low is None:
        return "."
    return f"; {above}." if ratio.above_one else f"; {below}." if ratio.below_one else "; no difference is shown."


def _value(found: Comparison, way: Way, measure: Measure) -> float:
    return found.figures[way][measure].value


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"
