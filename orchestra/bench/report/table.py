"""The report on a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestra.bench.report.report import Report
from orchestra.bench.results.figures import RateFigures
from orchestra.bench.results.quantiles import Quantiles
from orchestra.policies.traffic import TrafficClass

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["short", "table"]

_DID_NOT_KEEP_UP = "* did not keep up: the queue grew, or over a tenth of the calls had no answer"

_SHORT = {TrafficClass.INTERACTIVE: "inter.", TrafficClass.BULK: "bulk"}


def table(report: Report) -> RenderableType:
    """Return the figures of every rate, the operating point, and what has to be known of them."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(f"{report.target} under load", style="bold")]
    if report.slo is not None:
        parts.append(Text(f"SLO: {report.slo}"))
    if report.points:
        parts += ["", _rates(report)]
        if any(point.saturated for point in report.points):
            parts.append(Text(_DID_NOT_KEEP_UP, style="dim"))
        parts += ["", Text("latency: p50/p95/p99", style="bold"), _latencies(report.points)]
        reasons = [(point, *reason) for point in report.points for reason in point.reasons]
        if reasons:
            parts += ["", Text("why calls were not answered", style="bold")]
        parts += [Text(f"{point.rate:.3g}/s: {count} x {reason}") for point, reason, count in reasons]
    parts += ["", Text(report.advice.reason, style="bold")]
    parts += [Text(note, style="yellow") for note in report.notes]
    return Group(*parts)


def _rates(report: Report) -> Table:
    priced = any(point.usd_per_million_tokens is not None for point in report.points)
    judged = report.slo is not None
    names = ["calls/s", "done/s", "tokens/s", *(["good/s", "kept"] if judged else []), "calls", "refused"]
    names += ["failed", "queue", "drain", *(["$/1M"] if priced else [])]
    found = _plain(*names)
    for point in report.points:
        classes = point.classes.values()
        cells = [f"{point.rate:.3g}", short(point.answered_per_s), short(point.output_tokens_per_s)]
        if judged:
            cells += [short(point.goodput or 0.0), _share(point.attainment)]
        cells += [str(point.calls), str(sum(one.refused for one in classes))]
        failed = sum(one.failed + (one.unfinished if point.whole else 0) for one in classes)
        cells += [str(failed), short(point.depth_mean)]
        cells.append(f"{point.drain:.1f}s{'*' if point.saturated else ''}" if point.whole else "cut")
        if priced:
            cost = point.usd_per_million_tokens
            cells.append("" if cost is None else short(cost))
        found.add_row(*cells)
    return found


def _share(attainment: float | None) -> str:
    return "-" if attainment is None else f"{attainment:.0%}"


def _latencies(points: Sequence[RateFigures]) -> Table:
    found = _plain("calls/s", "", "TTFT, s", "TPOT, ms", "gap, ms", "end to end, s", gap=2)
    for point in points:
        for traffic, one in point.classes.items():
            times = ((one.ttft, 1), (one.tpot, 1000), (one.gap, 1000), (one.e2e, 1))
            found.add_row(f"{point.rate:.3g}", _SHORT[traffic], *(_triple(*time) for time in times))
    return found


def _triple(values: Quantiles | None, scale: float) -> str:
    if values is None:
        return "-"
    return "/".join(_shortest(value * scale) for value in (values.p50, values.p95, values.p99))


def _shortest(value: float) -> str:
    """Return a number in at most four characters."""
    if value >= 995:
        return f"{value / 1000:.1f}k" if value < 9950 else f"{value / 1000:.0f}k"
    return f"{value:.2f}" if value < 0.995 else f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def short(value: float) -> str:
    """Return a number in at most five characters or so: what is measured is not known to more."""
    if value == 0:
        return "0"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _plain(*names: str, gap: int = 1) -> Table:
    from rich.table import Table

    found = Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    for name in names:
        found.add_column(name, justify="right", no_wrap=True)
    return found
