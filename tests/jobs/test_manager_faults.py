"""Jobs whose process, provider or caller does what nobody should."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestra.call import Outcome, Usage
from orchestra.errors import JobLocked
from orchestra.jobs import JobManager, JobStore
from orchestra.jobs.ledger.line import Fault

if TYPE_CHECKING:
    from tests.jobs.conftest import FakeProvider

Make = Callable[..., Any]


async def test_a_file_put_right_after_a_broken_intake_begins_anew(
    manager: JobManager, provider: FakeProvider, batch_file: Make
) -> None:
    """What a killed process leaves: a job in the middle of its intake, with a line that was refused."""
    job = manager.store.create("j", created=time.time(), model=None, deadline=None, source=b"before")
    manager.store.add(job.id, [Fault(1, "not valid JSON", b"digest")])
    done = await (await manager.submit(batch_file("a", "b"), job="j")).wait()
    assert (done.total, done.done) == (2, 2)
    assert set(provider.asked) == {"a", "b"}


async def test_cancelled_intake_writes_nothing_afterwards(
    manager: JobManager, batch_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    add = JobStore.add

    def slow(self: JobStore, job: int, entries: Any) -> Any:
        began.set()
        assert go_on.wait(50)
        return add(self, job, entries)

    monkeypatch.setattr(JobStore, "add", slow)
    file = batch_file(*range(20))
    first = asyncio.create_task(manager.submit(file, job="j"))
    await asyncio.to_thread(began.wait)
    first.cancel()
    second = asyncio.create_task(manager.submit(file, job="j"))
    await asyncio.sleep(0.01)
    assert not first.done()  # it keeps the job locked until its thread has written
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    progress = await (await second).wait()
    assert (progress.total, progress.done) == (20, 20)


async def test_a_hostile_providers_words_and_numbers_are_recorded(
    manager: JobManager, provider: FakeProvider, batch_file: Make, outcome: Make
) -> None:
    def script(prompt: str, asked: int) -> Outcome:
        if prompt == "words":
            return outcome(400, b'{"error": {"code": "x\\ud83d", "message": "half \\ud83d"}}')
        answered = outcome()
        answered.usage = Usage(10**30, -5, 0, "known")
        return answered

    provider.script = script
    job = await manager.submit(batch_file("words", "numbers"), job="j")
    progress = await job.wait()
    assert (progress.done, progress.failed) == (1, 1)
    assert (progress.input_tokens, progress.output_tokens) == ((1 << 40) + 7, 3)
    results = {result.custom_id: result async for result in job}
    assert results["id-words"].error == ("x?", "half ?")


async def test_one_job_in_a_store_reached_by_two_names(
    manager: JobManager, provider: FakeProvider, batch_file: Make, outcome: Make, tmp_path: Path
) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "jobs.db").symlink_to(tmp_path / "jobs.db")
    other = JobManager(tmp_path / "links" / "jobs.db", provider.send)
    file = batch_file(1)
    gate = asyncio.Event()

    async def held() -> Outcome:
        await gate.wait()
        return outcome()

    provider.script = lambda prompt, asked: held()
    job = await manager.submit(file, job="j")
    with pytest.raises(JobLocked):
        await other.submit(file, job="j")
    gate.set()
    await job.wait()
    await other.aclose()
