"""Long files: checked whole first, then answered while they are still taken in, and what breaks in between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from orchestra.errors import InputError, JobError, JobLocked
from orchestra.jobs import Job, JobManager
from orchestra.jobs.intake.sources import JsonlFile
from orchestra.jobs.ledger.store import JobStore

if TYPE_CHECKING:
    from tests.jobs.conftest import FakeProvider

Make = Callable[..., Any]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold back what is taken in behind line 2000 until it is set."""
    gate = threading.Event()
    add = JobStore.add

    def held(self: JobStore, job: int, entries: Any) -> Any:
        if entries[0].number > 2000:
            gate.wait(50)
        return add(self, job, entries)

    monkeypatch.setattr(JobStore, "add", held)
    yield gate
    gate.set()


async def answered(job: Job, lines: int) -> None:
    async for _ in job:
        if job.progress().done >= lines:
            return


async def test_the_first_lines_of_a_long_file_are_asked_while_the_others_are_taken_in(
    manager: JobManager, provider: FakeProvider, batch_file: Make, gate: threading.Event
) -> None:
    path = batch_file(*range(3500))
    job = await manager.submit(path, job="j")
    await answered(job, 100)
    assert not job.progress().whole
    assert await manager.submit(path, job="j") is job, "it is the same, though its last lines are not in"
    for other in (batch_file(*range(3501), name="other.jsonl"), [{"prompt": "x"}]):
        with pytest.raises(JobLocked, match="being submitted"):
            await manager.submit(other, job="j")
    gate.set()
    assert (await job.wait()).done == 3500
    assert set(provider.asked.values()) == {1}
    assert [result.custom_id async for result in job.results()] == [f"id-{n}" for n in range(3500)]


@pytest.mark.parametrize("lines", [1, 999, 1000])
async def test_a_short_file_is_taken_in_whole_first(manager: JobManager, batch_file: Make, lines: int) -> None:
    job = await manager.submit(batch_file(*range(lines)), job="j")
    assert (job.progress().total, job.progress().whole) == (lines, True)
    await job.cancel()


async def test_a_bad_line_far_down_refuses_the_file_before_anything_is_sent(
    manager: JobManager, provider: FakeProvider, batch_file: Make
) -> None:
    with pytest.raises(InputError, match="line 5001: custom_id 'id-7' is that of line 8 too"):
        await manager.submit(batch_file(*range(5000), 7), job="j")
    assert (provider.calls, manager.list()) == ([], [])


@pytest.mark.parametrize("answers", [0, 50])
async def test_an_intake_that_broke_off_goes_on_where_it_was(
    manager: JobManager, provider: FakeProvider, batch_file: Make, gate: threading.Event, answers: int
) -> None:
    path = batch_file(*range(3500))
    provider.delay = 0 if answers else 30
    job = await manager.submit(path, job="j", deadline=1000)
    if answers:
        await answered(job, answers)
    asyncio.get_running_loop().call_later(0.05, gate.set)  # a thread that writes is waited for
    await job.cancel()
    first = job.progress()
    assert first.done >= answers
    assert not first.whole
    finished = {result.number async for result in job.results()}

    provider.delay = 0
    again = await manager.submit(path, job="j", deadline=2000)
    # what a provider may have of it is not forgotten, and its first deadline holds
    assert (again.record.id, again.record.deadline) == (job.record.id, job.record.deadline)
    assert (await again.wait()).done == 3500
    assert all(provider.asked[str(number - 1)] == 1 for number in finished)
    assert [result.number async for result in again.results()] == [*range(1, 3501)]


async def test_the_beginning_of_an_intake_is_compared_where_the_file_is_another(
    manager: JobManager, provider: FakeProvider, batch_file: Make, gate: threading.Event
) -> None:
    job = await manager.submit(batch_file(*range(3500)), job="j")
    await answered(job, 10)
    asyncio.get_running_loop().call_later(0.05, gate.set)
    await job.cancel()
    other = batch_file("other", *range(1, 3500), name="other.jsonl")
    with pytest.raises(JobError, match="line 1 is not the same"):
        await manager.submit(other, job="j")
    longer = batch_file(*range(3600), name="longer.jsonl")
    assert (await (await manager.submit(longer, job="j")).wait()).done == 3600


async def test_a_file_that_changes_while_it_is_taken_in_stops_the_job(
    manager: JobManager, provider: FakeProvider, batch_file: Make, gate: threading.Event
) -> None:
    path = batch_file(*range(6000))
    job = await manager.submit(path, job="j")
    await answered(job, 10)
    with path.open("a") as file:
        file.write("{broken\n")
    gate.set()
    with pytest.raises(JobError, match=r"stopped .*changed while it was read"):
        await job.wait()
    assert job.progress().failed == 0


async def test_the_check_of_a_file_can_be_followed(
    manager: JobManager, batch_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.jobs.intake.inspection._STEP_LINES", 100)
    path = batch_file(*range(20_000))
    with JsonlFile.open(path) as file:
        submitting = asyncio.create_task(manager.submit(file, job="j"))
        seen = set()
        while not submitting.done():
            await asyncio.sleep(0)
            seen.add(file.read_bytes)
            assert file.read_bytes == file.size or not manager.list()
    assert len(seen) > 3
    assert max(seen) == file.size
    await (await submitting).cancel()
