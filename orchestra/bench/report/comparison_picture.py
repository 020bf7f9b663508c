"""The comparison's plots as one PNG, for a slide or a ticket. Needs matplotlib (the extra ``plot``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.bench.report.comparison_plots import PANELS, Panel, cells
from orchestra.bench.report.comparison_report import ComparisonReport
from orchestra.bench.report.pen import BULK, INK, INTERACTIVE, STYLE
from orchestra.bench.report.svg import is_wide
from orchestra.bench.results.comparison import Comparison
from orchestra.bench.results.way import Way

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["save_comparison"]

_LOOKS = ((INTERACTIVE, "o"), (BULK, "s"))


def save_comparison(report: ComparisonReport, path: Path) -> None:
    """Draw a panel for each of `PANELS`, with 95 % bounds. Raises ValueError where no round is whole."""
    if report.found is None:
        raise ValueError("there is nothing to draw")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context(STYLE):
        figure, rows = pyplot.subplots(2, 2, figsize=(11, 8), dpi=130, layout="constrained")
        title = f"{report.target}: four ways to serve one load"
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", parse_math=False)
        for axes, panel in zip(rows.flat, PANELS, strict=True):
            _draw(axes, report.found, panel)
        figure.savefig(path, format="png")  # whatever the file is called
        pyplot.close(figure)


def _draw(axes: Axes, found: Comparison, panel: Panel) -> None:
    drawn: list[float] = []
    for (_, name), points, (colour, mark) in zip(panel.measures, cells(found, panel), _LOOKS, strict=False):
        for place, (x, one) in enumerate(points):
            bounds = [one.value if bound is None else bound for bound in (one.low, one.high)]
            axes.plot([x, x], bounds, color=colour, lw=1.5)
            axes.plot(x, one.value, mark, color=colour, mec=INK, label=None if place else name)
            drawn += [one.value, *bounds]
    axes.set_title(panel.title, fontsize=10, loc="left")
    axes.set_ylabel(panel.label)
    axes.set_xticks(range(len(Way)), [way.value for way in Way])
    axes.set_xlim(-0.5, len(Way) - 0.5)
    if is_wide(drawn):
        axes.set_yscale("log")
    else:
        axes.set_ylim(0)
    if len(panel.measures) > 1:
        axes.legend(frameon=False, fontsize=9)
