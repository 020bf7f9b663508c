"""What a comparison of ways found, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orchestra.bench.results.comparison import Comparison, Measure
from orchestra.bench.results.lessons import Lesson, lessons
from orchestra.bench.results.quantiles import ENOUGH_FOR_P95
from orchestra.bench.results.slo import Slo
from orchestra.bench.results.way import Way

__all__ = ["MEANING", "ORDERED", "TITLES", "ComparisonReport"]

TITLES = {
    Measure.TTFT_P50: ("TTFT p50, s", 1.0),
    Measure.TTFT_P95: ("TTFT p95, s", 1.0),
    Measure.TPOT_P50: ("TPOT p50, ms", 1000.0),
    Measure.TPOT_P95: ("TPOT p95, ms", 1000.0),
    Measure.KEPT: ("kept SLO, %", 100.0),
    Measure.GOODPUT: ("good calls/s", 1.0),
    Measure.BULK_SPEED: ("bulk tokens/s", 1.0),
    Measure.OUTPUT_SPEED: ("all tokens/s", 1.0),
    Measure.DRAIN: ("drain, s", 1.0),
}
"""What a table calls each measure, and by what its value is multiplied for that."""

ORDERED = (Measure.TTFT_P50, Measure.TTFT_P95, Measure.TPOT_P50, Measure.BULK_SPEED, Measure.OUTPUT_SPEED)
"""The measures whose order of the ways is told; the others follow from them."""

MEANING = {
    Way.ONE_QUEUE: "one engine, first come, first served; calls join and leave the batch one by one",
    Way.STATIC: "the same queue; a batch is computed to its end before the next is taken",
    Way.POOLS: "an engine for interactive calls and one for bulk, each with half of everything",
    Way.CLASSES: "one engine that knows both kinds and serves interactive calls first",
}


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """``settings`` are what was asked for, in plain words. ``started`` is unix time. ``found`` is None where no
    round is whole. ``failure`` is what ended it after that. It holds no secret."""

    target: str
    settings: Mapping[str, str]
    started: float
    slo: Slo | None
    found: Comparison | None
    interrupted: bool = False
    failure: str | None = None

    @property
    def lessons(self) -> list[Lesson]:
        return [] if self.found is None else lessons(self.found)

    @property
    def orders(self) -> list[tuple[str, str]]:
        """The ways by each of some measures, best first: ``classes < two pools ~ static``, where ``~`` stands
        between two that are not shown to differ."""
        found = self.found
        if found is None:
            return []
        return [(TITLES[measure][0], told) for measure in ORDERED if (told := _order(found, measure))]

    @property
    def notes(self) -> list[str]:
        """What a reader has to know before relying on the figures."""
        notes = []
        if self.interrupted:
            notes.append("Interrupted: these are the figures of the rounds that are whole.")
        if self.failure is not None:
            notes.append(f"A round failed: {self.failure}. These are the figures of those before it.")
        if self.found is None:
            return [*notes, "No round is whole, and there is nothing to compare: give it more --minutes."]
        if self.found.rounds == 1:
            notes.append("One round only: nothing has bounds, and no order is shown. Give it more --minutes.")
        elif self.found.rounds == 2:
            notes.append("Two rounds only: bounds are wide. Give it more --minutes.")
        if self.found.calls < ENOUGH_FOR_P95:
            notes.append(f"Fewer than {ENOUGH_FOR_P95} interactive calls a way: p95 is the slowest.")
        return notes

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON. Times in seconds."""
        found = None if self.found is None else asdict(self.found)
        if found is not None and self.found is not None:
            found["ratios"] = [
                {"measure": measure.value, "of": one.value, "to": other.value, **asdict(interval)}
                for measure, ratios in self.found.ratios.items()
                for one, others in ratios.items()
                for other, interval in others.items()
            ]
        return {
            "format": "orchestra-bench-compare/1",
            "target": self.target,
            "settings": dict(self.settings),
            "started": self.started,
            "slo": None if self.slo is None else asdict(self.slo),
            "interrupted": self.interrupted,
            "found": found,
            "orders": dict(self.orders),
            "lessons": {lesson.about: lesson.text for lesson in self.lessons},
            "notes": self.notes,
        }


def _order(found: Comparison, measure: Measure) -> str:
    sign = ">" if measure.more_is_better else "<"
    told = "".join(f"{way} {sign if better else '~'} " for way, better in found.order(measure))
    return told[:-3]  # nothing comes after the last
