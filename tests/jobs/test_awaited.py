"""Calls that a program awaits, and that have time, ride together; and whoever leaves touches nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from diversion_lab import AwaitLab, awaiting, eventually, provided, settings
from virtual_time import virtual

from orchestra.call import Call
from orchestra.errors import DeadlineExceeded, InputError, JobError, JobLocked, OrchestraError
from orchestra.jobs.awaited.awaited import Lot
from orchestra.jobs.ledger.lock import is_locked
from orchestra.jobs.ledger.store import JobStore
from orchestra.observe.events import Event
from orchestra.policies.traffic import TrafficClass
from orchestra.testing import BatchScript, Reply, ScriptedProvider

HOUR = 3600.0
SEEDS = pytest.mark.parametrize("seed", range(3))
KINDS = pytest.mark.parametrize("kind", ["openai", "anthropic"])
JOBS = pytest.mark.parametrize("job", [None, "nightly"])


async def settled(*calls: asyncio.Task[Any]) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


def begin(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(work)


async def until(provider: ScriptedProvider, ending: str, count: int = 1, method: str = "POST") -> None:
    """Wait until the provider was asked so often for a path with that end."""
    await eventually(
        lambda: not (sum(hit.method == method and hit.path.endswith(ending) for hit in provider.log) < count)
    )


@KINDS
@JOBS
@virtual
async def test_five_hundred_at_once_are_one_batch(tmp_path: Path, kind: str, job: str | None):
    async with (
        provided(batch_default=BatchScript(running=HOUR)) as provider,
        awaiting(provider, settings(provider, tmp_path, kind=kind)) as program,
    ):
        answers = await asyncio.gather(*(program.say(f"q{n}", kind=kind, job=job) for n in range(500)))
        assert answers == [f"q{n}" for n in range(500)]
        assert program.lab.creates() == 1
        assert program.lab.calls() == 0
        program.lab.assert_paid_once()


@SEEDS
@KINDS
@JOBS
@virtual
async def test_a_program_that_runs_again_joins_what_it_paid_for(
    tmp_path: Path, kind: str, job: str | None, seed: int
):
    """Killed while its batch is worked on, again, and again after it has ended: nothing is uploaded anew."""
    async with provided(batch_default=BatchScript(running=HOUR)) as provider:
        config = settings(provider, tmp_path, kind=kind)
        for wait in (10.0, 100.0, 1.0, 2 * HOUR):
            async with awaiting(provider, config) as program:
                calls = [begin(program.say(f"q{n}", kind=kind, job=job)) for n in range(20)]
                await asyncio.sleep(10.0 if wait == 2 * HOUR else wait)
                for call in calls:
                    call.cancel()
                await settled(*calls)
            if wait == 2 * HOUR:
                await asyncio.sleep(wait)
        async with awaiting(provider, config) as program:
            answers = await asyncio.gather(*(program.say(f"q{n}", kind=kind, job=job) for n in range(20)))
            assert answers == [f"q{n}" for n in range(20)]
            assert program.lab.creates() == 1
            program.lab.assert_paid_once()


@virtual
async def test_named_answers_stay_and_others_are_handed_over_once(tmp_path: Path):
    async with provided(batch_default=BatchScript(running=60.0)) as provider:
        config = settings(provider, tmp_path)
        for run in (1, 2):
            async with awaiting(provider, config) as program:
                assert await program.say("named", job="nightly") == "named"
                assert await program.say("unnamed") == "unnamed"
                assert program.lab.creates() == 1 + run, "the named one is there, the other was handed over"


@JOBS
@virtual
async def test_equal_requests_are_two_lines(tmp_path: Path, job: str | None):
    async with provided(batch_default=BatchScript(running=60.0)) as provider:
        config = settings(provider, tmp_path)
        async with awaiting(provider, config) as program:
            calls = [begin(program.say("the same", job=job)) for _ in range(3)]
            await asyncio.sleep(10.0)
            for call in calls:
                call.cancel()
            await settled(*calls)
        await asyncio.sleep(HOUR)
        async with awaiting(provider, config) as program:
            await asyncio.gather(*(program.say("the same", job=job) for _ in range(3)))
            assert program.lab.creates() == 1
            (bill,) = provider.billed.requests_paid_twice().values()
            assert bill.batch == 3
            await program.say("the same", job=job)
            assert program.lab.creates() == 2, "a fourth one is asked"


@SEEDS
@JOBS
@pytest.mark.parametrize(
    "when", ["in the window", "while it is uploaded", "while it is created", "while it is open"]
)
@virtual
async def test_a_caller_who_goes_takes_nobody_along(tmp_path: Path, job: str | None, when: str, seed: int):
    """autobatcher 0.12: the third caller, whose arrival began the upload, is cancelled, and the others hang."""
    async with (
        provided(batch_default=BatchScript(running=HOUR)) as provider,
        awaiting(provider, settings(provider, tmp_path, batch={"max_requests": 3})) as program,
    ):
        program.lab.wire.latency = 2.0
        count = 2 if when == "in the window" else 3
        calls = [begin(program.say(f"q{n}", job=job)) for n in range(count)]
        if when == "in the window":
            await asyncio.sleep(1.0)
        elif when == "while it is uploaded":
            await eventually(lambda: any(url.endswith("/files") for _, url, _ in program.lab.wire.sent))
        elif when == "while it is created":
            await eventually(lambda: any(url.endswith("/batches") for _, url, _ in program.lab.wire.sent))
        else:
            await until(provider, "/batches")
            await asyncio.sleep(100.0)
        calls[-1].cancel()
        told = await settled(*calls)
        assert told[:-1] == [f"q{n}" for n in range(count - 1)]
        assert isinstance(told[-1], asyncio.CancelledError)
        assert program.lab.creates() == 1
        paid = provider.billed.all.batch
        assert paid == (count - 1 if when == "in the window" else count)
        if when != "in the window":  # it was paid for, and is there
            assert await program.say(f"q{count - 1}", job=job) == f"q{count - 1}"
            assert program.lab.creates() == 1
        program.lab.assert_paid_once()


@JOBS
@virtual
async def test_where_all_callers_go_before_it_is_sent_no_batch_is_made(tmp_path: Path, job: str | None):
    async with (
        provided() as provider,
        awaiting(provider, settings(provider, tmp_path)) as program,
    ):
        calls = [begin(program.say(f"q{n}", job=job)) for n in range(3)]
        await asyncio.sleep(1.0)
        for call in calls:
            call.cancel()
        await settled(*calls)
        await asyncio.sleep(HOUR)
        assert provider.log == []


@virtual
async def test_where_all_callers_go_later_the_batch_goes_on_for_the_next_run(tmp_path: Path):
    """matt-house-e/accrue#47: a batch whose poll loop is cancelled is billed, and lost."""
    async with provided(batch_default=BatchScript(running=HOUR)) as provider:
        config = settings(provider, tmp_path)
        async with awaiting(provider, config) as program:
            calls = [begin(program.say(f"q{n}")) for n in range(3)]
            await until(provider, "/batches")
            for call in calls:
                call.cancel()
            await settled(*calls)
            await asyncio.sleep(2 * HOUR)
        assert not any(hit.path.endswith("/cancel") for hit in provider.log)
        async with awaiting(provider, config) as program:
            assert await asyncio.gather(*(program.say(f"q{n}") for n in range(3))) == ["q0", "q1", "q2"]
            assert program.lab.creates() == 1
            program.lab.assert_paid_once()


@KINDS
@virtual
async def test_a_refused_line_gives_its_caller_the_providers_own_error(tmp_path: Path, kind: str):
    if kind == "anthropic":
        refusal = Reply.anthropic_error(400, "invalid_request_error", "not so")
    else:
        refusal = Reply.error(400, "bad_thing", kind="invalid_request_error", message="not so")
    async with (
        provided(batch_default=BatchScript(running=60.0, replies={1: refusal})) as provider,
        awaiting(provider, settings(provider, tmp_path, kind=kind)) as program,
    ):
        told = await asyncio.gather(*(program.ask(f"q{n}", kind=kind) for n in range(3)))
        assert [status for status, _ in told] == [200, 400, 200]
        assert told[1][1]["error"]["message"] == "not so"
        assert program.lab.calls() == 0


@virtual
async def test_a_batch_that_is_refused_for_what_it_asks_is_an_error_of_each_call(tmp_path: Path):
    failed = BatchScript(validating=5.0, end="failed", code="model_not_found", message="no such model")
    async with (
        provided(batch_default=failed) as provider,
        awaiting(provider, settings(provider, tmp_path)) as program,
    ):
        told = await settled(*(begin(program.ask(f"q{n}")) for n in range(2)))
        assert all(isinstance(one, InputError) and one.code == "model_not_found" for one in told)


@virtual
async def test_what_leaves_the_batch_goes_by_itself(tmp_path: Path):
    """Missing lines, or those of a batch that takes too long: their own callers send them, and it is recorded."""
    script = BatchScript(running=60.0, answered=1, end="expired")
    async with (
        provided(batch_script=[script]) as provider,
        awaiting(provider, settings(provider, tmp_path)) as program,
    ):
        answers = await asyncio.gather(*(program.say(f"q{n}", job="nightly") for n in range(5)))
        assert answers == [f"q{n}" for n in range(5)]
        assert program.lab.calls() == 4
        job = program.lab.manager.list()[0]
        ways = {way.via: way.lines for way in program.lab.manager.store.outlets(job.id)}
        assert ways == {"batch": 1, "sync": 4}
        program.lab.assert_paid_once()


@virtual
async def test_a_stuck_batch_is_left_before_the_callers_deadlines(tmp_path: Path):
    stuck = BatchScript(running=20.0, end=None, answered=0.6, cancelling=4.0)
    batch = {"expected_seconds": 10.0, "cancelling_seconds": 5.0, "poll_max_seconds": 5.0}
    async with (
        provided(batch_default=stuck) as provider,
        awaiting(provider, settings(provider, tmp_path, batch=batch)) as program,
    ):
        began = program.lab.now()
        answers = await asyncio.gather(*(program.say(f"q{n}", deadline=90.0) for n in range(20)))
        assert answers == [f"q{n}" for n in range(20)]
        assert program.lab.now() - began < 90
        assert program.lab.calls() == 8
        program.lab.assert_paid_once()


@virtual
async def test_callers_with_other_deadlines_do_not_hurry_each_other(tmp_path: Path):
    """Who has a day does not pay the whole price for who has two minutes."""
    slow = BatchScript(running=HOUR, answered=None)
    batch = {"expected_seconds": 20.0, "cancelling_seconds": 5.0, "poll_max_seconds": 5.0}
    async with (
        provided(batch_default=slow) as provider,
        awaiting(provider, settings(provider, tmp_path, batch=batch)) as program,
    ):
        began = program.lab.now()
        patient = [begin(program.say(f"p{n}", job="j")) for n in range(10)]
        hurried = [begin(program.say(f"h{n}", job="j", deadline=120.0)) for n in range(10)]
        assert await asyncio.gather(*hurried) == [f"h{n}" for n in range(10)]
        assert program.lab.now() - began < 120
        assert await asyncio.gather(*patient) == [f"p{n}" for n in range(10)]
        assert program.lab.now() - began > HOUR
        assert program.lab.creates() == 2
        assert program.lab.calls() <= 10, "none of those who have time went by itself"


@virtual
async def test_a_deadline_that_passes_is_said_and_the_line_stays(tmp_path: Path):
    """Where neither the batch nor the provider answers in time."""
    script = BatchScript(running=HOUR)
    async with provided(batch_default=script, default=Reply(delay=1e5)) as provider:
        config = settings(provider, tmp_path, batch={"expected_seconds": 10.0, "cancelling_seconds": 5.0})
        async with awaiting(provider, config) as program:
            began = program.lab.now()
            (told,) = await settled(begin(program.ask("q", job="j", deadline=60.0)))
            assert isinstance(told, DeadlineExceeded | Exception)
            assert program.lab.now() - began < 61


@JOBS
@virtual
async def test_closing_tells_those_who_wait_at_once(tmp_path: Path, job: str | None):
    async with provided(batch_default=BatchScript(running=HOUR)) as provider:
        config = settings(provider, tmp_path)
        async with awaiting(provider, config) as program:
            calls = [begin(program.say(f"q{n}", job=job)) for n in range(3)]
            await until(provider, "/batches")
            await asyncio.sleep(5.0)
            began = program.lab.now()
            await program.parking.aclose()
            told = await settled(*calls)
            assert program.lab.now() - began < 1
            assert all(isinstance(one, JobError) and "run this again" in str(one) for one in told), told
        async with awaiting(provider, config) as program:
            await asyncio.gather(*(program.say(f"q{n}", job=job) for n in range(3)))
            assert program.lab.creates() == 1
            program.lab.assert_paid_once()


@virtual
async def test_after_closing_it_is_opened_anew(tmp_path: Path):
    async with (
        provided(batch_default=BatchScript(running=60.0)) as provider,
        awaiting(provider, settings(provider, tmp_path)) as program,
    ):
        assert await program.say("one", job="j") == "one"
        await program.parking.aclose()
        await program.parking.aclose()
        assert await program.say("two", job="j") == "two"


@virtual
async def test_a_job_of_another_program_is_said_to_be_so(tmp_path: Path):
    async with provided(batch_default=BatchScript(running=60.0)) as provider:
        config = settings(provider, tmp_path)
        async with awaiting(provider, config) as one, awaiting(provider, config) as other:
            first = begin(one.say("q", job="nightly"))
            await asyncio.sleep(1.0)
            with pytest.raises(JobLocked, match="nightly"):
                await other.say("q", job="nightly")
            assert await asyncio.gather(first, one.say("r"), other.say("r")) == ["q", "r", "r"]


@virtual
async def test_a_submitted_job_takes_no_awaited_calls(tmp_path: Path):
    async with (
        provided(batch_default=BatchScript(running=60.0)) as provider,
        awaiting(provider, settings(provider, tmp_path)) as program,
    ):
        await program.lab.done(await program.lab.submit(3, job="nightly"))
        with pytest.raises(JobError, match="was submitted"):
            await program.say("q", job="nightly")


@virtual
async def test_where_the_ledger_fails_everybody_is_told(tmp_path: Path):
    """And who asks then begins anew."""

    def fails(*_: Any, **__: Any) -> Any:
        raise JobError("no room left on the disk")

    async with (
        provided(batch_default=BatchScript(running=60.0)) as provider,
        awaiting(provider, settings(provider, tmp_path)) as program,
    ):
        with mock.patch.object(JobStore, "completed", fails):
            began = program.lab.now()
            told = await settled(*(begin(program.say(f"q{n}", job="j")) for n in range(3)))
            assert all(isinstance(one, JobError) and "no room" in str(one) for one in told)
            assert program.lab.now() - began < 100
        assert await program.say("q0", job="j") == "q0"
        assert program.lab.creates() <= 1


@virtual
async def test_streams_and_other_calls_do_not_ride(tmp_path: Path):
    async with (
        provided(batch_default=BatchScript(running=60.0)) as provider,
        awaiting(provider, settings(provider, tmp_path)) as program,
    ):
        payload = {"model": "fast", "messages": [{"role": "user", "content": "q"}]}
        for fields, options in (
            ({"stream": True}, {"traffic": TrafficClass.BULK, "expires_at": program.lab.now() + 9e4}),
            ({}, {"traffic": TrafficClass.BULK}),
            ({}, {"traffic": TrafficClass.INTERACTIVE, "expires_at": program.lab.now() + 9e4}),
        ):
            call = Call.originate("/v1/chat/completions", {**payload, **fields}, **options)
            assert program.parking.routes(call) == []


async def _with_own_key(program: AwaitLab, key: str, texts: list[str]) -> list[str]:
    headers = (("authorization", f"Bearer {key}"),)
    calls = (program.say(text, headers=headers, model="m") for text in texts)
    return await asyncio.gather(*calls)


@virtual
async def test_callers_with_keys_of_their_own_ride_apart_and_the_ledger_holds_no_key(tmp_path: Path):
    keys = {"sk-alice-0123456789": "alice", "sk-bob-0123456789": "bob"}
    async with provided(batch_default=BatchScript(running=HOUR), accounts=keys) as provider:
        config = settings(provider, tmp_path)
        del config["providers"]["one"]["api_key"]
        with mock.patch.dict("os.environ", clear=False) as environment:
            environment.pop("OPENAI_API_KEY", None)
            async with awaiting(provider, config) as program:
                calls = [begin(_with_own_key(program, key, ["q0", "q1"])) for key in keys]
                await until(provider, "/batches", 2)
                await asyncio.sleep(5.0)
                for call in calls:
                    call.cancel()
                await settled(*calls)
            async with awaiting(provider, config) as program:
                await asyncio.sleep(2 * HOUR)
                told = await asyncio.gather(*(_with_own_key(program, key, ["q0", "q1"]) for key in keys))
                assert told == [["q0", "q1"]] * 2
                assert program.lab.creates() == 2
        for held in [file.read_bytes() for file in sorted(tmp_path.iterdir())]:  # noqa: ASYNC240
            assert b"sk-alice" not in held
            assert b"sk-bob" not in held


@virtual
async def test_a_thousand_callers(tmp_path: Path):
    async with (
        provided(batch_default=BatchScript(running=HOUR), keep_log=False) as provider,
        awaiting(provider, settings(provider, tmp_path)) as program,
    ):
        answers = await asyncio.gather(*(program.say(f"q{n}", job="nightly") for n in range(1000)))
        assert answers == [f"q{n}" for n in range(1000)]
        assert program.lab.creates() == 1


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8])
@SEEDS
@virtual
async def test_who_gives_up_and_asks_again_at_once_is_answered(tmp_path: Path, turns: int, seed: int):
    """The line that is asked for again may be about to be withdrawn."""
    async with (
        provided(batch_default=BatchScript(running=60.0)) as provider,
        awaiting(provider, settings(provider, tmp_path)) as program,
    ):
        first = begin(program.say("q", job="j"))
        await asyncio.sleep(0.5)
        first.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        again = begin(program.say("q", job="j"))
        assert await asyncio.wait_for(again, HOUR) == "q"
        assert program.lab.creates() == 1
        program.lab.assert_paid_once()


@pytest.mark.parametrize("turns", range(10))
@virtual
async def test_who_comes_back_and_leaves_at_once_loses_no_asking(tmp_path: Path, turns: int):
    async with (
        provided(batch_default=BatchScript(running=HOUR)) as provider,
        awaiting(provider, settings(provider, tmp_path)) as program,
    ):
        calls = [begin(program.say("the same", job="j")) for _ in range(3)]
        await asyncio.sleep(600.0)
        for call in calls:
            call.cancel()
        await settled(*calls)
        await asyncio.sleep(1.0)
        brief = begin(program.say("the same", job="j"))
        for _ in range(turns):
            await asyncio.sleep(0)
        brief.cancel()
        await settled(brief)
        await asyncio.gather(*(program.say("the same", job="j") for _ in range(3)))
        assert program.lab.creates() == 1
        assert provider.billed.all.batch == 3


@JOBS
@virtual
async def test_an_answer_that_its_caller_did_not_live_to_see_is_kept(tmp_path: Path, job: str | None):
    """He leaves when it is on its way to his loop already."""
    real, leaving = Lot.wait, []

    async def wait(self: Lot, *args: Any) -> Any:
        awaited = await real(self, *args)
        while leaving:
            leaving.pop().cancel()
        return awaited

    async with (
        provided(batch_default=BatchScript(running=60.0)) as provider,
        awaiting(provider, settings(provider, tmp_path)) as program,
    ):
        with mock.patch.object(Lot, "wait", wait):
            call = begin(program.say("q", job=job))
            leaving.append(call)
            (told,) = await settled(call)
        assert isinstance(told, asyncio.CancelledError)
        await asyncio.sleep(1.0)
        assert await program.say("q", job=job) == "q"
        assert program.lab.creates() == 1
        program.lab.assert_paid_once()


@JOBS
@virtual
async def test_a_call_that_failed_by_itself_is_the_same_line_when_it_is_tried_again(
    tmp_path: Path, job: str | None
):
    script = BatchScript(running=60.0, answered=0, end="expired")
    refusals = [Reply.error(503, "overloaded") for _ in range(50)]
    async with (
        provided(batch_default=script, script=refusals) as provider,
        awaiting(provider, settings(provider, tmp_path)) as program,
    ):
        for _ in range(50):
            try:
                status, _ = await program.ask("q", job=job)
            except OrchestraError:
                continue
            if status == 200:
                break
        assert status == 200
        assert program.lab.creates() == 1, "it does not ride again"
        (record,) = program.lab.manager.list()
        assert program.lab.manager.store.tally(record.id).total == 1


@virtual
async def test_another_model_or_address_behind_a_name_is_another_request(tmp_path: Path):
    async with provided(batch_default=BatchScript(running=60.0)) as provider:
        config = settings(provider, tmp_path)
        for creates, change in enumerate((None, "model", "address"), 1):
            if change == "model":
                config["models"]["fast"]["routes"] = ["one/better"]
            if change == "address":
                config["providers"]["one"]["base_url"] = "http://q.test/v1"
            async with awaiting(provider, config) as program:
                for _ in range(2):
                    _, answer = await program.ask("q", job="j")
                    assert answer["model"] == ("m" if change is None else "better")
                    await program.parking.aclose()
                assert program.lab.creates() == creates


@virtual
async def test_a_lot_that_fails_takes_no_other_along(tmp_path: Path):
    """What an earlier program has left cannot be read: it is left alone from then on."""
    real = JobStore.completed
    async with provided(batch_default=BatchScript(running=HOUR)) as provider:
        config = settings(provider, tmp_path)
        async with awaiting(provider, config) as program:
            call = begin(program.say("old"))
            await until(provider, "/batches")
            await asyncio.sleep(5.0)
            call.cancel()
            await settled(call)
            (old,) = program.lab.manager.list()

        def completed(self: JobStore, job: int, *args: Any, **options: Any) -> Any:
            if job == old.id:
                raise JobError("it is damaged")
            return real(self, job, *args, **options)

        async with awaiting(provider, config) as program:
            new = begin(program.say("new"))
            await until(provider, "/batches", 2)
            with mock.patch.object(JobStore, "completed", completed):
                (told,) = await settled(begin(program.say("old")))
                assert isinstance(told, JobError)
                assert await program.say("newer") == "newer"
                assert await new == "new"
                assert await program.say("old") == "old", "it is asked anew"


@virtual
async def test_what_earlier_programs_left_is_opened_when_it_is_asked_for(tmp_path: Path):
    async with provided(batch_default=BatchScript(running=60.0)) as provider:
        config = settings(provider, tmp_path)
        for text in ("a", "b", "b"):
            async with awaiting(provider, config) as program, awaiting(provider, config) as other:
                calls = [begin(program.say(text)), begin(other.say(text))]
                await until(provider, "/batches")
                await asyncio.sleep(10.0)
                for call in calls:
                    call.cancel()
                await settled(*calls)
        creates = sum(hit.method == "POST" and hit.path.endswith("/batches") for hit in provider.log)
        async with awaiting(provider, config) as program:
            count = len(program.jobs())
            assert await asyncio.gather(*(program.say("b") for _ in range(2))) == ["b", "b"]
            assert program.lab.creates() == creates, "nothing is asked anew"
            names = program.jobs()
            assert len(names) == count
            locked = [name for name in names if is_locked(program.lab.manager.store.path, name)]
            assert 1 <= len(locked) <= 2, "those that have it"
        async with awaiting(provider, config) as program:
            assert len(program.jobs()) == count - len(locked), "what was handed over is dropped"


@virtual
async def test_where_all_was_handed_over_nothing_is_left_of_a_program(tmp_path: Path):
    async with provided(batch_default=BatchScript(running=60.0)) as provider:
        config = settings(provider, tmp_path)
        async with awaiting(provider, config) as program:
            store = program.lab.manager.store
            for name in ("awaited-20200101-000000-00000a", "awaited-mine"):
                store.create(name, created=1.0, model=None, deadline=None, source=None, kind="awaited")
            assert await program.say("q") == "q"
            assert len(program.jobs()) == 2, "its own, and the one that somebody named"
            assert await program.say("named", job="j") == "named"
        async with awaiting(provider, config) as program:
            assert sorted(program.jobs()) == ["awaited-mine", "j"]


@pytest.mark.parametrize("turns", [1, 2, 3, 5, 8])
@virtual
async def test_closing_that_is_broken_off_can_be_finished(tmp_path: Path, turns: int):
    async with (
        provided(batch_default=BatchScript(running=HOUR)) as provider,
        awaiting(provider, settings(provider, tmp_path)) as program,
    ):
        calls = [begin(program.say(f"q{n}", job=f"j{n}" if n else None)) for n in range(5)]
        await until(provider, "/batches", 5)
        closing = begin(program.parking.aclose())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await settled(closing)
        await program.parking.aclose()
        await asyncio.wait(calls, timeout=1.0)
        assert all(isinstance(one, JobError) for one in await settled(*calls))
        path = program.lab.manager.store.path
        assert not any(is_locked(path, name) for name in program.jobs())


@pytest.mark.parametrize("job", ["", "a\nb", " a", "x" * 201])
@virtual
async def test_a_name_that_no_job_can_have_is_refused(tmp_path: Path, job: str):
    async with (
        provided() as provider,
        awaiting(provider, settings(provider, tmp_path)) as program,
    ):
        with pytest.raises(InputError, match="job name"):
            await program.say("q", job=job)
        assert provider.log == []
        assert program.jobs() == []


@virtual
async def test_where_a_call_rides_is_asked_without_the_ledger(tmp_path: Path):
    """The caller's loop does not wait for a file."""
    in_threads: list[bool] = []  # whether those who asked for it did so

    async with (
        provided(batch_default=BatchScript(running=60.0)) as provider,
        awaiting(provider, settings(provider, tmp_path)) as program,
    ):

        def store() -> JobStore:
            in_threads.append(asyncio.current_task() is None)
            return program.lab.manager.store

        with mock.patch.object(program.parking, "_store", store):
            call = Call.originate(
                "/v1/chat/completions",
                {"model": "fast", "messages": [{"role": "user", "content": "q"}]},
                traffic=TrafficClass.BULK,
                expires_at=program.lab.now() + 9e4,
            )
            routes = program.parking.routes(call)
            assert routes
            assert in_threads == []
            await program.parking.send(call, routes)
            assert in_threads
            assert all(in_threads)
            in_threads.clear()
            assert program.parking.routes(replace(call, expires_at=program.lab.now() + 1.0)) == []
            assert in_threads == []


@virtual
async def test_what_becomes_of_a_call_in_a_batch_is_told(tmp_path: Path):
    async with (
        provided(batch_default=BatchScript(running=HOUR)) as provider,
        awaiting(provider, settings(provider, tmp_path)) as program,
    ):
        told: list[Event] = []
        program.lab.dispatcher.events.subscribe(told.append)
        rides, leaves = begin(program.say("q1")), begin(program.say("q2"))
        await asyncio.sleep(10.0)
        assert [event.kind for event in told] == ["parked", "parked"]
        leaves.cancel()
        assert await rides == "q1"
        await settled(leaves)
        await program.say("q3", deadline=30.0)  # no batch is back by then
    calls = [[event for event in told if event.call == name] for name in dict.fromkeys(one.call for one in told)]
    kinds = [[event.kind for event in call] for call in calls]
    assert kinds[:2] == [["parked", "settled"], ["parked", "interrupted"]]
    assert kinds[2][-4:] == ["queued", "admitted", "sent", "settled"]
    answered, left = calls[0][-1], calls[1][-1]
    assert (answered.route, answered.status, answered.operation) == ("one/m", 200, "chat")
    assert answered.input_tokens is not None
    assert (left.reason, left.attempt) == ("cancelled", None)
