"""What a load test leaves: a table of 80 columns, JSON, and a page that needs nothing else."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from bench_lab import BUSY, measured, point
from compare_lab import SLO as PROMISED
from compare_lab import compared
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from orchestra.bench.report.comparison_page import comparison_page
from orchestra.bench.report.comparison_picture import save_comparison
from orchestra.bench.report.comparison_report import ComparisonReport
from orchestra.bench.report.comparison_table import comparison_table
from orchestra.bench.report.page import page
from orchestra.bench.report.picture import save_picture
from orchestra.bench.report.report import Report
from orchestra.bench.report.svg import Axis, Plot
from orchestra.bench.report.table import table
from orchestra.bench.results.figures import figures_of
from orchestra.bench.results.measurement import Ended
from orchestra.bench.results.operating_point import advise
from orchestra.bench.results.slo import Slo
from orchestra.bench.results.way import Way
from orchestra.policies.traffic import TrafficClass

SLO = Slo.parse("ttft=600ms,tpot=2s")
VOID = {"meta", "circle", "line", "polyline", "polygon", "rect", "path"}


def report(**more: object) -> Report:
    quick, slow = point(2.0, 0.8, slo=SLO), point(100.0, 3.4, slo=SLO, growing=8.0)
    calls = [measured(10 + at / 8, 1.0) for at in range(60)]
    calls += [measured(11 + at, 2.0, traffic=TrafficClass.BULK) for at in range(6)]
    calls += [measured(12.0, 0.1, ended=Ended.FAILED, chunks=(), reason="<b>no</b> & never")]
    middle = figures_of(calls, 8.0, BUSY, slo=SLO, dollars_per_hour=40.0)
    points = [quick, middle, slow]
    made = Report('m <at> "host"', {"seed": "0"}, 1.9e9, SLO, points, advise(points, SLO))
    return replace(made, **more)  # type: ignore[arg-type]


class Balanced(HTMLParser):
    """Fails where an element is not closed in its turn; gathers the text and every address."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert not {"src", "href", "onload"} & {name for name, _ in attrs}
        if tag not in VOID or (tag in VOID and tag != "meta" and not self.get_starttag_text().endswith("/>")):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_is_whole_and_needs_nothing_else():
    text = page(report())
    reader = Balanced()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    assert reader.tags.count("svg") == 6  # patterns, two overviews, a queue for each rate
    assert not {"script", "link", "img", "iframe", "b"} & set(reader.tags)
    assert "url(" not in text.replace("url(#fill-interactive)", "").replace("url(#fill-bulk)", "")
    said = " ".join(reader.text)
    for part in ('m <at> "host" under load', "<b>no</b> & never", "8/s, recommended", "SLO", "bulk p95"):
        assert part in said
    assert "prefers-color-scheme: dark" in text
    assert 'content="width=device-width' in text


def test_the_table_fits_80_columns_and_says_why():
    out = io.StringIO()
    Console(file=out, width=80).print(table(report(counts_pieces=True)))
    said = out.getvalue()
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= 80
    told = (
        "Run at up to 8 calls",
        "tells no usage",
        "* did not keep up",
        "$/1M",
        "inter.",
        "bulk",
        "8/s: 1 x <b>",
    )
    for part in told:
        assert part in said
    first = next(line for line in said.splitlines() if line.strip().startswith("8 "))
    assert first.split()[5:8] == ["67", "0", "1"]


def test_the_numbers_are_plain_json():
    told = json.loads(json.dumps(report().as_dict(), allow_nan=False))
    assert told["format"] == "orchestra-bench/1"
    assert told["advice"]["rate"] == 8.0
    assert told["slo"] == {"ttft": 0.6, "tpot": 2.0, "e2e": None, "share": 0.95}
    middle = told["points"][1]
    assert middle["classes"]["interactive"]["attainment"] == pytest.approx(60 / 61)
    assert middle["classes"]["interactive"]["ttft"]["p95"] == pytest.approx(0.5)
    assert middle["reasons"] == [["<b>no</b> & never", 1]]


def test_a_report_of_nothing_is_one():
    empty = report(points=[], advice=advise([], SLO), interrupted=True)
    assert "No rate was measured" in page(empty)
    out = io.StringIO()
    Console(file=out, width=80).print(table(empty))
    assert "Interrupted" in out.getvalue()


@given(st.lists(st.floats(1e-4, 1e6), min_size=1, max_size=20), st.booleans())
def test_an_axis_holds_its_values_and_has_few_round_ticks(values, log):
    axis = Axis.over("x", values, log=log)
    places = [axis.place(value) for value in sorted(values)]
    assert places == sorted(places)
    assert 0 <= places[0] <= places[-1] <= 1
    ticks = axis.ticks()
    assert len(ticks) <= 14
    assert log or len(ticks) >= 3
    assert all(axis.low <= tick <= axis.high for tick in ticks)


def test_labels_never_lie_on_each_other():
    plot = Plot("x", Axis("x", 0, 10), Axis("y", 0, 10))
    for number in range(30):
        plot.label((number % 5, 5 + number % 3), f"label {number}")
    found = re.findall(r'class="text" x="([\d.]+)" y="([\d.]+)"', plot.draw())
    assert len(found) == len(plot.taken) >= 5
    for one in plot.taken:
        others = [other for other in plot.taken if other is not one]
        assert all(one[1] < o[0] or o[1] < one[0] or one[3] < o[2] or o[3] < one[2] for o in others)


def test_the_notes_say_what_flatters_or_slanders():
    calls = [measured(at / 2, 4.0, chunks=(at / 2 + 4,), cached_tokens=9) for at in range(40)]
    said = " ".join(report(points=[figures_of(calls, 2.0, BUSY)]).notes)
    assert "Up to 90% of the prompts' tokens" in said
    assert "At 2/s many answers came in one piece" in said
    assert "only filling up" not in said
    slow = [measured(at / 2, 18.0) for at in range(40)]
    said = " ".join(report(points=[figures_of(slow, 2.0, BUSY)]).notes)
    assert "whether it keeps up is not known at 2/s. Raise --warm-up to 18 or more" in said
    silent = [measured(at / 2, 20 - at / 2, ended=Ended.UNFINISHED, chunks=()) for at in range(40)]
    said = " ".join(report(points=[figures_of(silent, 2.0, BUSY)]).notes)
    assert "At 2/s no call had an end when nobody waited any longer" in said
    assert "only filling up" not in said


def test_calls_that_an_interrupt_cut_are_no_failures_of_the_target():
    calls = [measured(at / 2, 0.5) for at in range(20)]
    calls += [measured(at / 2, 20 - at / 2, ended=Ended.UNFINISHED, chunks=()) for at in range(20, 40)]
    cut, whole = (figures_of(calls, 2.0, BUSY, whole=one) for one in (False, True))
    assert (cut.saturated, whole.saturated) == (False, True)
    out = io.StringIO()
    Console(file=out, width=80).print(table(report(points=[cut], advice=advise([cut], SLO), interrupted=True)))
    said = out.getvalue()
    first = next(line for line in said.splitlines() if line.strip().startswith("2 "))
    assert (first.split()[7], first.split()[-1]) == ("0", "cut")
    assert "The 20 calls that were cut with it are not counted as failed" in " ".join(said.split())
    assert "did not keep up" not in said
    assert "end of the drain" not in said


def test_a_first_call_that_comes_late_is_no_slow_target():
    found = figures_of([measured(14.0 + at / 10, 0.01) for at in range(50)], 10.0, BUSY)
    assert found.filled - BUSY.start > 0.1 * BUSY.seconds
    assert not found.filling
    assert "filling up" not in " ".join(report(points=[found]).notes)


def test_the_picture_is_one_with_something_on_it(tmp_path):
    from matplotlib import image

    save_picture(report(target="m$_$ at ${$"), tmp_path / "a.foo")
    pixels = image.imread(tmp_path / "a.foo", format="png")
    assert pixels.shape[1] > 1000
    for third in (0, 1, 2):
        height = pixels.shape[0] // 3
        assert pixels[third * height : (third + 1) * height].std() > 0.02
    with pytest.raises(ValueError, match="nothing to draw"):
        save_picture(report(points=[]), tmp_path / "b.png")


def comparison(rounds: int = 3) -> ComparisonReport:
    found = compared({Way.ONE_QUEUE: 40.0, Way.STATIC: 1.4}, rounds=rounds, noise=0.02) if rounds else None
    return ComparisonReport("local/<m>", {"seed": "0"}, 1.9e9, PROMISED, found)


def test_a_comparison_fits_its_table_and_its_page():
    out = io.StringIO()
    Console(file=out, width=80).print(comparison_table(comparison()))
    said = out.getvalue()
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= 80
    for part in ("36 in 3 rounds", "classes ~ two pools", "< static < one queue", "What it costs. A token of"):
        assert part in said
    text = comparison_page(comparison())
    reader = Balanced()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    assert reader.tags.count("svg") == 5  # patterns, and a plot for each panel
    assert text.count('class="advice"') == 4
    assert not {"script", "link", "img", "iframe", "m"} & set(reader.tags)


def test_a_comparison_says_what_its_figures_rest_on(tmp_path):
    assert comparison().notes == []
    assert "One round only: nothing has bounds" in comparison(1).notes[0]
    assert "Fewer than 20 interactive calls" in comparison(1).notes[1]
    assert "No round is whole" in comparison_page(comparison(0))
    with pytest.raises(ValueError, match="nothing to draw"):
        save_comparison(comparison(0), tmp_path / "b.png")
    told = json.loads(json.dumps(comparison(1).as_dict(), allow_nan=False))
    ratio = next(one for one in told["found"]["ratios"] if (one["of"], one["to"]) == ("one queue", "classes"))
    assert (ratio["measure"], ratio["low"]) == ("ttft_p50", None)
