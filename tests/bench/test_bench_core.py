"""What is pure in a load test: who asks when, what follows from what was measured, and where to run."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import islice, pairwise
from statistics import fmean, pstdev
from types import SimpleNamespace

import pytest
from bench_lab import BUSY, measured, mix, point
from hypothesis import given
from hypothesis import strategies as st

from orchestra.bench.load.arrivals import Arrivals
from orchestra.bench.load.trace import Trace
from orchestra.bench.results.figures import Window, figures_of
from orchestra.bench.results.measurement import Ended
from orchestra.bench.results.occupancy import occupancy
from orchestra.bench.results.operating_point import advise, knee_of
from orchestra.bench.results.quantiles import Quantiles, percentile
from orchestra.bench.results.slo import Slo
from orchestra.bench.sweep import Tried, first_rate, next_rate
from orchestra.errors import InputError
from orchestra.policies.traffic import TrafficClass

SLO = Slo.parse("ttft=500ms")


# who asks when, and what


@pytest.mark.parametrize(("text", "variation"), [("poisson", 1.0), ("gamma:3", 3.0), ("constant", 0.0)])
def test_arrivals_keep_their_rate_and_their_burstiness(text, variation):
    first = list(islice(Arrivals.parse(text).instants(2.0, random.Random(5)), 20_000))
    assert first == list(islice(Arrivals.parse(text).instants(2.0, random.Random(5)), 20_000))
    gaps = [b - a for a, b in pairwise(first)]
    assert min(gaps) >= 0
    assert fmean(gaps) == pytest.approx(0.5, rel=0.05)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(variation, rel=0.07, abs=1e-6)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((Arrivals.parse, text) for text in ("", "gamma", "gamma:0", "gamma:nan", "poisson:2", "trace")),
        *(
            (Slo.parse, text)
            for text in ("", "share=90%", "ttft", "ttft=fast", "ttft=1s,ttft=2s", "ttft=1s,share=0")
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_with_an_example(parse, text):
    with pytest.raises(InputError, match=r"poisson|ttft"):
        parse(text)


def test_every_rate_has_the_same_calls_nearer_together():
    load = mix(arrivals="gamma:2", output="uniform:1:99", bulk_share=0.3)
    slow, fast = (list(islice(load.requests(rate), 300)) for rate in (1.0, 4.0))
    assert [replace(call, at=0.0) for call in slow] == [replace(call, at=0.0) for call in fast]
    assert [call.at / 4 for call in slow] == pytest.approx([call.at for call in fast])
    assert 0.2 < fmean(call.traffic is TrafficClass.BULK for call in slow) < 0.4


def test_a_trace_is_stretched_as_a_whole(tmp_path):
    lines = [
        {"at": at, "prompt_tokens": 9, "output_tokens": 5, "traffic": kind}
        for at, kind in ((103.0, "bulk"), (100.0, "interactive"), (101.0, "interactive"))
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    trace = Trace.read(path)
    assert trace.rate == pytest.approx(2 / 3)
    calls = list(trace.requests(trace.rate * 2))
    assert [call.at for call in calls] == pytest.approx([0.0, 0.5, 1.5])
    assert [call.traffic for call in calls] == ["interactive", "interactive", "bulk"]


def test_a_trace_may_come_in_any_order_and_hold_any_text(tmp_path):
    lines = [{"at": at, "prompt_tokens": 9, "output_tokens": 5, "text": "a\u2028b"} for at in (3.0, 1.0, 3.0)]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines), encoding="utf-8")
    assert [line.at for line in Trace.read(path).lines] == [1.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"at": 1, "prompt_tokens": 9, "output_tokens": 5}\n{', "2: no JSON"),
        ('{"at": 1, "prompt_tokens": 0, "output_tokens": 5}', "1: prompt_tokens"),
        ("", "at least two calls"),
        ("[" * 100_000, "1: no JSON: it is nested too deeply"),
    ],
)
def test_a_bad_trace_names_its_line(tmp_path, text, said):
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        Trace.read(path)


# what was measured


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 1))
def test_percentile_lies_within_and_grows(values, share):
    found = percentile(values, share)
    assert min(values) <= found <= max(values) or found == pytest.approx(min(values))
    assert percentile(values, 0) == min(values)
    assert percentile(values, 1) == max(values)
    assert found <= percentile(values, min(1.0, share + 0.1)) * (1 + 1e-12)


def test_percentile_interpolates():
    assert percentile([1, 2, 3, 4, 5], 0.95) == pytest.approx(4.8)
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 0.5)
    assert Quantiles.of([]) is None


@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0.001, 5), st.integers(0, 4), st.integers(0, 16)), max_size=40)
)
def test_occupancy_loses_nobodys_seconds(stays):
    end = max((at + seconds for at, seconds, _, _ in stays), default=1.0)
    names = ("at", "seconds", "interactive", "bulk")
    spans = occupancy([SimpleNamespace(**dict(zip(names, stay, strict=True))) for stay in stays], end, bins=50)
    width = end / 50
    assert sum(interactive for _, interactive, _ in spans) * width == pytest.approx(
        sum(seconds * interactive for _, seconds, interactive, _ in stays), abs=1e-6
    )
    assert sum(bulk for _, _, bulk in spans) * width == pytest.approx(
        sum(seconds * bulk for _, seconds, _, bulk in stays), abs=1e-6
    )


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0.01, 20)), min_size=1, max_size=30))
def test_windows_side_by_side_share_out_all_output_and_all_waiting(spans):
    calls = [measured(at, seconds) for at, seconds in spans]
    edges = [0.0, 7.0, 11.0, 60.0]
    for call in calls:
        assert sum(call.output_within(a, b) for a, b in pairwise(edges)) == pytest.approx(call.output_tokens)
        assert sum(call.overlap(a, b) for a, b in pairwise(edges)) == pytest.approx(call.e2e)


def test_the_figures_of_a_window_by_hand():
    calls = [
        measured(9.0, 2.0, ttft=0.5),  # of the warm-up: its second token comes in the window
        measured(10.0, 1.0, ttft=0.25),
        measured(12.0, 3.0, ttft=1.0),
        measured(13.0, 0.1, ended=Ended.REFUSED, chunks=(), output_tokens=0, reason="no room"),
        measured(19.0, 4.0, ended=Ended.UNFINISHED, chunks=(), output_tokens=0),
        measured(14.0, 5.0, ttft=4.0, traffic=TrafficClass.BULK),
        measured(20.0, 1.0),  # of the drain
    ]
    found = figures_of(calls, 0.5, BUSY, slo=SLO)
    people, bulk = found.classes[TrafficClass.INTERACTIVE], found.classes[TrafficClass.BULK]
    assert (people.calls, people.answered, people.refused, people.unfinished) == (4, 2, 1, 1)
    assert (people.met, bulk.met) == (1, 1)  # bulk is promised no time
    assert found.goodput == pytest.approx(0.2)
    assert found.offered == pytest.approx(0.5)
    assert found.answered_per_s == pytest.approx(0.4)  # of the warm-up's one, too: it came in the window
    assert found.output_tokens_per_s == pytest.approx(0.7)
    assert found.drain == pytest.approx(3.0)
    assert found.depth_mean == pytest.approx((1.0 + 1.0 + 3.0 + 0.1 + 1.0 + 5.0) / 10)
    assert people.ttft == Quantiles.of(
        [0.25, 1.0, 4.0]
    )  # nobody knows how long the unfinished one would have taken
    assert people.e2e.p99 == pytest.approx(percentile([1.0, 3.0, 4.0], 0.99))
    assert found.reasons == (("no room", 1),)
    with pytest.raises(ValueError, match="no call"):
        figures_of(calls, 0.5, Window(30.0, 40.0))


def test_dollars_are_of_the_machine_or_of_the_calls():
    calls = [measured(10.0 + number, 0.5, usd=0.001) for number in range(10)]
    assert figures_of(calls, 1.0, BUSY).usd_per_million_tokens == pytest.approx(0.001 / 12 * 1e6)
    found = figures_of(calls, 1.0, BUSY, dollars_per_hour=3.6)
    assert found.usd_per_million_tokens == pytest.approx(0.01 / 120 * 1e6)
    before = measured(9.0, 2.0, ttft=0.5)  # its second token is paid for in the window
    found = figures_of([before, *calls], 1.0, BUSY, dollars_per_hour=3.6)
    assert found.usd_per_million_tokens == pytest.approx(0.01 / 121 * 1e6)
    assert figures_of([measured(11.0)], 1.0, BUSY).usd_per_million_tokens is None


@pytest.mark.parametrize(
    ("call", "met"),
    [
        (measured(0.0, 1.0, ttft=0.5), True),
        (measured(0.0, 1.0, ttft=0.51), False),
        (measured(0.0, 1.3, ttft=0.5), False),  # 0.8 s for the second token
        (measured(0.0, 1.0, ttft=0.5, ended=Ended.FAILED), False),
        (measured(0.0, 1.0, chunks=()), False),
        (measured(0.0, 9.0, traffic=TrafficClass.BULK), True),
        (measured(0.0, 9.0, traffic=TrafficClass.BULK, ended=Ended.REFUSED), False),
    ],
)
def test_the_slo_is_kept_call_by_call(call, met):
    assert Slo.parse("ttft=500ms, tpot=0.7s, share=99%").met_by(call) is met


def test_a_queue_that_grows_is_saturation_and_one_that_stands_is_not():
    assert not point(4.0, 3.0).saturated
    assert point(4.0, 3.0, growing=1.0).saturated
    refused = [measured(10 + at / 10, ended=Ended.REFUSED if at % 5 == 0 else Ended.ANSWERED) for at in range(100)]
    assert figures_of(refused, 10.0, BUSY).saturated


def test_a_target_that_fills_up_is_not_taken_for_one_that_falls_behind():
    window, instants = Window(5.0, 35.0), [number / 4 for number in range(140)]
    filling = figures_of([measured(at, 20.0) for at in instants], 4.0, window)
    assert (filling.saturated, filling.filling, filling.unjudged) == (False, True, False)
    cut_off = [measured(at, 35 - at, ended=Ended.UNFINISHED, chunks=()) for at in instants if at > 15]
    cut_off += [measured(at, 20.0) for at in instants if at <= 15]
    assert not figures_of(cut_off, 4.0, window).saturated  # nothing was awaited: nobody knows of those
    assert figures_of([measured(at, 40.0) for at in instants], 4.0, window).unjudged
    silent = [measured(at, 35 - at, ended=Ended.UNFINISHED, chunks=()) for at in instants]
    nobody_waited = figures_of(silent, 4.0, window)
    assert (nobody_waited.saturated, nobody_waited.silent, nobody_waited.unjudged) == (False, True, True)
    one_server = [measured(at, 1 + 3 * at) for at in instants]  # a call a second of the four that come
    assert figures_of(one_server, 4.0, window).saturated
    given_up = [
        measured(at, min(1 + 3 * at, 35 - at), ended=Ended.ANSWERED if 1 + 4 * at < 35 else Ended.UNFINISHED)
        for at in instants
    ]
    assert figures_of(given_up, 4.0, window).saturated
    steady = figures_of([measured(at, 3.0) for at in instants], 4.0, window)
    assert (steady.saturated, steady.filling, steady.unjudged) == (False, False, False)


def test_time_per_token_is_known_where_tokens_came_one_after_another():
    pieces = measured(0.0, 4.0, chunks=(1.0, 2.0, 4.0), output_tokens=9)
    assert pieces.tpot == pytest.approx(0.5)  # six tokens came after the first piece
    assert replace(pieces, output_tokens=109, hidden_tokens=100).tpot == pytest.approx(0.5)
    buffered = replace(pieces, chunks=(4.0,))
    assert (buffered.tpot, buffered.came_at_once) == (None, True)
    assert not Slo.parse("tpot=400ms").met_by(buffered)
    assert Slo.parse("tpot=450ms").met_by(buffered)
    assert Slo.parse("tpot=1ms").met_by(replace(buffered, output_tokens=1))
    assert figures_of([measured(11.0, chunks=(12.0,))], 1.0, BUSY).classes[TrafficClass.INTERACTIVE].at_once == 1


# where to run


def test_the_knee_is_where_throughput_per_latency_is_highest():
    # M/M/1 with one call a second: the time in it is 1 / (1 - rate), and power is highest at half of capacity
    queue = [point(rate, 1 / (1 - rate)) for rate in (0.1, 0.3, 0.5, 0.7, 0.9)]
    assert knee_of(queue).rate == 0.5
    assert knee_of(queue[:2]) is None
    assert knee_of([point(rate, 1.0) for rate in (1, 2, 3)]) is None  # it is still rising
    assert advise(queue, None).rate == 0.5


def test_with_an_slo_the_highest_rate_below_every_broken_one_is_recommended():
    times = {1: 0.4, 2: 0.8, 4: 3.0, 8: 0.6}  # at 8 it was lucky
    points = [point(rate, seconds, slo=SLO) for rate, seconds in times.items()]
    found = advise(points, SLO)
    assert found.rate == 2
    assert "up to 2 calls/s: 100%" in found.reason
    assert "at 4/s 0% did (TTFT p95 1.5s)" in found.reason
    assert "no higher rate" in advise(points[:2], SLO).reason
    none = advise(points[2:3], SLO)
    assert none.rate is None
    assert "No rate that was tried keeps" in none.reason


def test_what_nobody_can_judge_is_no_advice():
    good, bad = point(2.0, 0.8, slo=SLO), point(4.0, 3.0, slo=SLO)
    cut = advise([good, replace(bad, whole=False, saturated=True)], SLO)
    assert (cut.rate, cut.saturation) == (2.0, None)
    assert "no higher rate" in cut.reason
    late = advise([good, replace(bad, lag_p99=0.2, saturated=True)], SLO)
    assert (late.rate, late.saturation) == (2.0, None)
    assert "At 4/s the generator itself was late" in late.reason
    assert advise([replace(good, lag_p99=0.2)], SLO).rate == 2.0  # it kept it all the same
    bulk = figures_of([measured(11.0, 9.0, traffic=TrafficClass.BULK)], 1.0, BUSY, slo=SLO)
    assert not bulk.keeps(SLO)
    assert advise([bulk], SLO).rate is None
    assert advise([bulk, good], SLO).rate == 2.0


def test_what_was_missed_is_told_at_the_share_that_was_promised():
    slo = Slo.parse("ttft=500ms, share=99%")
    calls = [measured(10 + at / 50, 2.0, ttft=2.0 if at % 25 == 0 else 0.1) for at in range(500)]  # 4% are late
    assert "(TTFT p99 2.0s)" in advise([figures_of(calls, 50.0, BUSY, slo=slo)], slo).reason
    with pytest.raises(InputError, match="share is above 0 and up to 100%"):
        Slo.parse("ttft=1s,share=95")


def test_advice_on_few_calls_says_so():
    assert "too few" in advise([point(0.5, 0.4, slo=SLO)], SLO).reason
    assert advise([], None).rate is None


@given(st.floats(0.01, 500), st.floats(0.02, 400), st.floats(0.1, 1.0))
def test_a_sweep_ends_close_to_the_edge(capacity, seconds, slo_share):
    edge = capacity * slo_share  # from here on the SLO is broken, from the capacity on the target is saturated
    first, tried = first_rate(seconds), []
    while (rate := next_rate(tried, first)) is not None:
        assert rate not in {one.rate for one in tried}
        tried.append(Tried(rate, rate <= edge, rate > capacity))
        assert len(tried) < 60
    good = [one.rate for one in tried if one.good]
    if first / 2**13 < edge and capacity < first * 2**13:
        bad = min(one.rate for one in tried if not one.good)
        assert edge / 1.32 < max(good) <= edge < bad


def test_the_first_rate_is_slow_and_round():
    assert [first_rate(seconds) for seconds in (0.25, 1.0, 3.0, 60.0)] == [2.0, 0.5, 0.1, pytest.approx(0.005)]
