"""The comparison as one HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orchestra.bench.report.comparison_plots import PANELS, by_way
from orchestra.bench.report.comparison_report import MEANING, TITLES, ComparisonReport
from orchestra.bench.report.comparison_table import spread
from orchestra.bench.report.document import document, figure, settings_table, table
from orchestra.bench.report.table import short
from orchestra.bench.results.comparison import Comparison
from orchestra.bench.results.intervals import Interval
from orchestra.bench.results.lessons import times
from orchestra.bench.results.way import Way

__all__ = ["comparison_page"]

_WORDS = (
    "Latencies count from the instant at which a call was to be sent, and are those of interactive calls. "
    "Bounds hold 95 of 100 times, and are Student's over the rounds; those of latencies with a standard error "
    "by the bootstrap, which draws rounds and then calls of each, the same for every way, since all had the "
    "same calls. Bulk's tokens a second are counted until its last answer, all tokens a second until the last "
    "of all. One way is called better than another only where the bounds of their ratio exclude 1."
)


def comparison_page(report: ComparisonReport) -> str:
    """Return the whole document."""
    return document(
        f"{report.target}: four ways to serve one load",
        report.started,
        advice=[f"{lesson.about}. {lesson.text}" for lesson in report.lessons],
        slo=report.slo,
        notes=report.notes,
        parts=[
            *(() if report.found is None else _figures(report, report.found)),
            settings_table(report.settings, _WORDS),
        ],
    )


def _figures(report: ComparisonReport, found: Comparison) -> Iterator[str]:
    yield '<h2>Way by way</h2><div class="grid">'
    for panel in PANELS:
        marks = ", ".join(
            f"{shape}: {name}" for shape, (_, name) in zip(("circle", "square"), panel.measures, strict=False)
        )
        yield figure(by_way(found, panel), f"{panel.title}. {marks.capitalize()}; with 95% bounds.")
    yield "</div>"
    yield table("The ways", ["way", "what it is"], MEANING.items(), "words")
    yield table("Figures, with 95% bounds", ["", "alone", *Way], _rows(found))
    yield table(
        "Best first; ~ is between two that are not shown to differ", ["by", "order"], report.orders, "words"
    )
    yield table(
        "Times classes, with 95% bounds", ["", *(way for way in Way if way is not Way.CLASSES)], _ratios(found)
    )


def _rows(found: Comparison) -> Iterable[list[str]]:
    for measure, (title, scale) in TITLES.items():
        told = [found.alone.get(measure), *(found.figures[way].get(measure) for way in Way)]
        yield [title, *("" if one is None else _cell(one.scaled(scale)) for one in told)]


def _cell(interval: Interval) -> str:
    bounds = spread(interval)
    return f"{short(interval.value)} ({bounds})" if bounds else short(interval.value)


def _ratios(found: Comparison) -> Iterable[list[str]]:
    others = [way for way in Way if way is not Way.CLASSES]
    for measure, (title, _) in TITLES.items():
        told = [found.ratio(measure, way, Way.CLASSES) for way in others]
        yield [title.partition(",")[0], *("" if ratio is None else times(ratio, found.rounds) for ratio in told)]
