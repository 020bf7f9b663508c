"""The ledger: what it keeps, what it refuses, and what several processes may do with it at once."""

from __future__ import annotations

import math
import random
import re
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.errors import JobError
from orchestra.jobs.ledger.line import Fault, Line
from orchestra.jobs.ledger.record import Dealt, End, JobRecord, LineError, OutletTally
from orchestra.jobs.ledger.schema import MIGRATIONS
from orchestra.jobs.ledger.store import JobStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    store = JobStore(tmp_path / "deep" / "folder" / "jobs.db")
    yield store
    store.close()


def create(store: JobStore, name: str = "j") -> JobRecord:
    return store.create(name, created=1.0, model=None, deadline=None, source=None)


def line(number: int, custom_id: str | None = None, body: bytes = b"{}") -> Line:
    return Line(number, custom_id or f"id-{number}", "/v1/completions", body, number.to_bytes(4, "big"))


def filled(store: JobStore, count: int) -> JobRecord:
    job = create(store)
    store.add(job.id, [line(number) for number in range(1, count + 1)])
    store.seal(job.id)
    return job


def open_batch(store: JobStore, job: JobRecord) -> int:
    return store.batches.open(
        job.id,
        provider="openai",
        account="f00d",
        route="openai/m",
        model="m",
        path="/v1/completions",
        headers=(),
        window=86400.0,
        now=1.0,
    ).id


def recounted(path: Path) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT state, count(*) FROM lines GROUP BY state ORDER BY state").fetchall()


def test_is_for_its_owner_only(store: JobStore) -> None:
    create(store)
    files = list(store.path.parent.iterdir())
    assert {file.name for file in files} >= {"jobs.db", "jobs.db-wal"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


def test_survives_reopening(store: JobStore) -> None:
    job = filled(store, 3)
    store.finish(
        job.id, [End(2, status_code=200, request_id="r", response=b'{"a":1}', input_tokens=5, route="p/m")]
    )
    store.close()
    store.close()
    with closing(JobStore(store.path)) as again:
        assert again.find("j") == again.jobs()[0]
        assert again.find("other") is None
        assert [entry.number for entry in again.pending(job.id, 0, max_lines=9, max_bytes=99)] == [1, 3]
        (result,) = again.results(job.id, 0, max_lines=9, max_bytes=99)
        assert (result.custom_id, result.body, result.request_id, result.route) == ("id-2", {"a": 1}, "r", "p/m")
        assert (result.ok, result.error, result.attempts, result.ended) == (True, None, 1, 1)
        tally = again.tally(job.id)
        assert (tally.total, tally.done, tally.failed, tally.pending, tally.input_tokens) == (3, 1, 0, 2, 5)


def test_names_are_unique(store: JobStore) -> None:
    create(store)
    with pytest.raises(JobError, match=r"jobs\.db"):
        create(store)


def test_a_repeated_custom_id_is_found_through_the_ledger(store: JobStore) -> None:
    job = create(store)
    assert store.add(job.id, [line(1, "a"), line(2, "b"), line(3, "a")]) == [
        Fault(3, "custom_id 'a' is that of line 1 too; each must be unique", line(3).digest)
    ]
    (twice,) = store.add(job.id, [line(4, "c"), line(5, "b")])
    assert (twice.number, "line 2" in twice.message) == (5, True)
    store.seal(job.id)
    tally = store.tally(job.id)
    assert (tally.total, tally.failed) == (5, 2)
    assert [r.error_code for r in store.results(job.id, 0, max_lines=9, max_bytes=9)] == ["invalid_line"] * 2


def test_a_faulty_line_gets_a_name_that_no_other_has(store: JobStore) -> None:
    job = create(store)
    store.add(job.id, [line(1, "line-3"), line(2, "line-3-invalid"), Fault(3, "wrong", b"x")])
    (result,) = store.results(job.id, 0, max_lines=9, max_bytes=9)
    assert (result.custom_id, result.error) == ("line-3-invalid-invalid", LineError("invalid_line", "wrong"))


def test_a_job_ends_with_its_last_line(store: JobStore) -> None:
    job = create(store)
    store.add(job.id, [line(1)])
    store.finish(job.id, [End(1, status_code=200)])
    assert store.jobs()[0].state == "loading"
    store.add(job.id, [line(2)])
    store.seal(job.id)
    assert store.jobs()[0].state == "open"
    store.finish(job.id, [End(2, LineError("x", "y"))])
    assert store.jobs()[0].state == "ended"
    store.seal(job.id)
    assert store.jobs()[0].state == "ended"


def test_counts_say_how_many_lines_there_will_be(store: JobStore) -> None:
    job = store.create("j", created=1.0, model=None, deadline=None, source=None, expected=3)
    assert store.tally(job.id).total == 3
    store.add(job.id, [line(1), line(2)])
    store.finish(job.id, [End(1)])
    tally = store.tally(job.id)
    assert (tally.total, tally.done, tally.pending, tally.whole) == (3, 1, 2, False)
    store.add(job.id, [line(3), line(4)])
    assert store.tally(job.id).total == 4, "what is there counts"
    other = store.create("k", created=1.0, model=None, deadline=None, source=None, expected=9)
    store.add(other.id, [line(1)])
    store.seal(other.id)
    assert (store.tally(other.id).total, store.tally(other.id).whole) == (1, True)


def test_counts_are_there_while_somebody_reads_a_page(store: JobStore) -> None:
    job = filled(store, 3)
    with store.database.reading() as db:
        assert db.execute("SELECT number FROM lines").fetchone() == (1,)
        assert store.tally(job.id).total == 3
        store.finish(job.id, [End(1)])
        assert store.tally(job.id).done == 1


def test_the_first_end_of_a_line_stands(store: JobStore) -> None:
    job = filled(store, 2)
    store.finish(job.id, [End(1, status_code=200, input_tokens=5)])
    store.finish(job.id, [End(1, LineError("late", ""), input_tokens=5), End(2, status_code=200)])
    first, second = store.results(job.id, 0, max_lines=9, max_bytes=9)
    assert (first.ok, first.ended, second.ended) == (True, 1, 2)
    assert store.tally(job.id).input_tokens == 5


def test_fail_rest_ends_what_has_no_end(store: JobStore) -> None:
    job = filled(store, 2500)
    store.finish(job.id, [End(7, status_code=200)])
    assert store.fail_rest(job.id, LineError("expired", "too late")) == 2499
    assert store.jobs()[0].state == "ended"
    assert recounted(store.path) == [("done", 1), ("failed", 2499)]


def numbers(store: JobStore, job: JobRecord, after: int, outlet: int | Literal["any"] | None) -> list[int]:
    lines = store.pending(job.id, after, max_lines=4, max_bytes=1 << 20, outlet=outlet)
    return [line.number for line in lines]


def test_pending_lines_are_found_by_where_they_go(store: JobStore) -> None:
    job = filled(store, 12)
    first, second = (open_batch(store, job) for _ in range(2))
    store.batches.deal(job.id, {0: Dealt([2, 5, 11]), first: Dealt([1, 3]), second: Dealt([4, 7, 12])})
    store.finish(job.id, [End(3), End(5), End(6)])
    assert numbers(store, job, 0, None) == [8, 9, 10]
    assert numbers(store, job, 8, None) == [9, 10]
    assert numbers(store, job, 0, 0) == [2, 11]
    assert numbers(store, job, 0, first) == [1]
    assert numbers(store, job, 4, second) == [7, 12]
    assert numbers(store, job, 0, "any") == [1, 2, 4, 7]
    assert numbers(store, job, 7, "any") == [8, 9, 10, 11]
    assert numbers(store, job, 11, "any") == [12]


def test_fail_rest_reaches_lines_in_batches(store: JobStore) -> None:
    job = filled(store, 10)
    batch = open_batch(store, job)
    store.batches.deal(job.id, {batch: Dealt([1, 2, 3, 4]), 0: Dealt([5])})
    store.finish(job.id, [End(1)])
    assert store.fail_rest(job.id, LineError("cancelled", "by hand")) == 9
    assert (store.jobs()[0].state, store.batches.pending(batch), store.tally(job.id).failed) == ("ended", 0, 9)


def test_finish_says_how_many_took_effect(store: JobStore) -> None:
    job = filled(store, 3)
    assert store.finish(job.id, [End(1, usd=1.0), End(1, usd=2.0), End(9), End(2)]) == 2
    assert store.finish(job.id, [End(2), End(3)]) == 1
    assert store.finish(job.id, []) == 0
    tally = store.tally(job.id)
    assert (tally.done, tally.usd, tally.unpriced) == (3, 1.0, 2)
    store.discard(job.id)
    with pytest.raises(JobError, match="removed"):
        store.finish(job.id, [End(1)])


def test_says_what_each_outlet_did(store: JobStore) -> None:
    job = create(store)
    store.add(job.id, [*(line(number) for number in range(1, 8)), Fault(8, "wrong", b"x")])
    store.finish(
        job.id,
        [
            End(1, input_tokens=5, output_tokens=2, route="p/m", via="batch", usd=0.25),
            End(2, LineError("x", "y"), input_tokens=1, route="p/m", via="batch", usd=0.5),
            End(3, input_tokens=7, route="p/m", via="batch"),
            End(4, route="p/m", usd=1.0),
            End(5, LineError("x", "y")),
            End(6, route="local/m", via="local", usd=0.0),
        ],
    )
    store.fail_rest(job.id, LineError("expired", "too late"))
    assert store.outlets(job.id) == [
        OutletTally(None, "sync", 1, 1, 0, 0, 0.0, 0),
        OutletTally("local/m", "local", 1, 0, 0, 0, 0.0, 0),
        OutletTally("p/m", "batch", 3, 1, 13, 2, 0.75, 1),
        OutletTally("p/m", "sync", 1, 0, 0, 0, 1.0, 0),
    ]
    tally = store.tally(job.id)
    assert (tally.done, tally.failed, tally.usd, tally.unpriced) == (4, 4, 1.75, 1)
    results = store.results(job.id, 0, max_lines=9, max_bytes=99)
    assert [result.via for result in results] == ["batch"] * 3 + ["sync"] * 2 + ["local", None, None]
    assert [result.usd for result in results] == [0.25, 0.5, None, 1.0, None, 0.0, None, None]


@pytest.mark.parametrize("usd", [math.nan, math.inf, -1.0])
def test_what_is_no_sum_of_money_is_unknown(store: JobStore, usd: float) -> None:
    job = filled(store, 1)
    store.finish(job.id, [End(1, usd=usd)])
    tally = store.tally(job.id)
    assert (tally.usd, tally.unpriced) == (0.0, 1)


def test_jobs_have_a_tag_and_a_kind(store: JobStore) -> None:
    one = create(store)
    two = store.create("two", created=2.0, model=None, deadline=None, source=None, kind="awaited")
    assert (one.kind, two.kind) == ("submitted", "awaited")
    assert all(re.fullmatch(r"[0-9a-f]{12}", job.tag) for job in (one, two))
    assert one.tag != two.tag
    assert store.find("two") == two


@settings(max_examples=30, deadline=None)
@given(
    chunks=st.lists(st.lists(st.booleans(), min_size=1, max_size=5), max_size=5),
    ends=st.lists(st.tuples(st.integers(1, 25), st.booleans()), max_size=30),
)
def test_counts_are_those_of_the_lines(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[list[bool]], ends: list[tuple[int, bool]]
) -> None:
    with closing(JobStore(tmp_path_factory.mktemp("ledger") / "jobs.db")) as store:
        job = create(store)
        number = 0
        for chunk in chunks:
            entries: list[Line | Fault] = []
            for good in chunk:
                number += 1
                entries.append(line(number) if good else Fault(number, "wrong", b"x"))
            store.add(job.id, entries)
        store.seal(job.id)
        for place, good in ends:
            store.finish(job.id, [End(place, None if good else LineError("x", "y"))])
        tally, counts = store.tally(job.id), dict(recounted(store.path))
        assert tally.total == number == sum(counts.values())
        assert (tally.done, tally.failed) == (counts.get("done", 0), counts.get("failed", 0))
        assert (store.jobs()[0].state == "ended") == (tally.pending == 0)
        completed = store.completed(job.id, 0, max_lines=99, max_bytes=99)
        assert [result.ended for result in completed] == list(range(1, tally.ended + 1))


@pytest.mark.parametrize(
    ("numbers", "after", "upto", "differs"),
    [
        ([1, 2, 3], 0, 3, None),
        ([2, 3], 1, 3, None),
        ([], 3, 9, None),
        ([1, 3], 0, 3, 2),
        ([1, 2], 0, 3, 3),
        ([1, 2, 3, 4], 0, 4, 4),
    ],
)
def test_first_difference(store: JobStore, numbers: list[int], after: int, upto: int, differs: int | None) -> None:
    job = filled(store, 3)
    given_lines = [line(number) for number in numbers]
    assert store.first_difference(job.id, given_lines, after=after, upto=upto) == differs
    changed = Line(2, "id-2", "/v1/completions", b"{}", b"other")
    assert store.first_difference(job.id, [line(1), changed, line(3)], after=0, upto=3) == 2


def test_pages_are_bounded_in_bytes(store: JobStore) -> None:
    job = create(store)
    store.add(job.id, [line(number, body=b"x" * 100) for number in range(1, 11)])
    assert len(store.pending(job.id, 0, max_lines=10, max_bytes=250)) == 3
    assert len(store.pending(job.id, 3, max_lines=2, max_bytes=250)) == 2
    assert len(store.pending(job.id, 9, max_lines=2, max_bytes=0)) == 1


def test_discarding_forgets_the_lines(store: JobStore) -> None:
    job = filled(store, 3)
    store.discard(job.id)
    assert (store.find("j"), recounted(store.path)) == (None, [])
    with pytest.raises(JobError, match="removed"):
        store.tally(job.id)


def test_attempts_are_counted(store: JobStore) -> None:
    job = filled(store, 1)
    assert [store.count_attempt(job.id, 1), store.count_attempt(job.id, 1)] == [1, 2]
    store.finish(job.id, [End(1)])
    assert store.results(job.id, 0, max_lines=1, max_bytes=1)[0].attempts == 3


def test_refuses_what_is_no_store(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.write_bytes(b"these are no jobs, " * 1000)
    with pytest.raises(JobError, match=r"jobs\.db: not a job store .*\[bulk\] store"):
        JobStore(path)
    assert path.read_bytes() == b"these are no jobs, " * 1000


def test_refuses_another_programs_database(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE theirs (x)")
    with pytest.raises(JobError, match="another program"):
        JobStore(path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]


def test_refuses_a_newer_format(store: JobStore) -> None:
    store.close()
    with closing(sqlite3.connect(store.path)) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(JobError, match=r"newer version .*upgrade orchestra"):
        JobStore(store.path)


@pytest.mark.parametrize("damaged_from", [4096, 1 << 17])
def test_refuses_a_damaged_store(store: JobStore, damaged_from: int) -> None:
    filled(store, 5000)
    store.close()
    raw = bytearray(store.path.read_bytes())
    raw[damaged_from:] = random.Random(1).randbytes(len(raw) - damaged_from)
    store.path.write_bytes(raw)
    with pytest.raises(JobError, match="damaged"), closing(JobStore(store.path)) as again:
        again.fail_rest(1, LineError("x", "y"))


def test_tells_of_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JobError, match=r"cannot be made .*\[bulk\] store"):
        JobStore(tmp_path / "file" / "jobs.db")


def test_can_be_read_while_it_is_written(store: JobStore) -> None:
    job = filled(store, 3)
    with closing(JobStore(store.path)) as reader, store.database.writing() as db:
        db.execute("UPDATE jobs SET done = 3")
        assert reader.tally(job.id).done == 0


WRITER = """
import sys
from orchestra.jobs.ledger.record import End
from orchestra.jobs.ledger.store import JobStore
store, start = JobStore(sys.argv[1]), int(sys.argv[2])
job = store.find("j")
for number in range(start, start + 200):
    store.finish(job.id, [End(number, status_code=200)])
"""


def test_compacting_says_where_a_reader_keeps_what_was_deleted(store: JobStore) -> None:
    job = create(store)
    store.add(job.id, [line(1)])
    store.database._writer.execute("PRAGMA busy_timeout = 1")
    with closing(sqlite3.connect(store.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM lines").fetchone()
        store.discard(job.id)
        assert not store.database.compact()
        reader.execute("COMMIT")
    assert store.database.compact()


def test_two_processes_may_write_at_once(store: JobStore) -> None:
    job = filled(store, 400)
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, store.path, str(start)]) for start in (1, 201)]
    assert [writer.wait(timeout=40) for writer in writers] == [0, 0]
    assert recounted(store.path) == [("done", 400)]
    assert (store.tally(job.id).done, store.jobs()[0].state) == (400, "ended")
    completed = store.completed(job.id, 0, max_lines=999, max_bytes=999)
    assert [result.ended for result in completed] == list(range(1, 401))


def test_goes_on_after_a_disk_that_was_full(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs.db")
    job = store.create("j", created=0.0, model=None, deadline=None, source=None)
    store.database._writer.execute("PRAGMA max_page_count = 30")
    lines = [Line(n, f"id-{n}", "/v1/completions", b"x" * 4000, b"d") for n in range(1, 200)]
    with pytest.raises(JobError, match="no room left"):
        store.add(job.id, lines)
    assert store.tally(job.id).total == 0
    store.database._writer.execute("PRAGMA max_page_count = 100000")
    store.add(job.id, lines)
    assert store.tally(job.id).total == len(lines)
    store.close()


def test_a_damaged_schema_is_told(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    JobStore(path).close()
    sound = path.read_bytes()
    damaged = sound.replace(b"CREATE TABLE jobs", b"CREATE T\xcb\x28LE jobs")
    assert damaged != sound
    path.write_bytes(damaged)
    with pytest.raises(JobError, match="damaged"):
        JobStore(path)


def test_a_new_file_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    """SQLite refuses the switch to write-ahead mode at once where two make it, whatever its timeout says."""
    for turn in range(10):
        path = tmp_path / f"{turn}.db"
        gate = threading.Barrier(8)

        def opened(path: Path = path, gate: threading.Barrier = gate) -> JobStore:
            gate.wait()
            return JobStore(path)

        with ThreadPoolExecutor(8) as pool:
            stores = [future.result() for future in [pool.submit(opened) for _ in range(8)]]
        for one in stores:
            assert one.jobs() == []
            one.close()
