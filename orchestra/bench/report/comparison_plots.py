"""What a comparison draws: a figure or two of every way, with their bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestra.bench.report.svg import Axis, Mark, Plot, Style, is_wide
from orchestra.bench.report.table import short
from orchestra.bench.results.comparison import Comparison, Measure
from orchestra.bench.results.intervals import Interval
from orchestra.bench.results.way import Way

__all__ = ["PANELS", "Panel", "by_way", "cells"]

_ASIDE = 0.16  # of the room of a way: two figures of it stand side by side


@dataclass(frozen=True, slots=True)
class Panel:
    """Which measures are drawn together, times ``scale``; the first one's mark is round, the second's square."""

    title: str
    label: str
    measures: tuple[tuple[Measure, str], ...]
    scale: float = 1.0


PANELS = (
    Panel(
        "Time to first token of interactive calls",
        "seconds",
        ((Measure.TTFT_P50, "p50"), (Measure.TTFT_P95, "p95")),
    ),
    Panel(
        "Time per output token of interactive calls",
        "milliseconds",
        ((Measure.TPOT_P50, "p50"), (Measure.TPOT_P95, "p95")),
        1000.0,
    ),
    Panel(
        "Output tokens a second",
        "tokens a second",
        ((Measure.OUTPUT_SPEED, "all"), (Measure.BULK_SPEED, "bulk")),
    ),
    Panel("Interactive calls that kept the SLO", "percent", ((Measure.KEPT, "kept"),), 100.0),
)
_LOOKS: tuple[tuple[Style, Mark], ...] = (("a", "circle"), ("b", "square"))


def cells(found: Comparison, panel: Panel) -> list[list[tuple[float, Interval]]]:
    """Return for each measure of a panel (where along the ways, the figure) of every way that has one."""
    told = []
    for number, (measure, _) in enumerate(panel.measures):
        aside = _ASIDE * (2 * number - 1) if len(panel.measures) > 1 else 0.0
        told.append(
            [
                (place + aside, figure.scaled(panel.scale))
                for place, way in enumerate(Way)
                if (figure := found.figures[way].get(measure)) is not None
            ]
        )
    return told


def by_way(found: Comparison, panel: Panel) -> str:
    """Draw one panel: a mark for each figure, a whisker for its bounds."""
    series = cells(found, panel)
    values = _values(series)
    names = tuple(way.value for way in Way)
    plot = Plot(
        f"{panel.title}, by way, with 95% bounds",
        Axis("", -0.5, len(names) - 0.5, names=names),
        Axis.over(panel.label, values, log=is_wide(values)),
    )
    for (_, name), points, (style, mark) in zip(panel.measures, series, _LOOKS, strict=False):
        for x, figure in points:
            if figure.low is not None and figure.high is not None:
                plot.whisker(x, figure.low, figure.high, style)
            plot.mark((x, figure.value), mark, style)
            plot.label((x, figure.value), f"{name} {short(figure.value)}", away=10)
    return plot.draw()


def _values(series: Sequence[Sequence[tuple[float, Interval]]]) -> list[float]:
    figures = [figure for points in series for _, figure in points]
    bounds = [bound for figure in figures for bound in (figure.low, figure.high) if bound is not None]
    return [*(figure.value for figure in figures), *bounds]
