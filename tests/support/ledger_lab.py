"""Ledgers with lines in them, and what holds of every one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from orchestra.jobs.ledger.line import Line
from orchestra.jobs.ledger.record import JobRecord
from orchestra.jobs.ledger.store import JobStore

__all__ = ["consistent", "filled"]


def filled(store: JobStore, count: int, name: str = "j") -> JobRecord:
    job = store.create(name, created=1.0, model=None, deadline=None, source=None)
    lines = [Line(n, f"id-{n}", "/v1/completions", b'{"n":%d}' % n, b"%d" % n) for n in range(1, count + 1)]
    store.add(job.id, lines)
    store.seal(job.id)
    return job


def consistent(path: Path) -> None:
    """Check what holds of every ledger at any time."""
    with closing(sqlite3.connect(path)) as db:

        def rows(sql: str) -> list[tuple[Any, ...]]:
            return db.execute(sql).fetchall()

        # no pending line in a batch that is over, or of another job
        assert not rows(
            "SELECT lines.number FROM lines LEFT JOIN batches ON batches.id = outlet "
            "WHERE lines.state = 'pending' AND outlet > 0 AND (batches.id IS NULL OR batches.job <> lines.job "
            "OR batches.state IN ('ended', 'abandoned'))"
        )
        assert rows(
            "SELECT id, total, done, failed, input_tokens, output_tokens, usd, unpriced FROM jobs ORDER BY id"
        ) == rows(
            "SELECT job, count(*), sum(state = 'done'), sum(state = 'failed'), sum(input_tokens), "
            "sum(output_tokens), total(usd), sum(state = 'done' AND usd IS NULL) "
            "FROM lines GROUP BY job ORDER BY job"
        )
        assert rows("SELECT * FROM outlets ORDER BY job, route, via") == rows(
            "SELECT job, ifnull(route, '') AS way, via, count(*), sum(state = 'failed'), sum(input_tokens), "
            "sum(output_tokens), total(usd), sum(state = 'done' AND usd IS NULL) FROM lines "
            "WHERE via IS NOT NULL GROUP BY job, way, via ORDER BY job, way, via"
        )
        assert not rows(
            "SELECT id FROM jobs WHERE (state = 'ended') <> (done + failed = total) AND state <> 'loading'"
        )
        assert not rows(
            "SELECT id FROM batches WHERE lines < riding + released OR released < 0 OR riding <> (SELECT count(*) "
            "FROM lines WHERE lines.job = batches.job AND outlet = batches.id AND lines.state = 'pending')"
        )
        places = rows("SELECT job, count(ended), count(DISTINCT ended), max(ended) FROM lines GROUP BY job")
        assert all(count == distinct == (last or 0) for _, count, distinct, last in places)
