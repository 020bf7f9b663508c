"""Cancelling and resuming from a program, and what its snapshot tells of open batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from orchestra import Orchestra
from orchestra.call import Call, Outcome
from orchestra.errors import JobError
from orchestra.jobs import Job, JobManager
from orchestra.testing import BatchScript, ScriptedProvider

Make = Callable[..., Any]


@pytest.fixture
async def provider() -> AsyncIterator[ScriptedProvider]:
    async with ScriptedProvider(batch_default=BatchScript(answered=7, running=0.0, end=None)) as provider:
        yield provider


@pytest.fixture
async def orc(provider: ScriptedProvider, tmp_path: Path) -> AsyncIterator[Orchestra]:
    batch = {"poll_seconds": 0.05, "poll_max_seconds": 0.1, "cancelling_seconds": 5.0, "window_seconds": 0.05}
    account = {"kind": "openai", "base_url": provider.base_url, "api_key": "sk-hidden", "batch": batch}
    settings = {"providers": {"acme": account}, "bulk": {"store": str(tmp_path / "jobs.db")}}
    async with Orchestra.from_config(settings) as orc:
        yield orc


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2500):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not happen in time")


async def submitted(orc: Orchestra, request_of: Make, count: int = 20) -> Job:
    """Submit a job, and return it when its batch is at the provider."""
    requests = [request_of(n, model="acme/m") for n in range(count)]
    job = await orc.submit(requests, job="j", deadline="24h")
    await until(lambda: [batch.state for batch in job.progress().batches] == ["submitted"])
    return job


async def test_a_job_that_runs_here_is_cancelled(
    orc: Orchestra, provider: ScriptedProvider, request_of: Make
) -> None:
    job = await submitted(orc, request_of)
    waiting = asyncio.create_task(job.wait())
    cancelled = await orc.jobs.cancel("j")
    assert (cancelled.lines, cancelled.collected) == (13, 7)
    (batch,) = cancelled.batches
    assert (batch.outcome, batch.riding, batch.note) == ("cancelled", 20, None)
    with pytest.raises(JobError, match="cancelled"):
        await waiting
    ended = orc.jobs.get("j")
    assert ended.record.state == "ended"
    results = [result async for result in ended]
    assert sorted(result.error_code or "ok" for result in results) == ["cancelled"] * 13 + ["ok"] * 7
    assert provider.billed.all.batch == 7
    assert await orc.jobs.cancel("j") == type(cancelled)(0, 0, ())


async def test_a_job_is_resumed_from_the_ledger(
    orc: Orchestra, provider: ScriptedProvider, request_of: Make
) -> None:
    job = await submitted(orc, request_of)
    assert await orc.jobs.resume("j") is job
    await job.cancel()
    again = await orc.jobs.resume("j")
    assert again is not job
    assert orc.jobs.get("j") is again
    await orc.jobs.cancel("j", collect=False)
    assert (await orc.jobs.resume("j")).progress().ended
    with pytest.raises(JobError, match="there is no job 'k'"):
        await orc.jobs.resume("k")
    with pytest.raises(JobError, match="there is no job 'k'"):
        await orc.jobs.cancel("k")


async def test_the_snapshot_tells_of_open_batches(orc: Orchestra, request_of: Make) -> None:
    assert orc.snapshot()["batches"] == []
    job = await submitted(orc, request_of)
    (batch,) = orc.snapshot()["batches"]
    assert (batch["provider"], batch["route"], batch["job"]) == ("acme", "acme/m", "j")
    assert (batch["state"], batch["lines"], batch["riding"]) == ("submitted", 20, 20)
    assert 0 <= batch["age"] < 20
    assert batch["deadline"] == job.record.deadline
    assert "sk-hidden" not in str(orc.snapshot())
    (told,) = orc.snapshot()["jobs"]["j"]["batches"]
    assert told["batch_id"] == batch["batch_id"]
    await until(lambda: job.progress().batches[0].next_look is not None)
    await orc.jobs.cancel("j", collect=False)
    assert orc.snapshot()["batches"] == []


async def test_a_batch_that_does_not_end_is_not_waited_for_for_ever(
    orc: Orchestra, provider: ScriptedProvider, request_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.jobs.diversion.cancelling._READING", -4.7)
    provider.batch_default = BatchScript(end=None, cancelling=1e6)
    await submitted(orc, request_of)
    cancelled = await orc.jobs.cancel("j")
    (batch,) = cancelled.batches
    assert (cancelled.lines, batch.outcome) == (20, "cancelled")
    assert "did not end in time" in (batch.note or "")
    (record,) = orc.jobs.store.batches.of_job(1)
    assert (record.state, record.note) == ("abandoned", batch.note)


async def test_a_machine_with_a_price_by_the_hour(outcome: Make, request_of: Make, tmp_path: Path) -> None:
    async def send(call: Call) -> Outcome:
        await asyncio.sleep(0.01)
        answered = outcome()
        return Outcome(answered.status, answered.headers, answered.body, "local/x", answered.usage)

    manager = JobManager(tmp_path / "jobs.db", send, dollars_per_hour={"local/x": 3600.0})
    try:
        progress = await (await manager.submit([request_of(n) for n in range(10)])).wait()
    finally:
        await manager.aclose()
    (cost,) = progress.usd_per_million.values()
    seconds = cost / 1e6 * 100  # at a dollar a second, for ten tokens a line
    assert 0.01 <= seconds < 20
    assert [(one.route, one.via) for one in progress.outlets] == [("local/x", "local")]
