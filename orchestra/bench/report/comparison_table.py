"""The comparison on a terminal of 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestra.bench.report.comparison_report import TITLES, ComparisonReport
from orchestra.bench.report.table import short
from orchestra.bench.results.comparison import Comparison
from orchestra.bench.results.intervals import Interval
from orchestra.bench.results.way import Way

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["comparison_table", "spread"]


def comparison_table(report: ComparisonReport) -> RenderableType:
    """Return the figures of every way with their bounds, the order of the ways, and what they teach."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(f"{report.target}: four ways to serve one load", style="bold")]
    if report.slo is not None:
        parts.append(Text(f"SLO: {report.slo}"))
    if report.found is not None:
        rounds = f"{report.found.rounds} round{'' if report.found.rounds == 1 else 's'}"
        told = f"interactive calls: {report.found.calls} in {rounds}; below each figure its 95% bounds"
        parts += [Text(told, style="dim"), "", _figures(report.found)]
        parts += ["", Text("best first; ~ is between two that are not shown to differ", style="bold")]
        parts.append(_orders(report))
    for lesson in report.lessons:
        parts += ["", Text.assemble((f"{lesson.about}. ", "bold"), lesson.text)]
    if report.notes:
        parts += ["", *(Text(note, style="yellow") for note in report.notes)]
    return Group(*parts)


def _figures(found: Comparison) -> Table:
    table = _plain()
    table.add_column("")
    for name in ("alone", *Way):
        table.add_column(name, justify="right", no_wrap=True)
    for measure, (title, scale) in TITLES.items():
        cells = [found.alone.get(measure), *(found.figures[way].get(measure) for way in Way)]
        scaled = [None if cell is None else cell.scaled(scale) for cell in cells]
        table.add_row(title, *("" if cell is None else short(cell.value) for cell in scaled))
        bounds = ["" if cell is None else spread(cell) for cell in scaled]
        if any(bounds):
            table.add_row("", *bounds, style="dim")
    return table


def _orders(report: ComparisonReport) -> Table:
    table = _plain()
    table.show_header = False
    table.add_column()
    table.add_column()
    for title, order in report.orders:
        table.add_row(title, order)
    return table


def spread(interval: Interval) -> str:
    """Return the bounds, ``11.2 - 13.4``; nothing where they are not known."""
    if interval.low is None or interval.high is None:
        return ""
    return f"{short(interval.low)} - {short(interval.high)}"


def _plain() -> Table:
    from rich.table import Table

    return Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
