"""Many lines in one statement: all come in, whatever their number."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestra.jobs.ledger.line import Line
from orchestra.jobs.ledger.line_insert import insert_lines
from orchestra.jobs.ledger.store import JobStore


def line(number: int, custom_id: str | None = None) -> Line:
    return Line(number, custom_id or f"id-{number}", "/v1/completions", b"{}", number.to_bytes(16, "big"))


@pytest.mark.parametrize("count", [0, 1, 7, 999, 1000, 1001, 3007])
def test_all_come_in(tmp_path: Path, count: int) -> None:
    store = JobStore(tmp_path / "jobs.db")
    job = store.create("j", created=0.0, model=None, deadline=None, source=None)
    lines = [line(number) for number in range(1, count + 1)]
    with store.database.writing() as db:
        assert insert_lines(db, job.id, lines) == count
    assert store.pending(job.id, 0, max_lines=10_000, max_bytes=1 << 30) == lines
    store.close()


def test_a_name_that_the_job_has_is_passed_over(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs.db")
    jobs = [store.create(name, created=0.0, model=None, deadline=None, source=None).id for name in ("a", "b")]
    lines = [line(number, "x" if number % 100 == 0 else None) for number in range(1, 501)]
    with store.database.writing() as db:
        assert [insert_lines(db, job, lines) for job in jobs] == [496, 496]
        assert insert_lines(db, jobs[0], [line(501, "x"), line(502)]) == 1
    kept = store.pending(jobs[0], 0, max_lines=10_000, max_bytes=1 << 30)
    assert [line.number for line in kept if line.custom_id == "x"] == [100]
    store.close()
