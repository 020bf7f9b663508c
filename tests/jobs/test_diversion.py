"""A job over batches and beside them: every line is answered before the deadline, and none is paid twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from diversion_lab import assert_answers, diversion_lab, eventually, over, provided, requests, settings
from virtual_time import virtual

from orchestra.errors import InputError, JobError, JobLocked
from orchestra.observe.events import Event
from orchestra.testing import BatchScript, Limits, Reply

HOUR = 3600.0
SEEDS = pytest.mark.parametrize("seed", range(3))
HASTY = {"expected_seconds": 10.0, "cancelling_seconds": 5.0}


@SEEDS
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
@virtual
async def test_a_batch_stuck_at_sixty_per_cent_and_ninety_seconds(tmp_path: Path, kind: str, seed: int):
    """All lines are answered in time, what was finished is not paid twice, and most had the discount."""
    stuck = BatchScript(running=20.0, end=None, answered=0.6, cancelling=4.0)
    config = {
        "kind": kind,
        "batch": {**HASTY, "poll_max_seconds": 5.0},
        "limits": {"requests_per_minute": 600},
        "prices": {"input": 1.0, "output": 1.0},
    }
    async with diversion_lab(tmp_path, config, batch_default=stuck, service_time=1.0) as lab:
        began = lab.now()
        job = await lab.submit(100, deadline="90s", kind=kind)
        results = await lab.done(job)
        assert_answers(results)
        assert lab.now() - began < 90
        assert lab.via(results) == {"batch": 60, "sync": 40}
        lab.assert_paid_once()
        ways = {way.via: way for way in lab.manager.store.outlets(job.record.id)}
        assert (ways["batch"].lines, ways["sync"].lines) == (60, 40)
        assert ways["batch"].usd / 60 == pytest.approx(ways["sync"].usd / 40 / 2, rel=0.05)


@SEEDS
@virtual
async def test_a_batch_that_settles_too_late_costs_a_few_at_most(tmp_path: Path, seed: int):
    """Cancelling takes a minute more than was thought: what it brings late is first where it is first."""
    stuck = BatchScript(running=20.0, end=None, answered=0.6, cancelling=40.0)
    config = {"batch": {**HASTY, "poll_max_seconds": 5.0}, "limits": {"requests_per_minute": 120}}
    async with diversion_lab(tmp_path, config, batch_default=stuck, service_time=1.0) as lab:
        began = lab.now()
        results = await lab.done(await lab.submit(60, deadline="90s"))
        assert_answers(results)
        assert lab.now() - began < 91
        paid = lab.provider.billed.requests_paid_twice()
        assert all(bill.sync == 1 for bill in paid.values())


@virtual
async def test_with_less_time_than_batches_take_all_go_by_themselves(tmp_path: Path):
    async with diversion_lab(tmp_path, {"batch": {"expected_seconds": HOUR}}) as lab:
        results = await lab.done(await lab.submit(20, deadline="30m"))
        assert_answers(results)
        assert lab.via(results) == {"sync": 20}
        assert lab.uploads() == 0


@virtual
async def test_without_a_deadline_nothing_rides(tmp_path: Path):
    async with diversion_lab(tmp_path) as lab:
        results = await lab.done(await lab.submit(20, deadline=None))
        assert_answers(results)
        assert lab.via(results) == {"sync": 20}
        assert lab.uploads() == 0


@virtual
async def test_progress_counts_what_is_in_the_ledger(tmp_path: Path):
    """bespokelabsai/curator PR 585: "100 done", by the provider's counters, while 21 had failed."""
    script = BatchScript(running=HOUR, missing=range(20))
    async with diversion_lab(tmp_path, batch_script=[script], batch_default=BatchScript(running=60.0)) as lab:
        job = await lab.submit(100)
        told = set[int]()
        async with asyncio.TaskGroup() as group:
            group.create_task(job.wait())
            while not job.progress().ended:
                (record, *_) = lab.manager.store.batches.of_job(job.record.id) or (None,)
                told.add(0 if record is None or record.state == "ended" else record.finished or 0)
                counted = len([one async for one in job.results()])
                assert job.progress().done == counted
                assert counted in (0, 80, 100)
                await asyncio.sleep(20.0)
        assert max(told) > 80, "the provider said otherwise"
        assert_answers([one async for one in job.results()])


@virtual
async def test_each_batch_tells_its_end_and_how_long_it_waited_and_rode(tmp_path: Path):
    script = [BatchScript(running=HOUR, missing=range(3)), BatchScript(running=60.0, end="failed")]
    async with diversion_lab(tmp_path, batch_script=script, batch_default=BatchScript(running=60.0)) as lab:
        told = list[Event]()
        lab.dispatcher.events.subscribe(lambda event: told.append(event) if event.kind == "batch_ended" else None)
        await lab.done(await lab.submit(10, job="a"))
        lab.provider.batch_default = BatchScript(running=9 * HOUR)
        stuck = await lab.submit(10, job="b")
        await eventually(lambda: lab.states(stuck) == ["submitted"])
        await lab.manager.cancel("b")
    batches = [(one.job, one.lines, one.answered, one.reason) for one in told]
    assert batches == [("a", 10, 7, None), ("a", 3, 0, "given up"), ("a", 3, 3, None), ("b", 10, 0, None)]
    assert len({one.call for one in told}) == len(told)
    assert told[0].waited is not None
    assert told[0].duration is not None
    assert told[0].waited < 60.0 < HOUR <= told[0].duration < HOUR + 900.0


@virtual
async def test_two_models_and_two_endpoints_in_one_file(tmp_path: Path):
    """A batch is of one model and one endpoint; each kind has its own."""
    async with diversion_lab(
        tmp_path,
        {"models": {"fast": {"routes": ["one/m"]}, "other": {"routes": ["one/m2"]}}},
        batch_default=BatchScript(running=60.0),
    ) as lab:
        lines: list[dict[str, Any]] = []
        for at in range(12):
            model = ("fast", "other")[at % 2]
            if at % 3:
                body: dict[str, Any] = {"messages": [{"role": "user", "content": f"q{at}"}]}
                url = "/v1/chat/completions"
            else:
                body, url = {"input": f"q{at}"}, "/v1/embeddings"
            lines.append({"custom_id": f"q{at}", "method": "POST", "url": url, "body": {"model": model, **body}})
        results = await lab.done(await lab.manager.submit(lines, job="j", deadline="24h"))
        assert all(result.ok for result in results)
        assert Counter((one.via, one.route) for one in results) == {("batch", "one/m"): 6, ("batch", "one/m2"): 6}
        assert lab.creates() == 4
        lab.assert_paid_once()


@virtual
async def test_a_line_larger_than_a_batch_may_be_goes_by_itself(tmp_path: Path):
    async with diversion_lab(
        tmp_path, {"batch": {"max_bytes": 2000}}, batch_default=BatchScript(running=60.0)
    ) as lab:
        lines = [{"messages": [{"role": "user", "content": "x" * size}]} for size in (10, 3000, 20, 900, 900)]
        results = await lab.done(await lab.manager.submit(lines, model="fast", job="j", deadline="24h"))
        assert [result.via for result in results] == ["batch", "sync", "batch", "batch", "batch"]


@virtual
async def test_after_the_deadline_nothing_is_sent(tmp_path: Path):
    async with provided(default=Reply(delay=1e5)) as provider:
        config = settings(provider, tmp_path)
        async with over(provider, config) as lab:
            job = await lab.submit(10, deadline="10s")
            await asyncio.sleep(5.0)
            await job.cancel()
        await asyncio.sleep(20.0)
        provider.log.clear()
        async with over(provider, config) as lab:
            results = await lab.done(await lab.submit(10))
            assert {result.error_code for result in results} == {"expired"}
            assert provider.log == []


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
@virtual
async def test_what_a_batch_brought_is_there_though_the_program_comes_back_after_the_deadline(
    tmp_path: Path, kind: str
):
    """It is paid for: nobody wants to hear of an expired deadline instead."""
    async with provided(batch_default=BatchScript(running=HOUR, answered=0.7, end="expired")) as provider:
        config = settings(provider, tmp_path, kind=kind)
        async with over(provider, config) as lab:
            job = await lab.submit(10, kind=kind)
            await eventually(lambda: "submitted" in lab.states(job))
        await asyncio.sleep(30 * HOUR)
        async with over(provider, config) as lab:
            began = lab.now()
            results = await lab.done(await lab.submit(10, kind=kind))
            assert Counter(one.error_code for one in results) == {None: 7, "expired": 3}
            assert lab.now() - began < 5
            assert lab.calls() == 0


@virtual
async def test_who_comes_back_after_the_deadline_does_not_wait_for_a_batch(tmp_path: Path):
    async with provided(batch_default=BatchScript(end=None, running=100 * HOUR, answered=0)) as provider:
        config = settings(provider, tmp_path)
        async with over(provider, config) as lab:
            job = await lab.submit(10)
            await eventually(lambda: lab.manager.store.batches.of_job(job.record.id))
        await asyncio.sleep(25 * HOUR)
        async with over(provider, config) as lab:
            began = lab.now()
            job = await lab.submit(10)
            results = await lab.done(job)
            assert {one.error_code for one in results} == {"expired"}
            assert lab.now() - began < 5
            assert set(lab.states(job)) <= {"abandoned", "ended"}


@virtual
async def test_at_the_deadline_a_job_ends_though_its_provider_does_not_answer(tmp_path: Path):
    """Whatever hangs then: a look at a batch, and a call."""
    script = BatchScript(running=600.0, on_poll=[Reply()] * 3 + [Reply(delay=1e6)] * 1000)
    config = {"batch": {"expected_seconds": 20.0, "cancelling_seconds": 5.0, "poll_max_seconds": 10.0}}
    async with diversion_lab(tmp_path, config, batch_script=[script], default=Reply(delay=1e6)) as lab:
        began = lab.now()
        job = await lab.submit(10, deadline="120s")
        results = await lab.done(job)
        assert {one.error_code for one in results} == {"expired"}
        assert lab.now() - began < 122
        assert lab.states(job) == ["abandoned"]


@virtual
async def test_results_that_hang_do_not_hold_lines_beyond_their_time(tmp_path: Path):
    script = BatchScript(running=20.0, on_results=[Reply(delay=1e6)] * 100)
    config = {"batch": {**HASTY, "poll_max_seconds": 5.0}}
    async with diversion_lab(tmp_path, config, batch_script=[script]) as lab:
        began = lab.now()
        results = await lab.done(await lab.submit(10, deadline="120s"))
        assert_answers(results)
        assert lab.now() - began < 120
        assert lab.via(results) == {"sync": 10}


@virtual
async def test_a_job_ends_soon_after_its_last_line(tmp_path: Path):
    """Though a batch is open whose lines were answered otherwise, and looked at once an hour."""
    stuck = BatchScript(running=20.0, end=None, answered=0.0, cancelling=10_000.0)
    config = {"batch": {**HASTY, "poll_seconds": 50.0, "poll_max_seconds": 3600.0}}
    async with diversion_lab(tmp_path, config, batch_default=stuck) as lab:
        last = 0.0
        job = await lab.submit(10, deadline="100s")
        async for result in job:
            assert result.ok
            last = lab.now()
        await job.wait()
        assert lab.now() - last < 1.5


# dollars


@virtual
async def test_batches_are_no_larger_than_fits_a_cap(tmp_path: Path):
    """Each answer costs about ten cents, half of that in a batch, and half a dollar is allowed a day."""
    prices = {"input": 0.0, "output": 12_500.0}
    config = {"limits": {"usd_per_day": 0.55}, "prices": prices}
    async with diversion_lab(tmp_path, config, batch_default=BatchScript(running=60.0)) as lab:
        job = await lab.submit(20, deadline="5d")
        results = await lab.done(job)
        assert_answers(results)
        assert lab.via(results) == {"batch": 20}, "they wait for the room of another day"
        assert lab.creates() == 4
        assert lab.states(job) == ["ended"] * 4


@virtual
async def test_a_batch_that_waits_for_room_under_a_cap_says_so(tmp_path: Path):
    prices = {"input": 0.0, "output": 12_500.0}
    config = {"limits": {"usd_per_day": 0.55}, "prices": prices}
    async with diversion_lab(tmp_path, config, batch_default=BatchScript(running=60.0)) as lab:
        job = await lab.submit(20, deadline="5d")
        await eventually(lambda: job.progress().waiting is not None)
        assert "a batch of 5 lines, up to $0.25, waits for room under usd_per_day = $0.55" in (
            job.progress().waiting or ""
        )


@virtual
async def test_a_batch_counts_towards_the_cap_at_its_own_price(tmp_path: Path):
    config = {"limits": {"usd_per_day": 1.2}, "prices": {"input": 0.0, "output": 12_500.0}}
    async with diversion_lab(tmp_path, config, batch_default=BatchScript(running=60.0)) as lab:
        job = await lab.submit(20, deadline="24h")  # two dollars by themselves, one in a batch
        results = await lab.done(job)
        assert_answers(results)
        assert lab.via(results) == {"batch": 20}
        (pool,) = [pool for pool in lab.budget.snapshot() if pool["kind"] == "online"]
        assert pool["spent"]["usd"] == pytest.approx(1.0)


@pytest.mark.parametrize("how", ["failed", "refused"])
@virtual
async def test_a_batch_that_never_began_gives_its_dollars_back(tmp_path: Path, how: str):
    config = {"limits": {"usd_per_day": 1.2}, "prices": {"input": 0.0, "output": 12_500.0}}
    script = [BatchScript(end="failed", code="odd")] if how == "failed" else []
    routes = {} if how == "failed" else {"POST /v1/batches": [Reply.error(400)] * 9}
    async with diversion_lab(tmp_path, config, batch_script=script, routes=routes) as lab:
        job = await lab.submit(11, deadline="24h")
        results = await lab.done(job)
        assert_answers(results)
        assert lab.via(results) == {"sync": 11}
        (pool,) = [pool for pool in lab.budget.snapshot() if pool["kind"] == "online"]
        assert pool["spent"]["usd"] == pytest.approx(job.progress().usd)
        assert pool["dimensions"]["usd_per_day"]["used"] == pytest.approx(job.progress().usd)


@virtual
async def test_an_unknown_price_under_a_cap_is_said_and_never_guessed(tmp_path: Path):
    async with diversion_lab(tmp_path, {"limits": {"usd_per_day": 5.0}}) as lab:
        job = await lab.submit(10)
        with pytest.raises(JobError, match=r"no price is known for it: add \[\[providers\.one\.prices\]\]"):
            await job.wait()
        assert lab.creates() == lab.calls() == 0
        assert job.progress().failed == 0


# two programs, and the same one again


@virtual
async def test_a_job_that_is_resumed_with_more_time_is_planned_for_anew(tmp_path: Path):
    """Lines that were to go by themselves ride, once there is time for it, and after a restart as well."""
    async with provided(batch_default=BatchScript(running=60.0), service_time=HOUR) as provider:
        config = settings(provider, tmp_path)
        async with over(provider, config) as lab:
            job = await lab.submit(10, deadline="3h")
            await eventually(lambda: lab.calls() == 10)
            with pytest.raises(JobError, match="or its deadline"):
                await lab.manager.resume("j", deadline="24h")
        for again in (None, "24h"):
            async with over(provider, config) as lab:
                with pytest.raises(InputError, match="deadline: not a duration"):
                    await lab.manager.resume("j", deadline="soon")
                job = await lab.manager.resume("j", deadline=again)
                if again is not None:
                    await eventually(lambda: lab.creates() == 1)  # and it stops before that has ended
        async with over(provider, config) as lab:
            job = await lab.manager.resume("j")
            assert job.record.deadline is not None
            assert 20 * HOUR < job.record.deadline - lab.desk.wall() < 24 * HOUR
            results = await lab.done(job)
            assert_answers(results)
            assert lab.via(results) == {"batch": 10}


@virtual
async def test_a_job_that_is_resumed_with_less_time_takes_its_lines_out_of_their_batch(tmp_path: Path):
    stuck = BatchScript(end=None, running=1.0, answered=0, cancelling=5.0)
    async with provided(batch_default=stuck) as provider:
        config = settings(provider, tmp_path, batch=HASTY)
        async with over(provider, config) as lab:
            job = await lab.submit(10, deadline="24h")
            await eventually(lambda: lab.states(job) == ["submitted"])
        async with over(provider, config) as lab:
            began = lab.now()
            results = await lab.done(await lab.manager.resume("j", deadline="90s"))
            assert_answers(results)
            assert lab.via(results) == {"sync": 10}
            assert lab.now() - began < 90


@virtual
async def test_of_two_programs_on_one_store_one_runs_a_job(tmp_path: Path):
    async with provided(batch_default=BatchScript(running=HOUR)) as provider:
        config = settings(provider, tmp_path)
        async with over(provider, config) as lab, over(provider, config) as other:
            job = await lab.submit(10)
            with pytest.raises(JobLocked):
                await other.submit(10)
            mine = await other.submit(10, job="mine", prefix="r")
            assert_answers(await lab.done(job))
            assert_answers(await other.done(mine), "r")
            assert lab.creates() == 2
            lab.assert_paid_once()


@virtual
async def test_lines_come_in_while_batches_are_carried(tmp_path: Path):
    """From a slow source: a batch is sent off after its window, and the next one gathers the rest."""

    async def slow() -> Any:
        for line in requests(30):
            yield line
            await asyncio.sleep(5.0)

    config = {"batch": {"window_seconds": 10.0, "window_max_seconds": 60.0}}
    async with diversion_lab(tmp_path, config, batch_default=BatchScript(running=60.0)) as lab:
        job = await lab.manager.submit(slow(), model="fast", job="j", deadline="24h")
        results = await lab.done(job)
        assert_answers(results)
        assert lab.via(results) == {"batch": 30}
        assert 2 <= lab.creates() <= 4
        lab.assert_paid_once()


@virtual
async def test_more_lines_than_can_be_insured_are_split(tmp_path: Path):
    """With an hour, and batches that take half of it, so many ride as could still be answered otherwise."""
    config = {
        "batch": {"expected_seconds": 1200.0, "cancelling_seconds": 60.0},
        "limits": {"requests_per_minute": 10},
    }
    async with diversion_lab(
        tmp_path,
        config,
        batch_default=BatchScript(running=600.0),
        limits=Limits(requests_per_minute=12, headers="none"),
    ) as lab:
        began = lab.now()
        results = await lab.done(await lab.submit(300, deadline="1h"))
        assert_answers(results)
        assert lab.now() - began < HOUR
        via = lab.via(results)
        assert min(via["batch"], via["sync"]) > 50, via
        lab.assert_paid_once()


@SEEDS
@virtual
async def test_everything_goes_wrong_at_once(tmp_path: Path, seed: int):
    """Small batches with all kinds of ends: each line is answered in the end, and once."""
    scripts = [
        BatchScript(running=300.0, end="expired", answered=0.5),
        BatchScript(running=100.0, end="cancelled", answered=0.2),
        BatchScript(validating=5.0, end="failed", code="token_limit_exceeded"),
        BatchScript(running=100.0, missing=[0, 1], shuffle=seed),
        BatchScript(running=50.0, on_create=Reply(drop=True)),
        BatchScript(running=100.0, on_results=[Reply(cut_after=2000), Reply.error(503)]),
        BatchScript(running=100.0, vanishes_after=50.0),
        BatchScript(running=10.0, end=None, answered=0.4),
        BatchScript(running=100.0, doubled=[2], strangers=["who"]),
    ]
    config = {"batch": {"max_requests": 10}}
    async with diversion_lab(
        tmp_path, config, batch_script=scripts, batch_default=BatchScript(running=60.0)
    ) as lab:
        began = lab.now()
        results = await lab.done(await lab.submit(90, deadline="30h"))
        assert_answers(results)
        assert lab.now() - began < 30 * HOUR
        twice = lab.provider.billed.requests_paid_twice()
        assert len(twice) <= 10, "only those of the batch that vanished"
