"""The report's plots as one PNG, for a slide or a ticket. Needs matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.bench.report.pen import BULK, FAINT, INK, INTERACTIVE, STYLE
from orchestra.bench.report.report import Report
from orchestra.bench.report.svg import is_wide
from orchestra.policies.traffic import TrafficClass

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["save_picture"]

_LOOK = {TrafficClass.INTERACTIVE: (INTERACTIVE, "o"), TrafficClass.BULK: (BULK, "s")}
_DASHES = ("-", "--", "-.", ":")


def save_picture(report: Report, path: Path) -> None:
    """Draw three panels: throughput against p99, first tokens by class, the calls under way over time.

    Raises ValueError where no rate was measured.
    """
    if not report.points:
        raise ValueError("there is nothing to draw")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context(STYLE):
        figure, (upper, middle, lower) = pyplot.subplots(3, 1, figsize=(9, 10), dpi=140, layout="constrained")
        figure.suptitle(f"{report.target} under load", x=0.01, ha="left", fontweight="bold", parse_math=False)
        _throughput(upper, report)
        _first_tokens(middle, report)
        _queue(lower, report)
        figure.savefig(path, format="png")  # whatever the file is called
        pyplot.close(figure)


def _throughput(axes: Axes, report: Report) -> None:
    timed = [(one, e2e) for one in report.points if (e2e := one.judged.e2e) is not None]
    axes.plot([one.output_tokens_per_s for one, _ in timed], [e2e.p99 for _, e2e in timed], color=INTERACTIVE)
    for one, e2e in timed:
        at = (one.output_tokens_per_s, e2e.p99)
        axes.plot(*at, "^" if one.saturated else "o", color=INTERACTIVE)
        name = f"{one.rate:.3g}/s"
        if one.rate == report.advice.rate:
            axes.plot(*at, "o", ms=14, mfc="none", mec=INK)
            name += ", recommended"
        axes.annotate(name, at, xytext=(0, 9), textcoords="offset points", ha="center", fontsize=8.5)
    axes.set(xlabel="output tokens a second (triangle: the target did not keep up)", ylabel="p99 end to end, s")
    axes.set_xlim(0)
    _scale(axes, [e2e.p99 for _, e2e in timed])


def _first_tokens(axes: Axes, report: Report) -> None:
    values: list[float] = []
    for traffic, (colour, mark) in _LOOK.items():
        found = [
            (point.rate, ttft.p50, ttft.p95)
            for point in report.points
            if (one := point.classes.get(traffic)) is not None and (ttft := one.ttft) is not None
        ]
        if found:
            rates, p50, p95 = zip(*found, strict=True)
            values += [*p50, *p95]
            axes.plot(rates, p95, f"{mark}-", color=colour, label=f"{traffic.value} p95")
            axes.plot(rates, p50, f"{mark}--", color=colour, label=f"{traffic.value} p50")
    if report.slo is not None and report.slo.ttft is not None:
        axes.axhline(report.slo.ttft, color=INK, ls=":", lw=1.2, label="SLO")
    axes.set(xlabel="calls a second", ylabel="time to first token, s")
    _scale(axes, values)
    if is_wide([point.rate for point in report.points]):
        axes.set_xscale("log")
    if values:
        axes.legend(frameon=False, fontsize=9)


def _queue(axes: Axes, report: Report) -> None:
    for number, point in enumerate(report.points):
        times = [at for at, _, _ in point.depth]
        depth = [interactive + bulk for _, interactive, bulk in point.depth]
        axes.plot(times, depth, _DASHES[number % len(_DASHES)], color=INK, lw=1 + number / len(report.points))
        highest = max(range(len(depth)), key=depth.__getitem__)
        axes.annotate(
            f"{point.rate:.3g}/s", (times[highest], depth[highest]), fontsize=8.5, ha="center", va="bottom"
        )
    axes.axvline(report.points[0].window.start, color=FAINT, lw=0.8, ls=(0, (4, 3)))
    axes.set(xlabel="seconds (what counts begins at the line)", ylabel="calls under way")
    axes.set_ylim(0)
    means = [point.depth_mean for point in report.points]
    if is_wide(means):
        axes.set_yscale("symlog", linthresh=1)  # logarithmic from one call on, and with a zero


def _scale(axes: Axes, values: Sequence[float]) -> None:
    if is_wide(values):
        axes.set_yscale("log")
    else:
        axes.set_ylim(0)
