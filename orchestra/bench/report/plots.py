"""What a report draws: throughput against the slowest answers, first tokens by class, the queue over time."""

from __future__ import annotations

from collections.abc import Sequence

from orchestra.bench.report.report import Report
from orchestra.bench.report.svg import Axis, Mark, Plot, Style, is_wide
from orchestra.bench.results.figures import RateFigures
from orchestra.bench.results.quantiles import Quantiles
from orchestra.policies.traffic import TrafficClass

__all__ = ["BULK_FILL", "INTERACTIVE_FILL", "first_tokens", "queue", "throughput"]

INTERACTIVE_FILL, BULK_FILL = "fill-interactive", "fill-bulk"
"""Names of the patterns that a page with these plots has to define."""
_LOOK: dict[TrafficClass, tuple[Style, Mark]] = {
    TrafficClass.INTERACTIVE: ("a", "circle"),
    TrafficClass.BULK: ("b", "square"),
}


def throughput(report: Report) -> str:
    """Draw a point for each rate: output tokens a second, and the p99 end to end."""
    timed = [(one, e2e) for one in report.points if (e2e := one.judged.e2e) is not None]
    points = [(one.output_tokens_per_s, e2e.p99, one) for one, e2e in timed]
    plot = Plot(
        "Output tokens a second against the p99 end to end, a point for each rate",
        Axis.over("output tokens a second", [x for x, _, _ in points]),
        _seconds("p99 end to end, seconds", [y for _, y, _ in points]),
    )
    plot.line([(x, y) for x, y, _ in points], "a")
    for x, y, one in points:
        plot.mark((x, y), "triangle" if one.saturated else "circle", "a")
    # the recommended one first: labels that find no room are left out
    for x, y, one in sorted(points, key=lambda point: point[2].rate != report.advice.rate):
        at, name = (x, y), f"{one.rate:.3g}/s"
        if one.rate == report.advice.rate:
            plot.ring(at, f"{name}, recommended")
        else:
            plot.label(at, f"{name}, knee" if one.rate == report.advice.knee else name)
    return plot.draw()


def first_tokens(report: Report) -> str:
    """Draw the median and p95 of the time to first token of each class against the rate."""
    found: dict[TrafficClass, list[tuple[float, Quantiles]]] = {
        traffic: [
            (point.rate, ttft)
            for point in report.points
            if (one := point.classes.get(traffic)) is not None and (ttft := one.ttft) is not None
        ]
        for traffic in TrafficClass
    }
    values = [value for those in found.values() for _, ttft in those for value in (ttft.p50, ttft.p95)]
    bound = report.slo.ttft if report.slo is not None else None
    plot = Plot(
        "Time to first token against the rate: median and p95 of each class",
        _calls([point.rate for point in report.points]),
        _seconds("time to first token, seconds", [*values, *([bound] if bound is not None else [])]),
    )
    for traffic, those in found.items():
        style, mark = _LOOK[traffic]
        for share, dashed in (("p50", True), ("p95", False)):
            line = [(rate, getattr(ttft, share)) for rate, ttft in those]
            if line:
                plot.line(line, style, mark=mark, dashed=dashed)
                plot.label(line[-1], f"{traffic.value} {share}")
    if bound is not None:
        plot.level(bound, "SLO")
    return plot.draw()


def queue(point: RateFigures) -> str:
    """Draw the calls that waited or were being answered over time, bulk below; the window is shaded."""
    bulk = [(at, below) for at, _, below in point.depth]
    top = [(at, above + below) for at, above, below in point.depth]
    end = max([point.window.end, *(at for at, _ in top)])
    plot = Plot(
        f"Calls under way over time at {point.rate:.3g} calls a second",
        Axis("seconds", 0.0, end),
        Axis.over("calls under way", [height for _, height in top]),
    )
    plot.span(point.window.start, point.window.end)
    ground = [(at, 0.0) for at, _ in bulk]
    if TrafficClass.BULK in point.classes:
        plot.area(ground, bulk, BULK_FILL)
    plot.area(bulk, top, INTERACTIVE_FILL)
    plot.line(top, "ink")
    return plot.draw()


def _seconds(label: str, values: Sequence[float]) -> Axis:
    return Axis.over(label, values, log=is_wide(values))


def _calls(rates: Sequence[float]) -> Axis:
    return Axis.over("calls a second", rates, log=is_wide(rates))
