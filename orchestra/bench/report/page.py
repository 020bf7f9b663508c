"""The report of several rates as one HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orchestra.bench.report.document import document, figure, settings_table, table
from orchestra.bench.report.plots import first_tokens, queue, throughput
from orchestra.bench.report.report import Report
from orchestra.bench.report.table import short
from orchestra.bench.results.figures import RateFigures
from orchestra.bench.results.quantiles import Quantiles

__all__ = ["page"]


def page(report: Report) -> str:
    """Return the whole document."""
    return document(
        f"{report.target} under load",
        report.started,
        advice=[report.advice.reason],
        slo=report.slo,
        notes=report.notes,
        parts=[*(_figures(report) if report.points else ()), settings_table(report.settings, _WORDS)],
    )


def _figures(report: Report) -> Iterable[str]:
    yield '<h2>At which rate</h2><div class="grid">'
    yield figure(throughput(report), "A point for each rate. Triangle: the target did not keep up.")
    yield figure(
        first_tokens(report), "Solid with marks: p95; dashed: median. Circles are interactive, squares bulk calls."
    )
    yield "</div>"
    yield table("Throughput", _RATE_NAMES, [_rate_row(point) for point in report.points])
    yield table("Latency: p50 / p95 / p99", _LATENCY_NAMES, _latency_rows(report.points))
    yield '<h2>Calls under way over time</h2><p class="faint">Shaded: the window that counts. Hatched, on top: '
    yield 'interactive. Dotted: bulk.</p><div class="grid">'
    for point in report.points:
        yield figure(queue(point), f"{point.rate:.3g} calls a second, drained in {point.drain:.1f} s")
    yield "</div>"
    reasons = [
        [f"{point.rate:.3g}/s", str(count), reason] for point in report.points for reason, count in point.reasons
    ]
    if reasons:
        yield table("Why calls were not answered", ["rate", "calls", "reason"], reasons, "words")


_WORDS = (
    "Latencies count from the instant at which a call was to be sent. A gap is the time between two pieces of a "
    "stream, and a piece may hold several tokens. Throughput is what arrived in the window; tokens/s are those of "
    "the output. The queue is the mean number of calls under way. Good calls kept the SLO. Cached are those of "
    "the prompts' tokens that the target says it had already."
)
_RATE_NAMES = [
    *("calls/s", "answered/s", "tokens/s", "good/s", "SLO kept", "calls", "refused", "failed"),
    *("unfinished", "queue", "drain, s", "cached", "$/1M tokens"),
]
_LATENCY_NAMES = ["calls/s", "class", "TTFT, s", "TPOT, ms", "gap, ms", "end to end, s"]


def _rate_row(point: RateFigures) -> list[str]:
    classes = point.classes.values()
    attainment, cost = point.attainment, point.usd_per_million_tokens
    return [
        f"{point.rate:.3g}",
        short(point.answered_per_s),
        short(point.output_tokens_per_s),
        "" if point.goodput is None else short(point.goodput),
        "" if attainment is None else f"{attainment:.1%}",
        str(point.calls),
        str(sum(one.refused for one in classes)),
        str(sum(one.failed for one in classes)),
        str(sum(one.unfinished for one in classes)),
        short(point.depth_mean),
        f"{point.drain:.1f}" if point.whole else "cut short",
        "" if point.cached is None else f"{point.cached:.0%}",
        "" if cost is None else f"{cost:.3g}",
    ]


def _latency_rows(points: Sequence[RateFigures]) -> list[list[str]]:
    def cell(values: Quantiles | None, scale: float) -> str:
        if values is None:
            return ""
        return " / ".join(short(value * scale) for value in (values.p50, values.p95, values.p99))

    return [
        [
            f"{point.rate:.3g}",
            traffic.value,
            *(cell(one.ttft, 1), cell(one.tpot, 1000), cell(one.gap, 1000), cell(one.e2e, 1)),
        ]
        for point in points
        for traffic, one in point.classes.items()
    ]
