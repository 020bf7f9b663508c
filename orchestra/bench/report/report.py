"""What a load test found, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestra.bench.results.figures import RateFigures
from orchestra.bench.results.operating_point import OperatingPoint
from orchestra.bench.results.quantiles import ENOUGH_FOR_P95
from orchestra.bench.results.slo import Slo

__all__ = ["Report"]

_LATE = 0.05


@dataclass(frozen=True, slots=True)
class Report:
    """``settings`` are what was asked for, in plain words. ``started`` is unix time. It holds no secret."""

    target: str
    settings: Mapping[str, str]
    started: float
    slo: Slo | None
    points: Sequence[RateFigures]
    advice: OperatingPoint
    interrupted: bool = False
    counts_pieces: bool = False

    @property
    def notes(self) -> list[str]:
        """What a reader has to know before relying on the figures."""
        notes = []
        if self.interrupted:
            notes.append("Interrupted: these are the figures of what was measured until then.")
        if self.counts_pieces:
            notes.append("The target tells no usage: each piece of a stream counts as one token, prompts as none.")
        if late := [point for point in self.points if point.lag_p99 > _LATE]:
            worst = max(point.lag_p99 for point in late)
            notes.append(
                f"The generator itself was up to {worst * 1000:.0f} ms late (p99) at {_rates(late)}: this machine "
                "is short of CPU, and latencies there hold part of that."
            )
        if few := [point for point in self.points if 0 < point.judged.calls < ENOUGH_FOR_P95]:
            notes.append(f"Fewer than {ENOUGH_FOR_P95} calls at {_rates(few)}: p95 and p99 are the slowest there.")
        if left := [point for point in self.points if any(one.unfinished for one in point.classes.values())]:
            notes.append(
                f"Not all calls were answered by the end of the drain at {_rates(left)}; they count as taking "
                "until then, at least."
            )
        return notes

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON. Times in seconds."""
        told = asdict(self)
        told["points"] = [_plain_point(*pair) for pair in zip(self.points, told["points"], strict=True)]
        return {"format": "orchestra-bench/1", **told, "notes": self.notes}


def _plain_point(point: RateFigures, told: dict[str, Any]) -> dict[str, Any]:
    told["classes"] = {
        traffic.value: {**one, "attainment": point.classes[traffic].attainment}
        for traffic, one in told["classes"].items()
    }
    return told


def _rates(points: Sequence[RateFigures]) -> str:
    return ", ".join(f"{point.rate:.3g}/s" for point in points)
