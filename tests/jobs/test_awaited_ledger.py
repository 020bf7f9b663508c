"""The ledger's part about awaited jobs: an answer paid for is found again, and equal requests stay apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestra.errors import JobError
from orchestra.jobs.ledger.awaited_ledger import AwaitedLedger
from orchestra.jobs.ledger.record import AwaitedLine, Dealt, End, JobRecord, LineError
from orchestra.jobs.ledger.store import JobStore

BATCH: dict[str, Any] = {
    "provider": "one",
    "account": "k",
    "route": "one/m",
    "model": "m",
    "path": "/chat/completions",
    "headers": (),
    "window": 1.0,
    "now": 0.0,
}
DIGEST = bytes(range(16))
PATH, BODY = "/v1/chat/completions", b'{"model":"fast"}'


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    store = JobStore(tmp_path / "jobs.db")
    yield store
    store.close()


@pytest.fixture
def job(store: JobStore) -> JobRecord:
    return store.create("j", created=1.0, model=None, deadline=None, source=None, kind="awaited")


@pytest.fixture
def awaited(store: JobStore) -> AwaitedLedger:
    return store.awaited


def ask(awaited: AwaitedLedger, job: JobRecord, nth: int | None = None, digest: bytes = DIGEST) -> AwaitedLine:
    return awaited.await_line(job.id, digest, PATH, BODY, nth)


def test_each_asking_is_a_line_of_its_own(store: JobStore, awaited: AwaitedLedger, job: JobRecord) -> None:
    assert ask(awaited, job, 1) == AwaitedLine(1, 1, None)
    assert ask(awaited, job, 2) == AwaitedLine(2, 2, None)
    assert ask(awaited, job, 1, b"other") == AwaitedLine(3, 1, None)
    assert ask(awaited, job, 2) == AwaitedLine(2, 2, None)
    lines = store.pending(job.id, 0, max_lines=9, max_bytes=999, outlet=None)
    assert [line.custom_id for line in lines] == [f"{DIGEST.hex()}-1", f"{DIGEST.hex()}-2", f"{b'other'.hex()}-1"]
    assert {(line.path, line.body) for line in lines} == {(PATH, BODY)}
    tally = store.tally(job.id)
    assert (tally.total, tally.pending, tally.whole) == (3, 3, True)


def test_a_later_run_finds_the_answers(store: JobStore, awaited: AwaitedLedger, job: JobRecord) -> None:
    ask(awaited, job, 1)
    ask(awaited, job, 2)
    store.finish(job.id, [End(2, response=b'{"a":1}', via="batch"), End(1, LineError("bad", "no"))])
    assert store.jobs()[0].state == "ended"
    with closing(JobStore(store.path)) as again:
        first, second = (ask(again.awaited, job, nth) for nth in (1, 2))
        assert first.result is not None
        assert second.result is not None
        assert (first.result.error, second.result.body, second.result.via) == (
            LineError("bad", "no"),
            {"a": 1},
            "batch",
        )
        assert again.tally(job.id).total == 2
        assert again.jobs()[0].state == "ended"
        assert ask(again.awaited, job, 3) == AwaitedLine(3, 3, None)
        assert again.jobs()[0].state == "open"


def test_answers_are_handed_over_once(store: JobStore, awaited: AwaitedLedger, job: JobRecord) -> None:
    assert awaited.next_unhanded(job.id, DIGEST) is None
    for _ in range(11):
        ask(awaited, job)
    ask(awaited, job, digest=b"other")
    store.finish(job.id, [End(1), End(2), End(4)])
    first = awaited.next_unhanded(job.id, DIGEST)
    assert first is not None
    assert first.result is not None
    assert (first.number, first.nth, first.result.ok) == (1, 1, True)
    awaited.handed(job.id, [1, 2, 3], 50.0)  # 3 has no answer yet that could be
    assert awaited.next_unhanded(job.id, DIGEST) == AwaitedLine(3, 3, None)
    fourth = awaited.next_unhanded(job.id, DIGEST, after=3)
    assert fourth is not None
    assert fourth.nth == 4
    assert awaited.next_unhanded(job.id, DIGEST, after=9) == AwaitedLine(10, 10, None)  # by number, not as text
    assert awaited.next_unhanded(job.id, DIGEST, after=11) is None
    awaited.handed(job.id, [1, 4], 60.0)
    with store.database.reading() as db:
        rows = db.execute("SELECT number, handed FROM lines WHERE handed IS NOT NULL ORDER BY number").fetchall()
    assert rows == [(1, 50.0), (2, 50.0), (4, 60.0)]


def test_one_more_asking_comes_after_all_there_are(
    store: JobStore, awaited: AwaitedLedger, job: JobRecord
) -> None:
    assert [ask(awaited, job).nth for _ in range(3)] == [1, 2, 3]
    store.finish(job.id, [End(3)])
    awaited.handed(job.id, [3], 1.0)
    assert (ask(awaited, job).nth, ask(awaited, job, digest=b"other").nth) == (4, 1)


def test_a_line_is_withdrawn_while_nobody_has_it(store: JobStore, awaited: AwaitedLedger, job: JobRecord) -> None:
    for nth in (1, 2, 3, 4):
        ask(awaited, job, nth)
    store.batches.deal(job.id, {0: Dealt([2])})
    store.finish(job.id, [End(3)])
    assert [awaited.withdraw(job.id, number) for number in (1, 2, 3, 4, 4, 9)] == [
        True,
        False,
        False,
        True,
        False,
        False,
    ]
    tally = store.tally(job.id)
    assert (tally.total, tally.done, tally.pending) == (2, 1, 1)
    # a late answer to what was withdrawn must not meet another line
    assert ask(awaited, job, 4) == AwaitedLine(5, 4, None)
    assert store.finish(job.id, [End(4)]) == 0
    assert awaited.withdraw(job.id, 5)
    store.finish(job.id, [End(2)])
    assert store.jobs()[0].state == "ended"


def test_a_line_that_is_withdrawn_rides_no_more(store: JobStore, awaited: AwaitedLedger, job: JobRecord) -> None:
    batch = {"provider": "p", "account": "a", "route": "p/m", "model": "m", "path": PATH, "headers": ()}
    record = store.batches.open(job.id, **batch, window=1.0, now=1.0)  # type: ignore[arg-type]
    numbers = [ask(awaited, job).number for _ in range(3)]
    store.batches.deal(job.id, {record.id: Dealt(numbers, 30, 3)})
    assert awaited.withdraw(job.id, numbers[0])
    (record,) = store.batches.of_job(job.id)
    assert (record.lines, record.riding) == (2, 2)


def test_withdrawing_the_last_open_line_ends_the_job(
    store: JobStore, awaited: AwaitedLedger, job: JobRecord
) -> None:
    ask(awaited, job, 1)
    ask(awaited, job, 2)
    store.finish(job.id, [End(1)])
    assert store.jobs()[0].state == "open"
    assert awaited.withdraw(job.id, 2)
    assert store.jobs()[0].state == "ended"


def test_lines_of_submitted_jobs_are_no_awaited_ones(store: JobStore, awaited: AwaitedLedger) -> None:
    job = store.create("s", created=1.0, model=None, deadline=None, source=None)
    with pytest.raises(JobError, match="awaited job"):
        ask(awaited, job, 1)
    assert store.tally(job.id).total == 0


def test_a_request_is_found_in_whichever_job_it_was_asked(store: JobStore, awaited: AwaitedLedger, job: JobRecord):
    other, third = (
        store.create(name, created=1.0, model=None, deadline=None, source=None, kind="awaited")
        for name in ("other", "third")
    )
    for where in (other, job, third):
        ask(awaited, where)
        ask(awaited, where, digest=b"different")
    ask(awaited, job)
    store.finish(job.id, [End(1)])
    awaited.handed(job.id, [1], 1.0)
    assert awaited.unhanded_of(DIGEST, [other.id, job.id]) == [(job.id, 2), (other.id, 1)]
    assert awaited.unhanded_of(DIGEST, []) == []


def test_which_jobs_hold_anything_of_use(store: JobStore, awaited: AwaitedLedger) -> None:
    jobs = {}
    for name in ("u-empty", "u-undecided", "u-alone", "u-riding", "u-answered", "u-handed", "v-answered"):
        job = jobs[name] = store.create(name, created=1.0, model=None, deadline=None, source=None, kind="awaited")
        if name != "u-empty":
            ask(awaited, job)
        if name == "u-alone":
            store.batches.deal(job.id, {0: Dealt([1])})
        if name == "u-riding":
            batch = store.batches.open(job.id, **BATCH)
            store.batches.deal(job.id, {batch.id: Dealt([1])})
        if name.endswith(("answered", "handed")):
            store.finish(job.id, [End(1)])
    awaited.handed(jobs["u-handed"].id, [1], 1.0)
    store.create("u-submitted", created=1.0, model=None, deadline=None, source=None)
    assert [(name, wanted) for _, name, wanted in awaited.jobs_like("u-*")] == [
        ("u-empty", False),
        ("u-undecided", False),
        ("u-alone", False),
        ("u-riding", True),
        ("u-answered", True),
        ("u-handed", False),
    ]
