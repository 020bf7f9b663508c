"""Puts new lines into the ledger, many in one statement."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain

from orchestra.jobs.ledger.database import slices
from orchestra.jobs.ledger.line import Line

__all__ = ["insert_lines"]

_COLUMNS = ("job", *Line._fields)


def insert_lines(db: sqlite3.Connection, job: int, lines: Sequence[Line]) -> int:
    """Insert lines that are pending, but for those whose custom_id the job has already. Returns how many."""
    before = db.total_changes
    for some in slices(lines, len(_COLUMNS), db):
        db.execute(_statement(len(some)), tuple(chain.from_iterable((job, *line) for line in some)))
    return db.total_changes - before


def _statement(rows: int) -> str:
    row = f"({', '.join('?' * len(_COLUMNS))})"
    return (
        f"INSERT INTO lines ({', '.join(_COLUMNS)}) VALUES {', '.join([row] * rows)} "
        "ON CONFLICT (job, custom_id) DO NOTHING"
    )
