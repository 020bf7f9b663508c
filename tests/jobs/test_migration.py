"""A ledger that an earlier version wrote is taken over, with all that is in it."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from orchestra.jobs.ledger.record import Dealt, End, LineError, OutletTally
from orchestra.jobs.ledger.schema import APPLICATION_ID, MIGRATIONS
from orchestra.jobs.ledger.store import JobStore


@pytest.fixture
def first_format(tmp_path: Path) -> Path:
    """A ledger of the first format: a job half done, one that has ended, and one that is loading."""
    path = tmp_path / "jobs.db"
    with closing(sqlite3.connect(path)) as db:
        for statement in MIGRATIONS[0]:
            db.execute(statement)
        db.executemany(
            "INSERT INTO jobs (id, name, created, state, total, done, failed, input_tokens, output_tokens) "
            "VALUES (?, ?, 1.0, ?, ?, ?, ?, ?, ?)",
            [
                (1, "half", "open", 5, 2, 1, 12, 4),
                (2, "whole", "ended", 1, 1, 0, 1, 1),
                (3, "new", "loading", *[0] * 5),
            ],
        )
        db.executemany(
            "INSERT INTO lines (job, number, custom_id, digest, path, body, state, attempts, ended, status_code, "
            "response, error_code, error_message, input_tokens, output_tokens, route) "
            "VALUES (?, ?, ?, x'00', '/v1/completions', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (1, 1, "a", b"{}", "done", 1, 1, 200, b'{"n":1}', None, None, 5, 2, "p/m"),
                (1, 2, "b", b"{}", "failed", 2, 2, 400, b"{}", "bad", "no", 0, 0, "p/m"),
                (1, 3, "c", b"{}", "done", 1, 3, 200, b'{"n":3}', None, None, 7, 2, "q/m"),
                (1, 4, "d", b'{"n":4}', "pending", 1, None, None, None, None, None, 0, 0, None),
                (1, 5, "e", b'{"n":5}', "pending", 0, None, None, None, None, None, 0, 0, None),
                (2, 1, "a", b"{}", "done", 1, 1, 200, b"{}", None, None, 1, 1, "p/m"),
            ],
        )
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("PRAGMA user_version = 1")
        db.commit()
    return path


def test_keeps_what_there_was(first_format: Path) -> None:
    with closing(JobStore(first_format)) as store:
        half, whole, new = (store.find(name) for name in ("half", "whole", "new"))
        assert half is not None
        assert whole is not None
        assert new is not None
        assert [job.state for job in (half, whole, new)] == ["open", "ended", "loading"]
        assert {job.kind for job in (half, whole, new)} == {"submitted"}
        assert len({job.tag for job in (half, whole, new)}) == 3
        assert all(re.fullmatch(r"[0-9a-f]{12}", job.tag) for job in (half, whole, new))
        tally = store.tally(half.id)
        assert (tally.total, tally.done, tally.failed, tally.usd, tally.unpriced) == (5, 2, 1, 0.0, 2)
        results = store.results(half.id, 0, max_lines=9, max_bytes=99)
        assert [(result.custom_id, result.via, result.usd) for result in results] == [
            ("a", "sync", None),
            ("b", "sync", None),
            ("c", "sync", None),
        ]
        assert store.outlets(half.id) == [
            OutletTally("p/m", "sync", 2, 1, 5, 2, 0.0, 1),
            OutletTally("q/m", "sync", 1, 0, 7, 2, 0.0, 1),
        ]


def test_goes_on_from_there(first_format: Path) -> None:
    with closing(JobStore(first_format)) as store:
        half = store.find("half")
        assert half is not None
        lines = store.pending(half.id, 0, max_lines=9, max_bytes=99, outlet=None)
        assert [(line.number, line.body) for line in lines] == [(4, b'{"n":4}'), (5, b'{"n":5}')]
        assert store.batches.deal(half.id, {0: Dealt([4, 5])}) == 2
        store.finish(half.id, [End(4, route="p/m"), End(5, LineError("x", "y"), route="p/m", usd=0.5)])
        assert (store.find("half") or half).state == "ended"
        assert store.outlets(half.id)[0] == OutletTally("p/m", "sync", 4, 2, 5, 2, 0.5, 2)
    with closing(JobStore(first_format)) as again:  # it is taken over once
        assert (again.find("half") or half).tag == half.tag


def test_a_new_ledger_and_one_taken_over_are_the_same(first_format: Path, tmp_path: Path) -> None:
    schemas = []
    for path in (first_format, tmp_path / "new.db"):
        JobStore(path).close()
        with closing(sqlite3.connect(path)) as db:
            schemas.append(db.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall())
    assert schemas[0] == schemas[1]


def test_what_fails_midway_leaves_it_as_it_was(first_format: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(_dump(first_format))
    broken = (*MIGRATIONS[:-1], (*MIGRATIONS[-1], "NO SQL"))
    monkeypatch.setattr("orchestra.jobs.ledger.database.MIGRATIONS", broken)
    with pytest.raises(Exception, match="syntax error"):
        JobStore(first_format)
    assert list(_dump(first_format)) == before


def _dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return [*db.iterdump(), str(db.execute("PRAGMA user_version").fetchone())]
