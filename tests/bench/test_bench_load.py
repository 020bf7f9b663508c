"""The load itself in virtual time, against a target whose laws are known."""

from __future__ import annotations

import asyncio
from itertools import islice

import pytest
from bench_lab import Listed, QueueTarget, mix
from virtual_time import virtual

from orchestra.bench.experiment import Experiment
from orchestra.bench.load.clock import LoopClock
from orchestra.bench.load.generator import LoadRun, Phases
from orchestra.bench.load.prompts import messages_of
from orchestra.bench.load.workload import Request
from orchestra.bench.results.figures import figures_of
from orchestra.bench.results.measurement import Ended
from orchestra.bench.results.slo import Slo
from orchestra.errors import CallError, ConnectionFailed, ProviderError, QueueFull
from orchestra.policies.traffic import TrafficClass

PHASES = Phases(warm_up=10.0, seconds=100.0, drain=60.0)


def load_run(target: QueueTarget, phases: Phases = PHASES) -> LoadRun:
    return LoadRun(target, phases, LoopClock())


@virtual
async def test_calls_come_at_their_instants_answered_or_not():
    run = load_run(QueueTarget(servers=1, first=3.0), Phases(0.0, 10.0, 600.0))
    await run.run(mix().requests(1.0))
    calls = sorted(run.measurements(), key=lambda call: call.intended)
    assert [call.sent for call in calls] == pytest.approx([call.intended for call in calls], abs=1e-6)
    assert [call.intended for call in calls] == pytest.approx(range(1, 10))
    # one server of three seconds: the n-th call waits for all before it, and its latency tells
    assert [call.e2e for call in calls] == pytest.approx([3.0 + 2.0 * n for n in range(9)], abs=1e-6)


@virtual
async def test_a_target_that_stalls_does_not_hold_back_the_clock():
    """No coordinated omission: a generator that was stopped sends late, and that wait counts."""

    class Stalling(QueueTarget):
        async def ask(self, request, came):
            if request.number == 3:
                asyncio.get_running_loop()._now += 5.0  # the loop stands still, as under a step of the CPU
            return await QueueTarget.ask(self, request, came)

    run = load_run(Stalling(servers=9, first=0.1), Phases(0.0, 12.0, 60.0))
    await run.run(mix().requests(1.0))
    calls = {round(call.intended): call for call in run.measurements()}
    assert calls[3].e2e == pytest.approx(0.1, abs=1e-3)
    for late in range(5, 9):  # were to be sent while it stood
        assert calls[late].sent == pytest.approx(9.0, abs=1e-3)
        assert calls[late].e2e == pytest.approx(9.1 - late, abs=1e-3)
    assert calls[10].e2e == pytest.approx(0.1, abs=1e-3)
    assert figures_of(list(calls.values()), 1.0, run.window).lag_p99 > 3.0


@virtual
async def test_the_figures_are_those_of_the_queue():
    run = load_run(QueueTarget(servers=4, first=0.5, gap=0.1))
    await run.run(mix(output="6").requests(2.0))
    found = figures_of(run.measurements(), 2.0, run.window)
    assert found.calls == 200
    assert found.answered_per_s == pytest.approx(2.0, abs=0.02)
    assert found.output_tokens_per_s == pytest.approx(12.0, rel=0.01)
    assert found.depth_mean == pytest.approx(2.0, rel=0.01)  # Little's law: 2 a second, of 1 s each
    people = found.classes[TrafficClass.INTERACTIVE]
    assert people.ttft.p99 == pytest.approx(0.5, abs=1e-4)
    assert (people.tpot.p50, people.gap.p95) == pytest.approx((0.1, 0.1), abs=1e-4)
    assert people.e2e.p50 == pytest.approx(1.0, abs=1e-4)
    assert found.drain == pytest.approx(0.5, abs=0.01)
    assert not found.saturated


@virtual
async def test_what_is_not_answered_by_the_end_of_the_drain_is_unfinished():
    run = load_run(QueueTarget(servers=1, first=40.0), Phases(0.0, 10.0, 55.0))
    await run.run(mix().requests(0.2))
    ends = {round(call.intended): call for call in run.measurements()}
    assert ends[5].ended is Ended.ANSWERED
    assert set(ends) == {5}
    await (run := load_run(QueueTarget(servers=1, first=40.0), Phases(0.0, 11.0, 55.0))).run(mix().requests(0.2))
    assert [call.ended for call in run.measurements()] == [Ended.ANSWERED, Ended.UNFINISHED]
    assert run.measurements()[1].e2e == pytest.approx(56.0, abs=1e-3)
    assert run.under_way == 1


@virtual
async def test_refusals_and_failures_are_told_apart():
    target = QueueTarget(servers=9)
    target.errors = {
        0: QueueFull("no room"),
        1: ProviderError("busy", status=429, code=None, retry_after=None, body=b""),
        2: ProviderError("broken", status=500, code=None, retry_after=None, body=b""),
        3: ConnectionFailed("gone", sent=True),
    }
    run = load_run(target, Phases(0.0, 5.5, 9.0))
    await run.run(mix().requests(1.0))
    told = [(call.ended.value, call.reason) for call in sorted(run.measurements(), key=lambda call: call.intended)]
    assert told == [
        ("refused", "no room"),
        ("refused", "busy"),
        ("failed", "broken"),
        ("failed", "gone"),
        ("answered", None),
    ]


@virtual
async def test_a_trace_ends_the_window_a_gap_after_its_last_call():
    calls = [Request(number, float(number), TrafficClass.BULK, 4, 1) for number in range(5)]
    run = load_run(QueueTarget(servers=9), Phases(0.0, 100.0, 9.0))
    await run.run(iter(calls))
    assert run.window.end == pytest.approx(5.0, abs=1e-3)
    assert figures_of(run.measurements(), 1.0, run.window).offered == pytest.approx(1.0, rel=1e-3)


@virtual
async def test_a_cancelled_run_tells_what_it_knows():
    run = load_run(QueueTarget(servers=9, first=4.0), Phases(2.0, 100.0, 9.0))
    task = asyncio.create_task(run.run(mix().requests(1.0)))
    await asyncio.sleep(10.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    calls = run.measurements()
    assert len(calls) == 10
    assert sum(call.ended is Ended.UNFINISHED for call in calls) == 4
    assert run.window.end == pytest.approx(7.0)  # up to there all have ended: nobody is late for the interruption
    assert {call.ended for call in calls if call.intended in run.window} == {Ended.ANSWERED}
    await asyncio.sleep(100)  # and it stays what it was
    assert run.measurements() == calls


@virtual
async def test_a_cancelled_run_does_not_hide_who_waited_all_the_time():
    run = load_run(QueueTarget(servers=1, first=400.0), Phases(2.0, 100.0, 9.0))
    task = asyncio.create_task(run.run(mix().requests(1.0)))
    await asyncio.sleep(50.5)
    task.cancel()
    await asyncio.wait([task])
    assert run.window.end == pytest.approx(50.5, abs=1e-3)
    figures = figures_of(run.measurements(), 1.0, run.window)
    assert figures.judged.unfinished == figures.judged.calls >= 48
    assert (figures.silent, figures.unjudged) == (True, True), "and whether it keeps up nobody knows"


@virtual
async def test_a_sweep_finds_the_capacity_and_the_rate_that_the_slo_allows():
    """A queue of 8 servers of 1 s: beyond 8 a second it grows. The TTFT of 0.2 s leaves no room for waiting."""
    seen = []
    target, phases = QueueTarget(servers=8, first=0.1, gap=0.3), Phases(10.0, 50.0, 20.0)
    load, slo = mix(arrivals="poisson", output="4"), Slo.parse("ttft=200ms")
    experiment = Experiment(target, load, phases, slo=slo, watch=seen.append)
    await experiment.run([], sweep=True)
    report = experiment.report()
    assert [point.rate for point in seen][:3] == [0.5, 1.0, 2.0]
    assert [point.rate for point in report.points] == sorted(point.rate for point in seen)
    assert 8 <= report.advice.saturation <= 16
    assert 3 <= report.advice.rate < 8
    assert max(point.output_tokens_per_s for point in report.points) == pytest.approx(32, rel=0.03)
    assert not report.interrupted
    assert "keep the SLO" in report.advice.reason


@virtual
async def test_nothing_is_sent_to_a_target_that_fails_its_probe():
    broken = QueueTarget(errors={0: ConnectionFailed("refused", sent=False)})
    with pytest.raises(CallError, match="queue does not answer, and no load was sent: refused"):
        await Experiment(broken, mix(), PHASES).run([1.0])
    assert len(broken.asked) == 1

    class Mute(QueueTarget):
        async def ask(self, request, came):
            return await QueueTarget.ask(self, request, lambda: None)

    with pytest.raises(CallError, match="without any text"):
        await Experiment(Mute(), mix(), PHASES).run([1.0])


@virtual
async def test_a_report_is_there_at_any_time():
    target = QueueTarget(servers=9, told=False)
    experiment = Experiment(target, mix(), PHASES)
    assert experiment.report().points == []
    task = asyncio.create_task(experiment.run([1.0, 2.0]))
    await asyncio.sleep(400)
    assert task.done()
    assert not experiment.report().interrupted
    task = asyncio.create_task((half := Experiment(target, mix(), PHASES)).run([1.0, 2.0]))
    await asyncio.sleep(150)
    task.cancel()
    await asyncio.wait([task])
    report = half.report({"further": "told"})
    assert [point.rate for point in report.points] == [1.0, 2.0]
    assert report.points[1].window.seconds < 40
    assert report.settings["further"] == "told"
    assert "Interrupted" in report.notes[0]
    assert "2/s, does not count" in report.notes[0]
    assert report.advice.rate == 1.0
    assert "tells no usage" in report.notes[1]


@virtual
async def test_a_load_that_is_over_before_its_window_ends_a_sweep():
    said = []
    few = Listed([Request(number, float(number), TrafficClass.BULK, 4, 1) for number in range(5)])
    experiment = Experiment(QueueTarget(servers=9), few, PHASES, say=said.append)
    await experiment.run([1.0], sweep=True)
    assert experiment.report().points == []
    assert "no call came in the window; the load is over before it: warm up less" in said[-1]


@virtual
async def test_no_two_calls_are_asked_in_the_same_words():
    target = QueueTarget(servers=9)
    for nonce in (None, None, "same", "same"):
        await Experiment(target, mix(), Phases(0.0, 10.0, 9.0), nonce=nonce).run([1.0, 2.0], sweep=False)
    words = [messages_of(request)[0]["content"] for request in target.asked]
    assert len(words) == 4 * (1 + 9 + 19)
    assert len(set(words)) == 3 * (1 + 9 + 19)  # the same again only where it is asked for


@virtual
async def test_a_generator_that_is_late_ends_a_sweep_and_blames_nobody():
    class Heavy(QueueTarget):
        async def ask(self, request, came):
            asyncio.get_running_loop()._now += 0.2  # of this machine's CPU
            return await QueueTarget.ask(self, request, came)

    said = []
    phases, slo = Phases(2.0, 20.0, 60.0), Slo.parse("ttft=500ms")
    experiment = Experiment(Heavy(servers=99), mix(), phases, slo=slo, say=said.append)
    await experiment.run([2.0], sweep=True)
    report = experiment.report()
    assert [point.rate for point in report.points] == [2.0, 4.0, 8.0]
    assert report.points[-1].late
    assert (report.advice.rate, report.advice.saturation) == (4.0, None)
    assert "this machine cannot send more calls in time" in said[-1]


def test_a_mix_makes_no_more_calls_than_are_asked_for():
    assert len(list(islice(mix().requests(1.0), 7))) == 7
