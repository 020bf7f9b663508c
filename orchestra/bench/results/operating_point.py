"""Where to run: the knee of what was measured, and the rate that a promise allows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from orchestra.bench.results.figures import RateFigures
from orchestra.bench.results.quantiles import ENOUGH_FOR_P95
from orchestra.bench.results.slo import Slo
from orchestra.durations import format_duration

__all__ = ["OperatingPoint", "advise", "knee_of"]

_NOTHING = "No rate was measured to its end, or so that it can be judged."


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """``rate`` is the calls a second that are recommended, None where none can be; ``reason`` says why.

    ``knee`` is the rate beyond which latency grows faster than throughput, ``saturation`` the lowest one that the
    target did not keep up with; None where the rates that were tried do not tell.
    """

    rate: float | None
    reason: str
    knee: float | None = None
    saturation: float | None = None


def knee_of(points: Sequence[RateFigures]) -> RateFigures | None:
    """Return the point with the most throughput per latency.

    This is Kleinrock's power (L. Kleinrock, "Power and Deterministic Rules of Thumb for Probabilistic Problems in
    Computer Communications", ICC 1979): left of its maximum a higher rate costs little time, right of it much. It
    takes three rates; None with fewer, and where the highest power is that of the lowest or the highest rate.
    A rate at which the target was only filling up tells too little throughput, and is left out.
    """
    timed = [point for point in points if _power(point) > 0 and not point.filling]
    timed.sort(key=lambda point: point.rate)
    if len(timed) < 3:
        return None
    best = max(timed, key=_power)
    return None if best is timed[0] or best is timed[-1] else best


def _power(point: RateFigures) -> float:
    e2e = point.judged.e2e
    return point.answered_per_s / e2e.mean if e2e is not None and e2e.mean > 0 else 0.0


def advise(points: Sequence[RateFigures], slo: Slo | None) -> OperatingPoint:
    """Return the operating point, and the reason for it in a sentence.

    With an SLO it is the highest rate up to which every rate that was tried keeps it: one that keeps it beyond one
    that does not was lucky. Without one it is the knee; where that is not known, the highest rate that the target
    kept up with.

    Nothing is told by rates that were cut short, by those that went badly while the generator itself was late, and
    by those that cannot be judged: with an SLO for want of an interactive call, without one while the target was
    still filling up.
    """
    points = sorted((point for point in points if _tells(point, slo)), key=lambda point: point.rate)
    late = [point for point in points if _is_unclear(point, slo)]
    points = [point for point in points if point not in late]
    knee = knee_of(points)
    saturation = next((point.rate for point in points if point.saturated), None)
    rate, reason = _by_slo(points, slo) if slo is not None else _by_shape(points, knee)
    chosen = next((point for point in points if point.rate == rate), None)
    if chosen is not None and chosen.judged.calls < ENOUGH_FOR_P95:
        reason += (
            f" This rests on {chosen.judged.calls} calls, too few for a p95: measure longer (--seconds) "
            "before you rely on it."
        )
    if late:
        reason += (
            f" At {late[0].rate:.3g}/s the generator itself was late: what went badly there may be this machine's "
            "fault, and is not held against the target."
        )
    return OperatingPoint(rate, reason, None if knee is None else knee.rate, saturation)


def _tells(point: RateFigures, slo: Slo | None) -> bool:
    return point.whole and (point.attainment is not None if slo is not None else not point.unjudged)


def _is_unclear(point: RateFigures, slo: Slo | None) -> bool:
    return point.late and (point.saturated if slo is None else not point.keeps(slo))


def _by_slo(points: Sequence[RateFigures], slo: Slo) -> tuple[float | None, str]:
    kept = list(takewhile(lambda point: point.keeps(slo), points))
    beyond = points[len(kept)] if len(kept) < len(points) else None
    if not points:
        return None, _NOTHING
    if not kept:
        return None, f"No rate that was tried keeps the SLO ({slo}): {_missed(points[0], slo)}."
    best = kept[-1]
    said = f"Run at up to {best.rate:.3g} calls/s: {_share(best)} of calls keep the SLO there ({slo})"
    if beyond is None:
        return best.rate, f"{said}; no higher rate was measured, so more may be possible."
    return best.rate, f"{said}, while {_missed(beyond, slo)}."


def _missed(point: RateFigures, slo: Slo) -> str:
    said = f"at {point.rate:.3g}/s {_share(point)} did"
    if point.saturated:
        return f"{said}, and the target no longer kept up"
    judged = point.judged
    over = [f"{name} p{slo.share * 100:.4g} {format_duration(seconds)}" for name, seconds in judged.over]
    if lost := judged.calls - judged.answered:
        over.append(f"{lost} of {judged.calls} had no answer")
    return f"{said} ({', '.join(over)})" if over else said


def _share(point: RateFigures) -> str:
    return f"{(point.attainment or 0) * 100:.3g}%"


def _by_shape(points: Sequence[RateFigures], knee: RateFigures | None) -> tuple[float | None, str]:
    kept = list(takewhile(lambda point: not point.saturated, points))
    if not points:
        return None, _NOTHING
    if not kept:
        return (
            None,
            f"The target does not even keep up with {points[0].rate:.3g} calls/s: try lower rates.",
        )
    if knee is not None and not knee.saturated and knee in kept:
        return knee.rate, (
            f"Run at about {knee.rate:.3g} calls/s, the knee: beyond it latency grows faster than throughput. "
            "With --slo the point that your promise allows is found instead."
        )
    best = kept[-1]
    more = len(kept) < len(points)
    beyond = f"not with {points[len(kept)].rate:.3g}" if more else "no higher rate was measured"
    return best.rate, (
        f"The target keeps up with {best.rate:.3g} calls/s, and {beyond}. Without --slo, and without a knee "
        "among the rates, latency is for you to judge."
    )
