"""The demo's picture: how long people waited, and what the engine did meanwhile."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.bench.report.pen import BULK, FAINT, INK, INTERACTIVE, STYLE
from orchestra.bench.results.occupancy import occupancy
from orchestra.bench.results.quantiles import percentile
from orchestra.cli.demo.recording import Answer, Figures, Recording, figures_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["save_plot"]

_REACH = 0.3  # half the height of a mark among the dots


def save_plot(recording: Recording, path: Path) -> None:
    """Draw two panels into a PNG: TTFT alone and beside the bulk job, and the engine's rows over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figures = figures_of(recording)
    with pyplot.rc_context(STYLE):
        figure, (upper, lower) = pyplot.subplots(
            2, 1, figsize=(9, 6.4), dpi=140, height_ratios=(1, 1.35), layout="constrained"
        )
        _draw_waits(upper, recording, figures)
        _draw_rows(lower, recording)
        figure.savefig(path)
        pyplot.close(figure)


def _draw_waits(axes: Axes, recording: Recording, figures: Figures) -> None:
    """One dot a question; a mark at the median and at p95."""
    jitter = random.Random(0)
    rows: list[tuple[float, str, Sequence[Answer]]] = [
        (1, "alone", recording.alone),
        (0, "beside the\nbulk job", recording.loaded),
    ]
    for height, _, answers in rows:
        waits = [answer.ttft * 1000 for answer in answers]
        spread = [height + jitter.uniform(-0.16, 0.16) for _ in waits]
        axes.scatter(waits, spread, s=22, color=INTERACTIVE, alpha=0.55, linewidths=0, zorder=3)
        for share, name in ((0.5, "median"), (0.95, "p95")):
            value = percentile(waits, share)
            axes.plot(
                [value, value], [height - _REACH, height + _REACH], color=INK, lw=1.6 if share == 0.5 else 1.0
            )
            axes.annotate(
                f"{name} {value:.0f}",
                (value, height + _REACH),
                xytext=(0, 2),
                textcoords="offset points",
                ha="right" if share == 0.5 else "left",
                fontsize=8.5,
            )
    axes.set_yticks([height for height, _, _ in rows], [f"{name}\n({len(a)})" for _, name, a in rows], color=INK)
    axes.set_ylim(-0.55, 1.65)
    axes.set_xlim(0, 1.1 * max(answer.ttft for _, _, answers in rows for answer in answers) * 1000)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("time to first token of each interactive question, ms")
    axes.set_title(
        f"Under full bulk load, p95 time to first token is {figures.ttft_p95_ratio:.1f} times its value alone",
        loc="left",
        fontweight="bold",
        fontsize=11,
    )


def _draw_rows(axes: Axes, recording: Recording) -> None:
    """Rows in the batch over time: bulk below, interactive on top; a tick where a question was asked."""
    from matplotlib.ticker import MaxNLocator

    end = max((step.at + step.seconds for step in recording.steps), default=1.0)
    times, interactive, bulk = zip(*occupancy(recording.steps, end), strict=True)
    top = [low + high for low, high in zip(bulk, interactive, strict=True)]
    axes.fill_between(times, bulk, color=BULK, lw=0, label="bulk")
    axes.fill_between(times, bulk, top, color=INTERACTIVE, lw=0, label="interactive")
    asked = [answer.intended for answer in (*recording.alone, *recording.loaded)]
    ceiling = max(top, default=1.0) * 1.12
    axes.plot(asked, [ceiling] * len(asked), "|", color=INTERACTIVE, ms=7, mew=1.1, label="a question is asked")
    for edge in recording.window:
        axes.axvline(edge, color=FAINT, lw=0.8, ls=(0, (4, 3)))
    axes.set_xlim(0, end)
    axes.set_ylim(0, ceiling * 1.08)
    axes.set_xlabel("seconds since the start")
    axes.set_ylabel("rows in the batch")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title("What the engine computed", loc="left", fontweight="bold", fontsize=11)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1.0), ncols=3, frameon=False, fontsize=9, handlelength=1.2)
