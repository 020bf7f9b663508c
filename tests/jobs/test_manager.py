"""Jobs from submit to their end: what is asked, how often, in what order, and what stops them."""

from __future__ import annotations

import asyncio
import json
import os
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestra.call import ORIGIN, Call, Outcome
from orchestra.dispatch import Outage
from orchestra.errors import ConnectionFailed, InputError, JobError, JobLocked
from orchestra.jobs import Job, JobManager
from orchestra.jobs.ledger.lock import JobLock, is_locked
from orchestra.jobs.sending import runner
from orchestra.policies.traffic import TrafficClass

if TYPE_CHECKING:
    from tests.jobs.conftest import FakeProvider

Make = Callable[..., Any]


async def collected(job: Job) -> list[str]:
    return [result.custom_id async for result in job]


async def test_every_line_is_asked_once_as_bulk(
    manager: JobManager, provider: FakeProvider, batch_file: Make
) -> None:
    job = await manager.submit(batch_file(*range(50)), job="nightly", model="other")
    progress = await job.wait()
    assert (progress.total, progress.done, progress.failed, progress.ended) == (50, 50, 0, True)
    assert (progress.input_tokens, progress.output_tokens) == (350, 150)
    assert set(provider.asked.values()) == {1}
    assert provider.peak <= 8
    for call in provider.calls:
        assert (call.traffic, call.job, call.expires_at) == (TrafficClass.BULK, "nightly", None)
        assert (call.url, call.model) == (f"{ORIGIN}/v1/chat/completions", "other")
    assert manager.list()[0].state == "ended"
    assert [result.custom_id async for result in job.results()] == [f"id-{n}" for n in range(50)]


async def test_results_come_as_they_end_and_in_input_order(
    manager: JobManager, provider: FakeProvider, batch_file: Make, outcome: Make
) -> None:
    async def slow(prompt: str) -> Outcome:
        while prompt == "0" and manager.store.tally(1).ended < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        return outcome()

    provider.script = lambda prompt, asked: slow(prompt)
    job = await manager.submit(batch_file(0, 1, 2, 3))
    assert (await collected(job))[-1] == "id-0"
    assert (await collected(job))[-1] == "id-0", "a second reader gets all too"
    assert [result.custom_id async for result in job.results()] == ["id-0", "id-1", "id-2", "id-3"]


async def test_a_result_is_in_the_ledger_before_it_is_reported(manager: JobManager, batch_file: Make) -> None:
    job = await manager.submit(batch_file(*range(20)))
    seen = 0
    async for _ in job:
        seen += 1
        assert job.progress().done >= seen


async def test_submitting_again_joins(
    manager: JobManager, provider: FakeProvider, batch_file: Make, outcome: Make
) -> None:
    path, gate = batch_file(*range(20)), asyncio.Event()

    async def held() -> Outcome:
        await gate.wait()
        return outcome()

    provider.script = lambda prompt, asked: held()
    first = await manager.submit(path, job="j")
    assert await manager.submit(path, job="j") is first
    gate.set()
    await first.wait()
    again = await manager.submit(path, job="j", deadline=0.000001)
    assert (await again.wait()).done == 20
    assert len(await collected(again)) == 20
    assert sum(provider.asked.values()) == 20


async def test_the_same_requests_join_from_a_program(
    manager: JobManager, provider: FakeProvider, batch_file: Make
) -> None:
    path = batch_file(*range(20))
    await (await manager.submit(path, job="j")).wait()
    requests = [json.loads(line) for line in path.read_text().splitlines()]
    await (await manager.submit(requests, job="j")).wait()
    assert sum(provider.asked.values()) == 20


@pytest.mark.parametrize("prompts", [(0, 1, 2, 9), (0, 1, 2), (0, 1, 2, 3, 4), (1, 0, 2, 3), ()])
@pytest.mark.parametrize("form", ["file", "objects"])
async def test_a_name_belongs_to_its_requests(
    manager: JobManager, provider: FakeProvider, batch_file: Make, request_of: Make, prompts: tuple[int], form: str
) -> None:
    requests = [{"custom_id": f"id-{n}", "url": "/v1/chat/completions", "body": request_of(n)} for n in range(4)]
    await (await manager.submit(requests, job="j")).wait()
    other = batch_file(*prompts, name="other.jsonl")
    again = other if form == "file" else [json.loads(line) for line in other.read_text().splitlines()]
    with pytest.raises(JobError, match=r"'j' exists already with other requests .*line \d .*another name"):
        await manager.submit(again, job="j")
    assert sum(provider.asked.values()) == 4
    assert manager.get("j").progress().done == 4, "and the job is as it was"


async def test_another_model_is_another_job(manager: JobManager, batch_file: Make) -> None:
    path = batch_file(1)
    await (await manager.submit(path, job="j", model="a")).wait()
    with pytest.raises(JobError, match="another model"):
        await manager.submit(path, job="j", model="b")


async def test_without_a_name_it_is_a_new_job(
    manager: JobManager, provider: FakeProvider, batch_file: Make
) -> None:
    path = batch_file(1)
    first, second = [await manager.submit(path) for _ in range(2)]
    assert first.name != second.name
    await asyncio.gather(first.wait(), second.wait())
    assert provider.asked["1"] == 2


async def test_a_bad_file_is_refused_whole(manager: JobManager, provider: FakeProvider, batch_file: Make) -> None:
    path = batch_file(*range(30))
    lines = path.read_text().splitlines()
    lines[16] = "{broken"
    lines[20] = lines[3]
    path.write_text("\n".join(lines))
    with pytest.raises(InputError) as caught:
        await manager.submit(path, job="j")
    assert str(caught.value).startswith(f"{path}: 2 lines cannot be used\n  line 17: not valid JSON")
    assert "line 21: custom_id 'id-3' is that of line 4 too" in str(caught.value)
    assert (provider.calls, manager.list()) == ([], [])


async def test_of_other_requests_a_bad_one_fails_alone(
    manager: JobManager, provider: FakeProvider, request_of: Make
) -> None:
    job = await manager.submit([request_of("a"), {"messages": []}, 5, request_of("b")], job="j")
    assert (await job.wait()).failed == 2
    results = [result async for result in job.results()]
    assert [result.ok for result in results] == [True, False, False, True]
    assert results[1].error is not None
    assert results[1].error.code == "invalid_line"
    assert "--model" in results[1].error.message
    assert sorted(provider.asked) == ["a", "b"]


async def test_an_empty_program_is_a_job_that_has_ended(manager: JobManager) -> None:
    job = await manager.submit([])
    assert (await job.wait()).ended
    assert await collected(job) == []


async def test_refusals_are_failed_lines(
    manager: JobManager, provider: FakeProvider, batch_file: Make, outcome: Make
) -> None:
    def script(prompt: str, asked: int) -> Outcome | Exception | None:
        if prompt == "1":
            return outcome(400, {"error": {"code": "bad", "message": "no"}})
        return InputError("too long") if prompt == "2" else None

    provider.script = script
    job = await manager.submit(batch_file(0, 1, 2, 3))
    progress = await job.wait()
    assert (progress.done, progress.failed) == (2, 2)
    _, refused, invalid, _ = [result async for result in job.results()]
    assert (refused.status_code, refused.error) == (400, ("bad", "no"))
    assert refused.body == {"error": {"code": "bad", "message": "no"}}
    assert (invalid.status_code, invalid.error, invalid.body) == (None, ("invalid_request", "too long"), None)


async def test_a_spent_account_stops_the_job_and_costs_no_line(
    manager: JobManager, provider: FakeProvider, batch_file: Make, outcome: Make
) -> None:
    spent = True

    def script(prompt: str, asked: int) -> Outcome | None:
        if spent and len(provider.calls) > 10:
            return outcome(429, {"error": {"code": "insufficient_quota", "message": "pay"}})
        return None

    provider.script = script
    path = batch_file(*range(100))
    job = await manager.submit(path, job="j")
    with pytest.raises(JobError, match=r"stopped .*pay .*insufficient_quota.*submit it again"):
        await job.wait()
    with pytest.raises(JobError, match="pay"):
        await collected(job)
    assert job.progress().failed == 0
    assert 0 < job.progress().done <= 10
    assert len(provider.calls) <= 10 + 8, "it stopped at once"
    assert "insufficient_quota" in (manager.list()[0].stopped or "")

    spent = False
    again = await manager.submit(path, job="j")
    assert (await again.wait()).done == 100
    assert {result.attempts async for result in again.results()} == {1}, "being blocked is no attempt"
    assert manager.list()[0].stopped is None


async def test_an_outage_stops_the_job_and_costs_no_line(
    manager: JobManager, provider: FakeProvider, batch_file: Make
) -> None:
    provider.script = lambda prompt, asked: ConnectionFailed("refused", sent=False)
    job = await manager.submit(batch_file(*range(30)), job="j")
    with pytest.raises(JobError, match=r"stopped \(0 of 30 lines.*refused \[connection_failed\]"):
        await job.wait()
    assert job.progress().pending == 30
    assert len(provider.calls) <= 9


async def test_an_outage_that_ends_costs_nothing(
    provider: FakeProvider, batch_file: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = runner.Patience
    monkeypatch.setattr(
        "orchestra.jobs.manager.Patience", lambda limit: quick(limit=limit, first_pause=0.01, longest_pause=0.02)
    )
    manager = JobManager(tmp_path / "jobs.db", provider.send, window=8, patience=30)
    provider.script = lambda prompt, asked: (
        ConnectionFailed("refused", sent=False) if 10 < len(provider.calls) < 30 else None
    )
    job = await manager.submit(batch_file(*range(50)))
    progress = await job.wait()
    assert (progress.done, progress.failed) == (50, 0)
    assert {result.attempts async for result in job.results()} == {1}
    await manager.aclose()


async def test_the_latest_reason_is_told_while_calls_try_and_an_interrupt_leaves_none(
    provider: FakeProvider, batch_file: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage: Outage | None = None
    quick = runner.Patience
    monkeypatch.setattr("orchestra.jobs.manager.Patience", lambda limit: quick(limit=limit, first_pause=0.01))
    manager = JobManager(tmp_path / "jobs.db", provider.send, window=2, patience=30, outage=lambda: outage)
    fault = ConnectionFailed("too many requests", sent=False)
    provider.script = lambda prompt, asked: fault if prompt == "0" else asyncio.Event().wait()
    job = await manager.submit(batch_file(*range(3)), job="j")
    async with asyncio.timeout(30):
        while not manager.list()[0].stopped or "next try" in (job.progress().waiting or ""):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    until = "gives up after 30.0s of no answer at all"
    assert job.progress().waiting == f"too many requests; trying one line; {until}"
    outage = Outage("no answer from p/m (connection to p:80 refused)", 4.2)
    assert job.progress().waiting == f"{outage.reason}; next try in 5s; {until}"
    await job.cancel()
    assert manager.list()[0].stopped is None, "interrupted, and not stopped by a fault"
    await manager.aclose()


async def test_a_line_that_fails_while_others_are_answered_is_to_blame(
    manager: JobManager, provider: FakeProvider, batch_file: Make, outcome: Make
) -> None:
    answered = 0

    async def crash() -> Outcome:
        before = answered
        while manager.store.tally(1).ended <= before < 199:  # noqa: ASYNC110 - others are answered meanwhile
            await asyncio.sleep(0.002)
        return outcome(500, {"error": {"message": "worker died"}})

    async def slow() -> Outcome:
        nonlocal answered
        await asyncio.sleep(0.005)
        answered += 1
        return outcome()

    provider.script = lambda prompt, asked: crash() if prompt == "3" else slow()
    job = await manager.submit(batch_file(*range(200)))
    progress = await job.wait()
    assert (progress.done, progress.failed) == (199, 1)
    (failed,) = [result async for result in job if not result.ok]
    assert failed.custom_id == "id-3"
    assert (failed.error_message, failed.attempts) == ("worker died (status 500)", provider.asked["3"] + 1)
    assert provider.asked["3"] == runner.SUSPICIONS


async def test_a_fault_of_ours_stops_the_job(
    manager: JobManager, provider: FakeProvider, batch_file: Make
) -> None:
    provider.script = lambda prompt, asked: ZeroDivisionError("bug")
    job = await manager.submit(batch_file(1))
    with pytest.raises(JobError, match=r"fault of ours: .*bug"):
        await job.wait()


async def test_lines_that_miss_the_deadline_fail_as_expired(
    manager: JobManager, provider: FakeProvider, batch_file: Make
) -> None:
    def script(prompt: str, asked: int) -> Any:
        return asyncio.sleep(600) if int(prompt) >= 4 else None

    provider.script = script
    began = time.monotonic()
    job = await manager.submit(batch_file(*range(30)), job="j", deadline="3s")
    submitted = time.monotonic()
    progress = await job.wait()
    assert (progress.done, progress.failed) == (4, 26)
    assert {result.error_code async for result in job if not result.ok} == {"expired"}
    assert provider.under_way == 0
    assert all(call.expires_at and began < call.expires_at < submitted + 3.1 for call in provider.calls)


@pytest.mark.parametrize("deadline", ["soon", 0, -1, "0s"])
async def test_a_bad_deadline_is_refused(manager: JobManager, batch_file: Make, deadline: float | str) -> None:
    with pytest.raises(InputError, match="deadline"):
        await manager.submit(batch_file(1), deadline=deadline)


@pytest.mark.parametrize("name", ["", " a", "a\nb", "a" * 201])
async def test_a_bad_name_is_refused(manager: JobManager, batch_file: Make, name: str) -> None:
    with pytest.raises(InputError, match="job name"):
        await manager.submit(batch_file(1), job=name)


async def test_cancelling_leaves_it_resumable(
    manager: JobManager, provider: FakeProvider, batch_file: Make
) -> None:
    path = batch_file(*range(100))
    provider.delay = 0.01
    job = await manager.submit(path, job="j")
    async for _ in job:
        break
    await job.cancel()
    await job.cancel()
    assert provider.under_way == 0
    with pytest.raises(JobError, match="was cancelled; submit it again"):
        await job.wait()
    done = job.progress().done
    assert 0 < done < 100
    finished = {result.custom_id async for result in job.results()}
    again = await manager.submit(path, job="j")
    assert (await again.wait()).done == 100
    assert all(provider.asked[custom_id.removeprefix("id-")] == 1 for custom_id in finished)


async def test_cancelling_at_once_leaves_nothing_behind(manager: JobManager, batch_file: Make) -> None:
    path = batch_file(1)
    job = await manager.submit(path, job="j")
    await job.cancel()
    assert (await (await manager.submit(path, job="j")).wait()).done == 1


async def test_closing_stops_all_and_frees_the_locks(
    provider: FakeProvider, batch_file: Make, tmp_path: Path
) -> None:
    provider.delay = 30
    manager = JobManager(tmp_path / "jobs.db", provider.send)
    job = await manager.submit(batch_file(*range(10)), job="j")
    await asyncio.sleep(0.05)
    assert is_locked(tmp_path / "jobs.db", "j")
    await manager.aclose()
    await manager.aclose()
    assert provider.under_way == 0
    assert not is_locked(tmp_path / "jobs.db", "j")
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".lock")]
    with pytest.raises(JobError, match="cancelled"):
        await job.wait()


async def test_one_process_at_a_time(manager: JobManager, batch_file: Make, tmp_path: Path) -> None:
    lock = JobLock(tmp_path / "jobs.db", "j")
    with pytest.raises(JobLocked, match="being run by another process"):
        await manager.submit(batch_file(1), job="j")
    await (await manager.submit(batch_file(1), job="other")).wait()
    lock.release()
    lock.release()
    assert (await (await manager.submit(batch_file(1), job="j")).wait()).done == 1


async def test_a_job_that_is_not_run_here_says_so(manager: JobManager, batch_file: Make) -> None:
    manager.store.create("old", created=1.0, model=None, deadline=None, source=None)
    old = manager.get("old")
    assert not old.progress().whole
    with pytest.raises(JobError, match="not run by this process"):
        await old.wait()
    with pytest.raises(JobError, match="not run by this process"):
        await collected(old)
    with pytest.raises(JobError, match=r"no job 'none' .*jobs list"):
        manager.get("none")


async def test_the_first_answers_come_before_the_last_request(
    manager: JobManager, provider: FakeProvider, request_of: Make
) -> None:
    more = asyncio.Event()

    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield request_of("first")
        await more.wait()
        yield request_of("last")

    job = await manager.submit(requests(), job="j")
    results = aiter(job)
    assert (await anext(results)).custom_id == "line-1"
    assert not job.progress().whole
    with pytest.raises(JobLocked, match="being submitted"):
        await manager.submit([request_of("first")], job="j")
    more.set()
    assert (await anext(results)).custom_id == "line-2"
    assert await anext(results, None) is None
    assert job.progress().ended


async def test_a_program_that_breaks_stops_the_job_and_can_go_on(
    manager: JobManager, provider: FakeProvider, request_of: Make
) -> None:
    async def requests(broken: bool) -> AsyncIterator[dict[str, Any]]:
        for prompt in range(600):
            if broken and prompt == 400:
                while not manager.store.tally(1).ended:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
                raise OSError("database gone")
            yield request_of(prompt)

    job = await manager.submit(requests(broken=True), job="j")
    with pytest.raises(JobError, match=r"requests could not be read: .*database gone"):
        await job.wait()
    finished = {result.number async for result in job.results()}
    assert finished
    again = await manager.submit(requests(broken=False), job="j")
    assert (await again.wait()).done == 600
    assert all(provider.asked[str(number - 1)] == 1 for number in finished)


async def test_an_intake_that_broke_off_before_anything_was_sent_begins_anew(
    manager: JobManager, provider: FakeProvider, batch_file: Make
) -> None:
    half = manager.store.create("j", created=1.0, model=None, deadline=None, source=None)
    await manager.submit(batch_file("x"), job="j")
    assert manager.get("j").record.id != half.id or manager.get("j").record.created != 1.0
    await manager.get("j").wait()
    assert list(provider.asked) == ["x"]


async def test_many_requests_in_flat_memory(outcome: Make, request_of: Make, tmp_path: Path) -> None:
    async def send(call: Call) -> Outcome:
        nonlocal under_way, peak_under_way
        under_way += 1
        peak_under_way = max(peak_under_way, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return outcome()

    manager = JobManager(tmp_path / "jobs.db", send, window=64)
    under_way = peak_under_way = tasks = 0
    text = "x" * 8000

    def requests() -> Iterator[dict[str, Any]]:
        nonlocal tasks
        for number in range(2_500):
            if number % 100 == 0:
                tasks = max(tasks, len(asyncio.all_tasks()))
            yield request_of(f"{number} {text}")

    tracemalloc.start()
    try:
        job = await manager.submit(requests())
        count = 0
        async for _ in job:
            count += 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 2_500
    assert peak_under_way <= 64
    assert tasks <= 64 + 10
    assert peak < 12 << 20, "the requests alone are 20 MiB"
    await manager.aclose()


async def test_a_slow_ledger_slows_the_sending(
    manager: JobManager, provider: FakeProvider, batch_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await manager.submit(batch_file(*range(40)), job="j")
    finish = manager.store.finish
    ahead = 0

    def slow(id: int, ends: Any) -> int:
        nonlocal ahead
        time.sleep(0.01)
        ahead = max(ahead, len(provider.calls) - manager.store.tally(id).ended)
        return finish(id, ends)

    monkeypatch.setattr(manager.store, "finish", slow)
    await job.wait()
    assert 0 < ahead <= 8


async def test_a_full_disk_stops_the_job(
    manager: JobManager, provider: FakeProvider, batch_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(id: int, ends: Any) -> None:
        raise JobError("no room left")

    path = batch_file(*range(40))
    job = await manager.submit(path, job="j")
    with monkeypatch.context() as patched:
        patched.setattr(manager.store, "finish", full)
        with pytest.raises(JobError, match="no room left"):
            await job.wait()
    assert len(provider.calls) <= 8
    assert (await (await manager.submit(path, job="j")).wait()).done == 40
