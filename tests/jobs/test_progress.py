"""What progress tells, and that it is the ledger's."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestra.jobs import Job, JobStore, OpenBatch, OutletTally, Progress, format_usd
from orchestra.jobs.ledger.line import Line
from orchestra.jobs.ledger.record import BatchRecord, Dealt, End, JobRecord, LineError
from orchestra.jobs.progress.progress import MachineCost


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    with closing(JobStore(tmp_path / "jobs.db")) as store:
        yield store


def filled(store: JobStore, count: int, name: str = "j") -> JobRecord:
    job = store.create(name, created=1.0, model=None, deadline=None, source=None)
    store.add(job.id, [Line(n, f"c{n}", "/v1/chat/completions", b"{}", b"d") for n in range(1, count + 1)])
    store.seal(job.id)
    return store.find(name) or job


def submitted(store: JobStore, job: JobRecord, numbers: range) -> BatchRecord:
    ledger = store.batches
    record = ledger.open(
        job.id,
        provider="p",
        account="a",
        route="p/m",
        model="m",
        path="/x",
        headers=(),
        window=1.0,
        now=time.time(),
    )
    ledger.deal(job.id, {record.id: Dealt([*numbers])})
    ledger.seal(record.id)
    ledger.creating(record.id, time.time())
    ledger.submitted(record.id, f"batch_{record.id}", "in_progress", None, time.time())
    return record


def test_counts_are_the_ledgers(store: JobStore) -> None:
    """A provider that claims to have finished all has answered nothing yet."""
    job = filled(store, 20)
    first = submitted(store, job, range(1, 11))
    submitted(store, job, range(11, 16))
    store.batches.seen(first.id, "finalizing", 10)
    store.finish(job.id, [End(n, route="p/m", via="batch", usd=0.5, input_tokens=3) for n in (1, 2)])
    store.finish(job.id, [End(16, route="p/m", usd=1.0), End(17, LineError("bad", ""), route="q/m")])
    store.batches.release(first.id, [3, 4], outlet=0)
    progress = Job(store, job).progress()
    assert (progress.total, progress.done, progress.failed, progress.pending) == (20, 3, 1, 16)
    assert [(batch.batch_id, batch.lines, batch.riding) for batch in progress.batches] == [
        ("batch_1", 10, 6),
        ("batch_2", 5, 5),
    ]
    assert (progress.riding, progress.riding_by_state) == (11, {"submitted": 11})
    assert (progress.usd, progress.unpriced, progress.left_batches) == (2.0, 0, 2)
    assert progress.deferred == pytest.approx(2 / 3)
    assert {(one.route, one.via): one.lines for one in progress.outlets} == {
        ("p/m", "batch"): 2,
        ("p/m", "sync"): 1,
        ("q/m", "sync"): 1,
    }
    assert progress.seconds_left is None

    store.batches.end(first.id, "expired", time.time())
    progress = Job(store, job).progress()
    assert (progress.riding, len(progress.batches), progress.left_batches) == (5, 1, 8)


def test_the_end_of_riding_lines_is_known_from_earlier_batches(store: JobStore) -> None:
    job = filled(store, 6)
    for at in range(1, 4):
        record = submitted(store, job, range(at, at + 1))
        store.finish(job.id, [End(at, route="p/m", via="batch")])
        store.batches.end(record.id, "completed", time.time() + 600)
    submitted(store, job, range(4, 7))
    progress = Job(store, job).progress()
    (batch,) = progress.batches
    assert batch.expected == pytest.approx(time.time() + 600, abs=5)
    assert progress.seconds_left == pytest.approx(600, abs=5)
    assert "about 9m5" in str(progress) or "about 10m00s" in str(progress)


def test_it_is_cheap_for_a_large_job(store: JobStore) -> None:
    def cost(lines: int) -> float:
        """Return the least processor seconds of several looks at a job of so many lines in six batches."""
        job = filled(store, lines, f"{lines} lines")
        for at in range(1, lines + 1, lines // 6):
            submitted(store, job, range(at, at + lines // 6))
        held, took = Job(store, job), []
        for _ in range(10):
            began = time.process_time()
            for _ in range(10):
                assert held.progress().riding == lines
            took.append(time.process_time() - began)
        return min(took)

    assert cost(60_000) < 10 * cost(600), "to count the lines would take a hundred times as long"


def test_what_is_told_comes_back() -> None:
    batch = OpenBatch(1, "p/m", "p", "a", "submitted", "in_progress", "b", 9, 5, 1.0, next_look=2.0)
    whole = Progress(
        9,
        4,
        0,
        1,
        1,
        whole=True,
        outlets=(OutletTally("p/m", "batch", 4, 0, 1, 1, 0.5, 0),),
        batches=(batch,),
        usd_per_million={"local/x": 0.5},
    )
    plain = json.loads(json.dumps(whole.plain()))
    assert plain == whole.plain()
    assert Progress.from_plain(plain) == whole
    assert Progress.from_plain({**plain, "of": "a later version"}) == whole
    assert Progress.from_plain(Progress(1, 0, 0, 0, 0, whole=True).plain()).batches == ()
    with pytest.raises(TypeError):
        Progress.from_plain({"total": 3})


def test_in_words() -> None:
    batch = OpenBatch(1, "p/m", "p", "a", "submitted", None, "b", 9, 5, 1.0)
    progress = Progress(9, 4, 1, 1, 1, whole=True, batches=(batch, batch), usd=0.0125, seconds_left=3.0, rate=2.0)
    assert str(progress) == (
        "5 of 9 lines, 1 failed, 10 in 2 batches, 2.0 lines/s, $0.013 so far, about 3.0s left"
    )
    assert Progress(9, 0, 9, 0, 0, whole=True).deferred is None


@pytest.mark.parametrize(
    ("usd", "told"),
    [
        (0.0, "$0.00"),
        (12.3, "$12.30"),
        (1234.5, "$1,234.50"),
        (0.5, "$0.50"),
        (0.00042, "$0.00042"),
        (1e-9, "less than $0.000001"),
        (0.999, "$1.00"),
    ],
)
def test_sums_of_money(usd: float, told: str) -> None:
    assert format_usd(usd) == told


def test_what_a_million_tokens_cost_on_a_machine() -> None:
    def outlets(tokens: int) -> list[OutletTally]:
        return [
            OutletTally("local/x", "local", 1, 0, tokens, tokens, 0.0, 0),
            OutletTally("local/y", "local", 1, 0, tokens, tokens, 0.0, 0),
            OutletTally("p/m", "sync", 1, 0, tokens, tokens, 0.0, 0),
        ]

    cost = MachineCost({"local/x": 3.6}, 100.0, outlets(1000))
    assert cost.look(110.0, outlets(1000)) == {}, "what was there before is of an earlier run"
    assert cost.look(200.0, outlets(51_000)) == {"local/x": pytest.approx(1.0)}  # 0.1 $ for 100,000 tokens
    assert cost.look(900.0, outlets(51_000)) == {"local/x": pytest.approx(1.0)}, "it stands still once it is over"
