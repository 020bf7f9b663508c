"""Failed lines are asked again where somebody says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from ledger_lab import consistent, filled

from orchestra.errors import InputError, JobError
from orchestra.jobs import JobManager, JobStore
from orchestra.jobs.ledger.record import End, LineError, OutletTally

Make = Callable[..., Any]
BAD = LineError("bad", "no")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    with closing(JobStore(tmp_path / "ledger.db")) as store:
        yield store


def test_what_failed_is_pending_again_and_what_was_answered_stays(store: JobStore) -> None:
    job = filled(store, 6)
    ends = [
        End(3, BAD, status_code=400, response=b"{}", input_tokens=5, route="a/m", usd=0.5),
        End(1, route="a/m", input_tokens=2, usd=0.25),
        End(2, BAD, via=None),
        End(6, route="a/m", via="batch"),
        End(4, BAD, route="b/m"),
        End(5, route="a/m"),
    ]
    store.finish(job.id, ends)
    store.stop(job.id, "cancelled")
    assert store.retry_failed(job.id, now=5.0) == 3
    consistent(store.path)
    found = store.find("j")
    assert found is not None
    assert (found.state, found.stopped) == ("open", None)
    assert [line.number for line in store.pending(job.id, 0, max_lines=9, max_bytes=99)] == [2, 3, 4]
    done = store.completed(job.id, 0, max_lines=9, max_bytes=99)
    assert [(result.number, result.ended) for result in done] == [(1, 1), (6, 2), (5, 3)], (
        "their order is the same"
    )
    assert store.outlets(job.id) == [
        OutletTally("a/m", "batch", 1, 0, 0, 0, 0.0, 1),
        OutletTally("a/m", "sync", 2, 0, 2, 0, 0.25, 1),
    ]
    assert store.retry_failed(job.id, now=5.0) == 0
    store.finish(job.id, [End(n, route="b/m") for n in (2, 3, 4)])
    consistent(store.path)
    found = store.find("j")
    assert found is not None
    assert found.state == "ended"


def test_a_deadline_that_has_passed_gives_way(store: JobStore) -> None:
    for name, deadline, given, then in (("a", 10.0, None, None), ("b", 10.0, 99.0, 99.0), ("c", 50.0, 99.0, 50.0)):
        job = store.create(name, created=1.0, model=None, deadline=deadline, source=None)
        other = filled(store, 1, f"{name}-lines")
        with store.database.writing() as db:
            db.execute("UPDATE lines SET job = ? WHERE job = ?", (job.id, other.id))
            db.execute("UPDATE jobs SET total = 1, state = 'open' WHERE id = ?", (job.id,))
        store.fail_rest(job.id, LineError("expired", ""))
        assert store.retry_failed(job.id, now=20.0, deadline=given) == 1
        found = store.find(name)
        assert found is not None
        assert found.deadline == then


async def test_a_program_asks_failed_lines_again(
    manager: JobManager, provider: Any, request_of: Make, outcome: Make
) -> None:
    requests = [request_of(n) for n in range(4)] + [{"nonsense": 1}]
    provider.script = lambda prompt, asked: outcome(400, {"error": {"code": "bad"}}) if asked < 3 else None
    progress = await (await manager.submit(requests, job="j")).wait()
    assert (progress.done, progress.failed) == (0, 5)
    assert (await (await manager.submit(requests, job="j")).wait()).failed == 5
    assert sum(provider.asked.values()) == 4
    progress = await (await manager.submit(requests, job="j", retry_failed=True)).wait()
    assert (progress.done, progress.failed, sum(provider.asked.values())) == (0, 5, 8)
    job = await manager.resume("j", retry_failed=True)
    with pytest.raises(JobError, match="running"):
        await manager.submit(requests, job="j", retry_failed=True)
    progress = await job.wait()
    assert (progress.done, progress.failed, sum(provider.asked.values())) == (4, 1, 12)
    job = await manager.resume("j", retry_failed=True)
    assert (await job.wait()).failed == 1, "what cannot be used is not asked"
    assert sum(provider.asked.values()) == 12
    with pytest.raises(JobError, match="other requests"):
        await manager.submit([request_of(99)], job="j", retry_failed=True)
    await manager.submit(requests, job="j", retry_failed=True)  # whose lock nobody holds


async def test_expired_lines_get_a_new_deadline(manager: JobManager, provider: Any, request_of: Make) -> None:
    provider.delay = 5.0
    job = await manager.submit([request_of(1)], job="j", deadline=0.05)
    assert (await job.wait()).failed == 1
    provider.delay = 0.0
    job = await manager.submit([request_of(1)], job="j", deadline="1h", retry_failed=True)
    progress = await job.wait()
    assert (progress.done, progress.failed) == (1, 0)
    assert progress.deadline is not None
    assert progress.deadline > time.time() + 3000


async def test_a_job_of_a_closed_store_says_so(manager: JobManager, provider: Any, request_of: Make) -> None:
    job = await manager.submit([request_of(1)], job="j")
    await job.wait()
    await manager.aclose()
    with pytest.raises(JobError, match="store was closed") as told:
        job.progress()
    assert "database" not in str(told.value)
    assert repr(job) == "<Job 'j'>"


async def test_a_missing_file_says_nothing_of_pipes(manager: JobManager) -> None:
    with pytest.raises(InputError) as told:
        await manager.submit("nowhere.jsonl")
    assert str(told.value) == "nowhere.jsonl: no such file; check the name and the folder"
