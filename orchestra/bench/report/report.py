"""What a load test found, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestra.bench.results.figures import RateFigures
from orchestra.bench.results.operating_point import OperatingPoint
from orchestra.bench.results.quantiles import ENOUGH_FOR_P95
from orchestra.bench.results.slo import Slo

__all__ = ["Report"]

_CACHED = 0.01  # of the prompts' tokens: less is not worth a word
_AT_ONCE = 0.1  # of the answers


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
            cut = [point for point in self.points if not point.whole]
            calls = sum(one.unfinished for point in cut for one in point.classes.values())
            notes.append(
                "Interrupted: these are the figures of what was measured until then."
                + (f" What was cut short, {_rates(cut)}, does not count in the advice." if cut else "")
                + (f" The {calls} calls that were cut with it are not counted as failed." if calls else "")
            )
        if self.counts_pieces:
            notes.append("The target tells no usage: each piece of a stream counts as one token, prompts as none.")
        if silent := [point for point in self.points if point.silent and point.unjudged]:
            notes.append(
                f"At {_rates(silent)} no call had an end when nobody waited any longer, so whether the target "
                "keeps up is not known. Raise --drain, or --seconds."
            )
        if filling := [point for point in self.points if point.filling and point not in silent]:
            unjudged = [point for point in filling if point.unjudged]
            notes.append(
                f"At {_rates(filling)} calls took so long that the target was only filling up at the "
                "beginning of the window: its throughput is higher than these figures"
                + (f", and whether it keeps up is not known at {_rates(unjudged)}" if unjudged else "")
                + f". Raise --warm-up to {math.ceil(max(point.filled for point in filling))} or more."
            )
        if cached := [point for point in self.points if (point.cached or 0.0) > _CACHED]:
            most = max(point.cached or 0.0 for point in cached)
            notes.append(
                f"Up to {most:.0%} of the prompts' tokens were in a cache of the target at {_rates(cached)}: what "
                "stands before each prompt, as a chat template does, is the same in all."
            )
        if late := [point for point in self.points if point.late]:
            worst = max(point.lag_p99 for point in late)
            notes.append(
                f"The generator itself was up to {worst * 1000:.0f} ms late (p99) at {_rates(late)}: this machine "
                "is short of CPU, and latencies there hold part of that."
            )
        if few := [point for point in self.points if 0 < point.judged.calls < ENOUGH_FOR_P95]:
            notes.append(f"Fewer than {ENOUGH_FOR_P95} calls at {_rates(few)}: p95 and p99 are the slowest there.")
        whole = [point for point in self.points if point.whole]
        if left := [point for point in whole if any(one.unfinished for one in point.classes.values())]:
            notes.append(
                f"Not all calls were answered by the end of the drain at {_rates(left)}; they count as taking "
                "until then, at least."
            )
        if at_once := [point for point in self.points if _mostly_at_once(point)]:
            notes.append(
                f"At {_rates(at_once)} many answers came in one piece, as through a proxy that buffers: their "
                "TPOT is not known, and counts as the whole time shared out."
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


def _mostly_at_once(point: RateFigures) -> bool:
    classes = point.classes.values()
    return sum(one.at_once for one in classes) > _AT_ONCE * sum(one.answered for one in classes)


def _rates(points: Sequence[RateFigures]) -> str:
    return ", ".join(f"{point.rate:.3g}/s" for point in points)
