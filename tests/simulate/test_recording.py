"""A log of events, written and read again as traffic."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import pytest
from simulate_lab import settings

from orchestra.clock import Clock
from orchestra.config import parse_config
from orchestra.errors import InputError
from orchestra.observe.event_log import EventLog
from orchestra.observe.events import Event
from orchestra.policies.traffic import TrafficClass
from orchestra.simulate import simulation
from orchestra.simulate.outside import Outside
from orchestra.simulate.recording import read_recording
from orchestra.simulate.simulation import Simulation
from orchestra.simulate.summing_up import class_findings
from orchestra.simulate.tally import Tally
from orchestra.simulate.traffic import Ask, Burst, Size, Traffic

INTERACTIVE, BULK = TrafficClass.INTERACTIVE, TrafficClass.BULK


def test_what_was_recorded_comes_again_and_meets_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A simulation's own events, recorded and simulated, bring the same waits and the same end of the job."""
    path = tmp_path / "events.jsonl"
    config = parse_config(settings(limits={"requests_per_minute": 60}))
    classes = [(INTERACTIVE, 60.0), (BULK, None)]
    calls = [
        Ask(2.0 * at, classes[at % 2][0], "fast", Size(40 + at, 10 + at % 7, 64), classes[at % 2][1])
        for at in range(90)
    ]
    traffic = Traffic(calls, [Burst("j", 20.0, "fast", [Size(30, 12, 20)] * 80)], seconds=180.0)

    class Recorded(Tally):
        def __init__(self, began: float) -> None:
            super().__init__(began)
            loop = asyncio.get_running_loop()
            self._log = EventLog(path, clock=Clock(loop.time, lambda: loop.time() + 1e9))

        def __call__(self, event: Event) -> None:
            super().__call__(event)
            self._log(event)

    with monkeypatch.context() as patched:
        patched.setattr(simulation, "Tally", Recorded)
        first = Simulation(config, traffic, Outside()).run()
    again = read_recording(path)
    assert [(ask.at, ask.traffic, ask.size[:4], ask.time_left) for ask in again.calls] == [
        (pytest.approx(ask.at, abs=1e-5), ask.traffic, (*ask.size[:3], ask.size.prompt), ask.time_left)
        for ask in calls
    ]
    (burst,) = again.jobs
    assert [size[:3] for size in burst.lines] == [(30, 12, 20)] * 80
    assert burst.at == pytest.approx(20.0, abs=0.1)
    second = Simulation(config, again, Outside(), seed=7).run()
    assert second.jobs[0].seconds == pytest.approx(first.jobs[0].seconds, rel=0.02)
    assert second.classes["bulk"].waits is not None
    assert first.classes["bulk"].waits is not None
    assert second.classes["bulk"].waits.p50 == pytest.approx(first.classes["bulk"].waits.p50, rel=0.05, abs=0.1)
    assert second.outlets == first.outlets

    counted = Tally()
    for event in EventLog.read(path):
        counted(event)
    assert class_findings(counted.classes[BULK]).answered == first.classes["bulk"].answered
    assert counted.jobs["j"].seconds == pytest.approx(first.jobs[0].seconds, abs=0.1)


def test_events_after_a_suspension_are_told_in_unix_time_again(tmp_path: Path):
    now = [100.0, 5000.0]  # the monotonic clock stands while the machine is suspended
    log = EventLog(tmp_path / "events.jsonl", clock=Clock(lambda: now[0], lambda: now[1]))
    log(Event(kind="sent", call="a", traffic=BULK, at=100.0, route="one/m"))
    now[:] = 101.0, 8601.0
    log(Event(kind="sent", call="b", traffic=BULK, at=101.0, route="one/m"))
    log.close()
    assert [event.at for event in EventLog.read(tmp_path / "events.jsonl")] == [5000.0, 8601.0]


def test_lines_that_rode_in_batches_are_as_long_as_their_sum_says(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log(Event(kind="job_began", call="", traffic=BULK, at=10.0, job="j", model="fast", time_left=3600.0))
    told = {"call": "a", "traffic": BULK, "route": "one/m", "model": "fast", "job": "j", "attempt": 1}
    log(Event(kind="queued", at=11.0, estimated_input_tokens=50.0, **told))
    log(Event(kind="settled", at=12.0, input_tokens=60, output_tokens=5, duration=0.9, **told))
    log(
        Event(
            kind="job_ended",
            call="",
            traffic=BULK,
            at=500.0,
            job="j",
            lines=5,
            input_tokens=460,
            output_tokens=85,
        )
    )
    log.close()
    (burst,) = read_recording(path).jobs
    assert (burst.deadline, len(burst.lines)) == (3600.0, 5)
    assert burst.lines[0] == Size(50, 5, None, 60, 0.9)
    assert burst.lines[1:] == [Size(100, 20, 20)] * 4


def test_a_log_is_its_owners_goes_on_after_a_crash_and_holds_no_text(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"kind":"queued","call":"cut sho')
    log = EventLog(path)
    log(Event(kind="sent", call="a", traffic=BULK, at=5.0, route="one/m"))
    log.close()
    log(Event(kind="sent", call="b", traffic=BULK, at=6.0))  # nobody listens any more
    (event,) = EventLog.read(path)
    assert (event.kind, event.call, event.route) == ("sent", "a", "one/m")
    assert len(path.read_bytes().splitlines()) == 2
    fresh = tmp_path / "fresh.jsonl"
    EventLog(fresh).close()
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o600


def test_what_is_no_log_is_refused(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"custom_id": "1", "body": {}}) + "\n")
    with pytest.raises(InputError, match=r"x\.jsonl:1 is no event"):
        read_recording(path)
    path.write_text("")
    with pytest.raises(InputError, match="holds no call"):
        read_recording(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_recording(tmp_path / "missing.jsonl")
    with pytest.raises(InputError, match="cannot be written"):
        EventLog(tmp_path)


def test_what_no_route_took_came_when_it_was_made_and_a_ride_is_no_time_of_an_answer(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    tired = {"call": "a", "traffic": INTERACTIVE, "model": "fast"}
    log(Event(kind="parked", call="b", traffic=BULK, at=100.0, model="fast"))
    log(Event(kind="failed", at=150.0, duration=30.0, attempt=0, reason="no route is ready", **tired))
    told = {"call": "b", "traffic": BULK, "model": "fast", "route": "one/m"}
    log(Event(kind="settled", at=2500.0, input_tokens=60, output_tokens=5, duration=2400.0, **told))
    log.close()
    parked, failed = read_recording(path).calls
    assert (parked.at, parked.size.seconds, parked.size.prompt) == (0.0, None, 60)
    assert (failed.at, failed.traffic, failed.model) == (pytest.approx(20.0), INTERACTIVE, "fast")
    counted = Tally()
    for event in EventLog.read(path):
        counted(event)
    assert counted.classes[INTERACTIVE].errors == {"no route is ready": 1}


def test_lines_of_a_job_ask_their_own_models_and_what_is_left_out_is_said(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    for job in ("j", "unknown"):
        log(Event(kind="job_began", call="", traffic=BULK, at=10.0, job=job))
    for number, model in enumerate(("fast", "slow", "slow")):
        told = {"call": f"{number}", "traffic": BULK, "route": "one/m", "model": model, "job": "j", "attempt": 1}
        log(Event(kind="queued", at=11.0, estimated_input_tokens=50.0, **told))
        log(Event(kind="settled", at=12.0, input_tokens=50, output_tokens=5, duration=0.9, **told))
    for job in ("j", "unknown"):
        log(Event(kind="job_ended", call="", traffic=BULK, at=90.0, job=job, lines=4, input_tokens=250))
    log.close()
    traffic = read_recording(path)
    lines = {(one.name, one.model): len(one.lines) for one in traffic.jobs}
    assert lines == {("j-1", "fast"): 1, ("j-2", "slow"): 3}
    assert traffic.about["left out"].endswith("no line: unknown")
    assert traffic.about["in parts"].endswith(": j")
