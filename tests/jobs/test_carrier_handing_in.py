"""A batch is created once, whatever becomes of the answers, and of us."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from diversion_lab import DiversionLab, assert_answers, diversion_lab, eventually, over, provided, settings
from virtual_time import virtual

from orchestra.errors import ConnectionFailed
from orchestra.jobs.ledger.batch_ledger import BatchLedger
from orchestra.testing import BatchLimits, BatchScript, Limits, Reply

HOUR = 3600.0
KINDS = pytest.mark.parametrize("kind", ["openai", "anthropic"])
SEEDS = pytest.mark.parametrize("seed", range(3))


class Killed(Exception):
    pass


@SEEDS
@KINDS
@virtual
async def test_a_creation_whose_answer_is_lost_is_found(tmp_path: Path, kind: str, seed: int):
    """OpenAI's by our key in its metadata, Anthropic's by its size and its results."""
    script = BatchScript(running=HOUR, on_create=Reply(drop=True))
    async with diversion_lab(tmp_path, {"kind": kind}, batch_script=[script]) as lab:
        results = await lab.done(await lab.submit(10, kind=kind))
        assert_answers(results)
        assert lab.creates() == 1
        assert lab.via(results) == {"batch": 10}
        lab.assert_paid_once()


@virtual
async def test_two_creations_whose_answers_are_lost_are_told_apart(tmp_path: Path):
    """Of two batches of one size nobody can say which is which before their results are there."""
    script = BatchScript(running=600.0, on_create=Reply(drop=True))
    config = {"kind": "anthropic", "batch": {"max_requests": 5}}
    async with diversion_lab(tmp_path, config, batch_script=[script, script]) as lab:
        results = await lab.done(await lab.submit(10, kind="anthropic"))
        assert_answers(results)
        assert lab.creates() == 2
        assert lab.via(results) == {"batch": 10}
        lab.assert_paid_once()


@virtual
async def test_of_two_creations_of_which_one_never_arrived_none_is_taken_for_the_other(tmp_path: Path):
    script = BatchScript(running=600.0, on_create=Reply(drop=True))
    config = {"kind": "anthropic", "batch": {"max_requests": 5}}
    routes = {"POST /v1/messages/batches": [Reply(drop=True)]}
    async with diversion_lab(
        tmp_path, config, routes=routes, batch_script=[script], batch_default=BatchScript(running=60.0)
    ) as lab:
        results = await lab.done(await lab.submit(10, kind="anthropic"))
        assert_answers(results)
        assert lab.provider.counts()["batches"] == 2
        assert lab.via(results) == {"batch": 10}
        lab.assert_paid_once()


@KINDS
@pytest.mark.parametrize("at", ["creating", "submitted", "uploaded", "seen", "end"])
@virtual
async def test_who_comes_after_a_crash_creates_nothing_twice(tmp_path: Path, kind: str, at: str):
    """The process dies where it is about to record that step."""
    if (kind, at) == ("anthropic", "uploaded"):
        return

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    async with provided(batch_default=BatchScript(running=HOUR)) as provider:
        config = settings(provider, tmp_path, kind=kind)
        async with over(provider, config) as lab:
            with mock.patch.object(BatchLedger, at, die):
                job = await lab.submit(10, kind=kind)
                with pytest.raises(Exception, match="Killed"):
                    await job.wait()
        async with over(provider, config) as lab:
            results = await lab.done(await lab.submit(10, kind=kind))
            assert_answers(results)
            assert lab.creates() == 1
            assert lab.via(results) == {"batch": 10}
            assert lab.uploads() == (0 if kind == "anthropic" else 2 if at == "uploaded" else 1)
            lab.assert_paid_once()


@SEEDS
@KINDS
@virtual
async def test_a_job_cancelled_at_any_moment_is_taken_up(tmp_path: Path, kind: str, seed: int):
    """Again and again: no line is paid twice, and what was uploaded is not uploaded again."""
    async with provided(batch_default=BatchScript(running=120.0)) as provider:
        config = settings(provider, tmp_path, kind=kind)
        loop: Any = asyncio.get_running_loop()
        for _ in range(12):
            async with over(provider, config) as lab:
                job = await lab.submit(10, kind=kind)
                await asyncio.sleep(loop.dice.random() * 1.0)
                await job.cancel()
        async with over(provider, config) as lab:
            results = await lab.done(await lab.submit(10, kind=kind))
            assert_answers(results)
            assert lab.via(results) == {"batch": 10}
            assert lab.creates() <= 2
            lab.assert_paid_once()


@virtual
async def test_a_file_that_is_not_there_yet_is_waited_for(tmp_path: Path):
    async with diversion_lab(tmp_path, file_delay=12.0, batch_default=BatchScript(running=60.0)) as lab:
        results = await lab.done(await lab.submit(10))
        assert_answers(results)
        assert lab.via(results) == {"batch": 10}
        assert lab.uploads() == 1
        lab.assert_paid_once()


@virtual
async def test_a_file_that_is_gone_when_the_job_goes_on_is_uploaded_again(tmp_path: Path):
    def die(*_: Any, **__: Any) -> None:
        raise Killed

    async with provided(batch_default=BatchScript(running=60.0)) as provider:
        config = settings(provider, tmp_path)
        async with over(provider, config) as lab:
            with mock.patch.object(BatchLedger, "creating", die):
                job = await lab.submit(10)
                with pytest.raises(Exception, match="Killed"):
                    await job.wait()
        provider._desk.files.clear()
        async with over(provider, config) as lab:
            results = await lab.done(await lab.submit(10))
            assert_answers(results)
            assert lab.via(results) == {"batch": 10}
            assert lab.uploads() == 2
            lab.assert_paid_once()


@virtual
async def test_uploads_that_fail_are_tried_again(tmp_path: Path):
    routes = {
        "POST /v1/files": [Reply(drop=True), Reply.error(503), Reply.error(429, headers={"retry-after": "30"})]
    }
    async with diversion_lab(tmp_path, routes=routes, batch_default=BatchScript(running=60.0)) as lab:
        results = await lab.done(await lab.submit(10))
        assert_answers(results)
        assert lab.via(results) == {"batch": 10}
        assert lab.creates() == 1


@pytest.mark.parametrize("status", [400, 404, 422])
@virtual
async def test_where_batches_are_refused_lines_go_by_themselves(tmp_path: Path, status: int):
    """The second batch is not even tried."""
    routes = {"POST /v1/files": [Reply.error(status)] * 50}
    async with diversion_lab(tmp_path, {"batch": {"max_requests": 5}}, routes=routes) as lab:
        results = await lab.done(await lab.submit(10))
        assert_answers(results)
        assert lab.via(results) == {"sync": 10}
        lab.assert_paid_once()


@virtual
async def test_a_batch_that_is_not_created_before_its_lines_must_go_is_let_go(tmp_path: Path):
    """Its lines are answered in time; and where it was created after all, it is stopped."""
    config = {"batch": {"expected_seconds": 10.0, "cancelling_seconds": 5.0}}
    script = BatchScript(running=20.0, on_create=Reply(delay=100.0), cancelling=5.0)
    async with diversion_lab(tmp_path, config, batch_script=[script]) as lab:
        began = lab.now()
        results = await lab.done(await lab.submit(10, deadline="120s"))
        assert_answers(results)
        assert lab.now() - began < 120


@virtual
async def test_an_endpoint_that_is_down_lets_go_of_the_lines_in_time(tmp_path: Path):
    async with diversion_lab(tmp_path, routes={"POST /v1/files": [Reply.error(503)] * 5000}) as lab:
        began = lab.now()
        results = await lab.done(await lab.submit(10))
        assert_answers(results)
        assert lab.via(results) == {"sync": 10}
        assert 23 * HOUR < lab.now() - began < 24 * HOUR


# the provider's queue


async def _most_open(lab: DiversionLab) -> int:
    """Return how many batches were open at once at most, by the provider, from now to the end of all tasks."""
    most = 0
    while True:
        most = max(most, len(lab.provider._batches[0]._open))
        records = [one for job in lab.manager.list() for one in lab.manager.store.batches.of_job(job.id)]
        if records and all(one.state in ("ended", "abandoned") for one in records):
            return most
        await asyncio.sleep(1.0)


@virtual
async def test_no_more_is_queued_than_the_queue_holds(tmp_path: Path):
    """A thousand tokens, five batches of four hundred: two at once, and nobody is asked in vain."""
    config = {"limits": {"enqueued_batch_tokens": 1000}, "batch": {"max_requests": 4}}
    limits = BatchLimits(enqueued_tokens=1000)
    async with diversion_lab(
        tmp_path, config, batch_default=BatchScript(running=600.0), batch_limits=limits, tokens_per_character=0.2
    ) as lab:
        lines = [{"messages": [{"role": "user", "content": f"q{at} " + "x" * 360}]} for at in range(20)]
        job = await lab.manager.submit(lines, model="fast", job="j", deadline="24h")
        records = asyncio.create_task(_most_open(lab))
        results = await lab.done(job)
        assert lab.via(results) == {"batch": 20}
        assert {result.attempts for result in results} == {1}
        sizes = {record.tokens for record in lab.manager.store.batches.of_job(job.record.id)}
        assert 333 < min(sizes) <= max(sizes) <= 500, sizes
        assert await records == 2
        assert lab.creates() == 5
        assert lab.states(job) == ["ended"] * 5
        lab.assert_paid_once()


@virtual
async def test_a_batch_is_no_larger_than_half_of_the_queue(tmp_path: Path):
    config = {"limits": {"enqueued_batch_tokens": 400}}
    async with diversion_lab(tmp_path, config, batch_default=BatchScript(running=60.0)) as lab:
        job = await lab.submit(50)
        results = await lab.done(job)
        assert_answers(results)
        assert lab.via(results) == {"batch": 50}
        assert all(record.tokens <= 200 for record in lab.manager.store.batches.of_job(job.record.id))


@virtual
async def test_a_line_that_no_queue_holds_goes_by_itself(tmp_path: Path):
    config = {"limits": {"enqueued_batch_tokens": 100}}
    async with diversion_lab(tmp_path, config, batch_default=BatchScript(running=60.0)) as lab:
        lines = [{"messages": [{"role": "user", "content": text}]} for text in ("short", "long " * 200, "small")]
        results = await lab.done(await lab.manager.submit(lines, model="fast", job="j", deadline="24h"))
        assert [result.via for result in results] == ["batch", "sync", "batch"]


@virtual
async def test_a_queue_that_others_fill_costs_no_attempt(tmp_path: Path):
    """Created, and failed with token_limit_exceeded: nothing was tried, so it is handed in again later."""
    full = BatchScript(validating=5.0, end="failed", code="token_limit_exceeded")
    async with diversion_lab(tmp_path, batch_script=[full] * 3, batch_default=BatchScript(running=60.0)) as lab:
        began = lab.now()
        job = await lab.submit(10)
        results = await lab.done(job)
        assert_answers(results)
        assert lab.via(results) == {"batch": 10}
        assert {result.attempts for result in results} == {1}
        assert lab.creates() == 4
        assert lab.now() - began > 30 + 60 + 120, "it waits longer each time"


@virtual
async def test_a_queue_that_stays_full_does_not_hold_lines_beyond_their_time(tmp_path: Path):
    full = BatchScript(validating=5.0, end="failed", code="token_limit_exceeded")
    async with diversion_lab(tmp_path, batch_default=full) as lab:
        began = lab.now()
        results = await lab.done(await lab.submit(10))
        assert_answers(results)
        assert lab.via(results) == {"sync": 10}
        assert lab.now() - began < 24 * HOUR
        assert lab.creates() < 110


@virtual
async def test_batches_that_are_there_are_carried_though_the_queue_got_smaller(tmp_path: Path):
    async with provided(batch_default=BatchScript(running=HOUR)) as provider:
        config = settings(provider, tmp_path, batch={"max_requests": 5})
        async with over(provider, config) as lab:
            job = await lab.submit(10)
            await eventually(lambda: lab.states(job) == ["submitted"] * 2)
        config["providers"]["one"]["limits"] = [{"enqueued_batch_tokens": 10}]
        async with over(provider, config) as lab:
            began = lab.now()
            results = await lab.done(await lab.submit(10))
            assert lab.via(results) == {"batch": 10}
            assert lab.creates() == 2
            assert lab.now() - began < HOUR + 120
            lab.assert_paid_once()


@virtual
async def test_a_refused_creation_is_tried_again(tmp_path: Path):
    """Anthropic counts queued requests, and refuses what is too many with a 429."""
    limits = BatchLimits(enqueued_requests=5)
    config = {"kind": "anthropic", "batch": {"max_requests": 5}}
    async with diversion_lab(
        tmp_path, config, batch_default=BatchScript(running=300.0), batch_limits=limits
    ) as lab:
        results = await lab.done(await lab.submit(10, kind="anthropic"))
        assert_answers(results)
        assert lab.via(results) == {"batch": 10}
        assert {result.attempts for result in results} == {1}
        lab.assert_paid_once()


@virtual
async def test_a_large_batch_takes_nothing_from_the_calls_of_a_minute(tmp_path: Path):
    """BerriAI/litellm PR 37539: batch lines that are charged to the online limits bounce for ever."""
    config = {"limits": {"requests_per_minute": 10}}
    async with diversion_lab(
        tmp_path,
        config,
        batch_default=BatchScript(running=60.0),
        limits=Limits(requests_per_minute=10, headers="none"),
    ) as lab:
        began = lab.now()
        job = await lab.submit(5000)
        await eventually(lambda: "submitted" in lab.states(job))
        assert lab.now() - began < 10
        (pool,) = [one for one in lab.budget.snapshot() if one["kind"] == "online"] or [None]
        assert pool is None or not sum(pool["in_use"].values())
        results = await lab.done(job)
        assert lab.via(results) == {"batch": 5000}
        assert lab.creates() == 1


@virtual
async def test_a_connection_that_cannot_be_made_costs_nothing_but_time(tmp_path: Path):
    async with diversion_lab(tmp_path, batch_default=BatchScript(running=60.0)) as lab:
        down = ConnectionFailed("refused", sent=False)
        lab.wire.fails = lambda method, path: down if lab.now() < 1000.0 + 600.0 else None
        results = await lab.done(await lab.submit(10))
        assert_answers(results)
        assert lab.via(results) == {"batch": 10}
        assert lab.creates() == 1
