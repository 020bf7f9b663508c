"""A batch that does not end, an account that is refused, a provider that is down: no line is lost by it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from diversion_lab import assert_answers, awaiting, diversion_lab, eventually, over, provided, settings
from virtual_time import virtual

from orchestra.errors import ConnectionFailed, JobError
from orchestra.testing import BatchScript, Reply

STUCK = {
    "never": BatchScript(end=None, running=1.0, cancelling=100.0),
    "unknown": BatchScript(end="odd", running=1.0, cancelling=100.0),
    "uncounted": BatchScript(end=None, running=1.0, cancelling=100.0, counts=False),
    "half": BatchScript(end=None, running=1.0, answered=0.5, cancelling=100.0),
    "unseen": BatchScript(end=None, on_poll=[Reply.error(503)] * 999, cancelling=100.0),
    "unmade": BatchScript(end=None, on_create=Reply(delay=1e6), cancelling=100.0),
}


@pytest.mark.parametrize("how", STUCK)
@pytest.mark.parametrize(
    ("deadline", "expected", "cancelling"), [(40, 5, 4), (30, 5, 3), (60, 20, 30), (600, 60, 30), (7200, 900, 600)]
)
@virtual
async def test_a_batch_that_does_not_end_costs_no_line(
    tmp_path: Path, how: str, deadline: int, expected: int, cancelling: int
):
    config = {"batch": {"expected_seconds": float(expected), "cancelling_seconds": float(cancelling)}}
    async with diversion_lab(tmp_path, config, batch_default=STUCK[how]) as lab:
        began = lab.now()
        results = await lab.done(await lab.submit(50, deadline=f"{deadline}s"))
        assert_answers(results)
        assert lab.now() - began < deadline - 1


@virtual
async def test_no_awaited_call_is_told_that_its_deadline_passed(tmp_path: Path):
    config = {"batch": {"expected_seconds": 5.0, "cancelling_seconds": 3.0}}
    async with (
        provided(batch_default=STUCK["never"]) as provider,
        awaiting(provider, settings(provider, tmp_path, **config)) as lab,
    ):
        began = lab.lab.now()
        said = await asyncio.gather(*(lab.say(f"q{n}", deadline=30.0) for n in range(300)))
        assert said == [f"q{n}" for n in range(300)]
        assert lab.lab.now() - began < 29


@pytest.mark.parametrize("path", ["POST /v1/files", "POST /v1/batches"])
@pytest.mark.parametrize("refusal", [Reply.error(401), Reply.error(402), Reply.error(429, "insufficient_quota")])
@virtual
async def test_an_account_that_is_refused_keeps_its_batches_and_their_price(
    tmp_path: Path, path: str, refusal: Reply
):
    async with provided(routes={path: [refusal]}, batch_default=BatchScript(running=60.0)) as provider:
        config = settings(provider, tmp_path)
        async with over(provider, config) as lab:
            job = await lab.submit(10)
            with pytest.raises(JobError, match=r"\[providers\.one\] is refused.*run the job again"):
                await job.wait()
            assert lab.states(job) == ["sealed" if path.endswith("files") else "uploaded"]
        async with over(provider, config) as lab:
            results = await lab.done(await lab.submit(10))
            assert_answers(results)
            assert lab.via(results) == {"batch": 10}
            assert lab.calls() == 0


@pytest.mark.parametrize("path", ["POST /v1/files", "POST /v1/batches"])
@virtual
async def test_a_key_that_may_have_no_batches_costs_the_discount_and_nothing_else(
    tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture
):
    async with diversion_lab(tmp_path, routes={path: [Reply.error(403)] * 99}) as lab:
        job = await lab.submit(10)
        assert_answers(results := await lab.done(job))
        assert lab.via(results) == {"sync": 10}
        (note,) = lab.notes(job)
        assert note is not None
        assert "answered 403" in note
        assert "[providers.one.batch] enabled = false" in note
        assert note in caplog.text
        asked = len(lab.provider.log)
        assert_answers(await lab.done(await lab.submit(10, job="later")))
        assert len(lab.provider.log) == asked + 10, "nobody asks for a batch again"


@virtual
async def test_a_key_that_may_not_look_at_batches_keeps_no_line_beyond_its_time(tmp_path: Path):
    script = BatchScript(running=60.0, on_poll=[Reply.error(403)] * 999)
    config = {"batch": {"expected_seconds": 60.0, "cancelling_seconds": 30.0}}
    async with diversion_lab(tmp_path, config, batch_script=[script]) as lab:
        job = await lab.submit(10, deadline="600s")
        await eventually(lambda: job.progress().waiting is not None)
        assert "batches cannot be looked at" in (job.progress().waiting or "")
        assert_answers(results := await lab.done(job))
        assert lab.via(results) == {"sync": 10}


@virtual
async def test_an_awaited_call_hears_of_a_wrong_key_from_the_provider(tmp_path: Path):
    async with provided(accounts={"sk-right": "us"}) as provider:
        config = settings(provider, tmp_path)
        async with awaiting(provider, config) as lab:
            status, _ = await lab.ask("q0", job="nightly")
            assert status == 401
        config["providers"]["one"]["api_key"] = "sk-right"
        async with awaiting(provider, config) as lab:
            assert await lab.say("q0", job="nightly") == "q0"
            assert lab.lab.creates() == 1, "it rides, though it went by itself before"
            assert lab.lab.calls() == 1


@virtual
async def test_an_outage_is_told_once_and_is_over_when_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    async with diversion_lab(tmp_path, batch_default=BatchScript(running=60.0)) as lab:
        lab.wire.fails = lambda method, path: ConnectionFailed("connection refused", sent=False)
        job = await lab.submit(10)
        await eventually(lambda: job.progress().waiting is not None)
        waiting = job.progress().waiting or ""
        assert waiting.startswith("batches cannot be handed in: connection refused; tried again in ")
        await eventually(lambda: (lab.manager.store.find("j") or job.record).stopped is not None)
        began = lab.now()
        await eventually(lambda: lab.now() > began + 300)
        lab.wire.fails = None
        await eventually(lambda: "submitted" in lab.states(job))
        assert job.progress().waiting is None
        assert_answers(await lab.done(job))
        told = [one.getMessage() for one in caplog.records if "cannot be handed in" in one.getMessage()]
        assert told == ["job j: one/m: batches cannot be handed in: connection refused"]
        assert (lab.manager.store.find("j") or job.record).stopped is None
