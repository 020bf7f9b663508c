"""Traffic that meets the real budget, routes and jobs in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from simulate_lab import settings, simulated

from orchestra.config import parse_config
from orchestra.errors import InputError
from orchestra.policies.traffic import TrafficClass
from orchestra.simulate.engine_speed import EngineSpeed
from orchestra.simulate.outside import EVERYBODY, Outage, Outside
from orchestra.simulate.simulation import Simulation
from orchestra.simulate.times import Times
from orchestra.simulate.traffic import Ask, Size, Traffic
from orchestra.testing import Limits

QUICK = Outside(ttft={EVERYBODY: Times(0.5)}, tpot={EVERYBODY: Times(0.01)})


def test_a_job_drains_at_the_pace_that_is_left_to_it():
    """Of 60 calls a minute others take a half: first it takes what is saved up, then one in two seconds."""
    found = simulated(settings(limits={"requests_per_minute": 60}), QUICK, jobs=["00:00:200"])
    (job,) = found.jobs
    assert (job.done, job.failed, job.kept) == (200, 0, None)
    assert job.seconds == pytest.approx((200 - 51) / 0.5, rel=0.15)
    people, bulk = found.classes["interactive"], found.classes["bulk"]
    assert people.calls + bulk.calls == people.answered + bulk.answered == found.outlets[0].calls
    assert people.waits is not None
    assert bulk.waits is not None
    assert people.waits.p95 < 1.0 < 60.0 < bulk.waits.p95
    assert found.pools[0].hours[0] == pytest.approx(found.outlets[0].calls / 3600, rel=0.01)


def test_the_seed_decides_everything():
    config = settings(limits={"requests_per_minute": 40})
    batch_time = {EVERYBODY: Times.parse("2m:p50,4m:p95")}
    outside = Outside(failing={"one": 0.05}, outages=[Outage.parse("00:01-00:02")], batch_time=batch_time)

    def run(seed: int) -> object:
        return simulated(config, outside, minutes=3, jobs=["00:01:20:26h"], seed=seed).as_json()

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_with_a_day_of_time_a_job_rides_in_batches_at_half_the_price():
    outside = Outside(batch_time={"one": Times(7200.0)})
    found = simulated(settings(limits={"requests_per_minute": 60}), outside, jobs=["00:02:200:26h"])
    (job,) = found.jobs
    assert (job.batched, job.kept) == (200, True)
    assert job.seconds == pytest.approx(7200, rel=0.05)
    batches = next(outlet for outlet in found.outlets if outlet.via == "batch")
    assert batches.usd == pytest.approx((batches.usd_sync or 0) / 2)
    assert found.usd < found.usd_sync
    assert found.seconds > found.asked_seconds + 6000


def test_batches_that_take_too_long_are_left_before_the_deadline():
    """The provider answers line after line until after it. What is left goes by itself in time."""
    config = settings(limits={"requests_per_minute": 60})
    config["providers"]["one"]["batch"] = {"poll_seconds": 900.0, "poll_max_seconds": 900.0}
    outside = Outside(batch_time={"one": Times(100_000.0)})
    found = simulated(config, outside, rate=0, jobs=["00:00:100:24h"])
    (job,) = found.jobs
    assert (job.done, job.kept) == (100, True)
    assert 50 < job.batched < 90
    assert {outlet.via: outlet.calls for outlet in found.outlets} == {
        "batch": job.batched,
        "sync": 100 - job.batched,
    }
    assert 60_000 < (job.seconds or 0) < 86_400


def test_a_deadline_is_missed_by_what_the_limit_does_not_let_through():
    found = simulated(settings(limits={"requests_per_minute": 60}), rate=0, jobs=["00:00:150:1m"])
    (job,) = found.jobs
    assert (job.kept, found.missed, job.seconds) == (False, 1, pytest.approx(60, abs=2))
    assert job.expired == job.failed == 150 - job.done
    assert job.done == pytest.approx(60 * 0.85 + 60, rel=0.1), "bulk leaves people a share of what is saved up"


def test_in_an_outage_calls_take_the_engine():
    config = settings(local={"small": {"weights": "smollm2-135m", "dollars_per_hour": 0.6}})
    config["models"]["fast"]["routes"].append("local/small")
    outside = Outside(
        outages=[Outage.parse("one=00:02-00:06")], engines={"small": EngineSpeed.parse("slots:4,step:20ms")}
    )
    found = simulated(config, outside)
    calls = Counter({outlet.route: outlet.calls for outlet in found.outlets})
    assert calls["local/small"] == pytest.approx(0.4 * calls.total(), rel=0.25)
    assert sum(one.answered for one in found.classes.values()) == calls.total()
    assert 0 < found.engines["small"] < 1
    assert found.engine_usd == pytest.approx(0.6 * found.seconds / 3600)


def test_what_a_provider_enforces_is_met_though_the_settings_say_more():
    outside = Outside(allows={"one": Limits(requests_per_minute=20, burst_seconds=10, headers="retry-after")})
    found = simulated(settings(limits={"requests_per_minute": 600}), outside, patience=None)
    refused = sum(found.classes["interactive"].attempts.values()) + sum(found.classes["bulk"].attempts.values())
    assert refused > 20
    assert found.outlets[0].calls / found.seconds == pytest.approx(20 / 60, rel=0.25)


def test_who_may_not_wait_is_refused():
    found = simulated(settings(limits={"requests_per_minute": 6}), patience=5.0)
    people = found.classes["interactive"]
    assert people.refusals["AdmissionTimeout"] > 10
    assert people.calls == people.answered + sum(people.refusals.values())


@pytest.mark.parametrize("kind", ["anthropic", "gemini", "mistral", "together"])
def test_other_wires_are_spoken_and_their_batches(kind: str):
    jobs = [] if kind == "gemini" else ["00:00:5:26h"]
    outside = Outside(batch_time={"one": Times(60.0)})
    found = simulated(settings(kind=kind, limits={"requests_per_minute": 60}), outside, minutes=2, jobs=jobs)
    sync, *batches = sorted(found.outlets, key=lambda outlet: outlet.via, reverse=True)
    assert (sync.input_tokens, sync.output_tokens) == (100 * sync.calls, 20 * sync.calls)
    assert [outlet.calls for outlet in batches] == [5] * len(jobs)


def test_what_cannot_be_simulated_is_refused_with_the_remedy():
    local = {"models": {"fast": {"routes": ["local/x"]}}, "local": {"x": {"weights": "smollm2-135m"}}}
    with pytest.raises(InputError, match="--engine x=h100"):
        simulated(local)
    with pytest.raises(InputError, match="no provider 'two'; they have: one"):
        simulated(settings(), Outside(failing={"two": 0.5}))
    with pytest.raises(InputError, match="Gemini's wire"):
        simulated(settings(kind="gemini"), jobs=["00:00:5"])
    with pytest.raises(InputError, match="after the end"):
        simulated(settings(), jobs=["01:00:5"])


def test_interrupted_it_tells_what_had_happened():
    """Ctrl-C cancels what a runner runs."""
    interrupted: list[asyncio.Task[object]] = []

    def progress(second: float) -> None:
        if second >= 600:
            interrupted.extend(task for task in asyncio.all_tasks() if "_run" in repr(task.get_coro()))
            interrupted[0].cancel()

    calls = [Ask(float(at), TrafficClass.INTERACTIVE, "fast", Size(10, 5)) for at in range(800)]
    found = Simulation(parse_config(settings()), Traffic(calls, seconds=800), QUICK, progress=progress).run()
    assert found.is_interrupted
    assert found.seconds == pytest.approx(600, abs=1)
    assert 590 <= found.classes["interactive"].answered <= 601


def test_calls_of_an_outage_without_a_fallback_are_counted_each():
    """Most of them never have a route that is ready: they fail, or wait for one until the outage is over."""
    outside = Outside(outages=[Outage.parse("00:02-00:06")], ttft={EVERYBODY: Times(0.5)}, tpot=QUICK.tpot)
    found = simulated(settings(limits={"requests_per_minute": 600}), outside)
    calls = simulated(settings(limits={"requests_per_minute": 600}), QUICK)
    for name, one in found.classes.items():
        assert one.calls == calls.classes[name].calls
        assert one.calls == one.answered + sum(one.refusals.values()) + sum(one.errors.values()) + one.unfinished
    people, bulk = found.classes["interactive"], found.classes["bulk"]
    assert people.errors["no route is ready"] > 20
    assert bulk.longest_wait > 10.0


def test_a_request_that_fails_uses_its_limit_too():
    found = simulated(settings(limits={"requests_per_minute": 600}), Outside(failing={"one": 0.5}), minutes=5)
    tries = sum(sum(one.attempts.values()) for one in found.classes.values())
    assert tries > 50
    used = found.pools[0].hours[0] * 600 * 60
    assert used >= found.outlets[0].calls + tries
