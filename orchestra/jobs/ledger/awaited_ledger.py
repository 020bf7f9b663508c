"""The ledger's part about awaited jobs, whose lines are the calls that a program waits for.

A call is known by its request and by how often the program has asked the same before, so a program that runs again
finds the answers that it paid for, and equal requests are never made one.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from orchestra.errors import JobError
from orchestra.jobs.ledger.database import Database, columns
from orchestra.jobs.ledger.record import AwaitedLine, Result

__all__ = ["AwaitedLedger"]

_RESULT = columns(Result)


class AwaitedLedger:
    """Lines that come one by one, reached as `JobStore.awaited`.

    Methods block for a short time and may be called from any thread. Each raises JobError as those of `JobStore`.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def await_line(self, job: int, digest: bytes, path: str, body: bytes, nth: int | None = None) -> AwaitedLine:
        """Return the ``nth`` asking (from 1) of the request that ``digest`` identifies, added where it is missing.

        Without ``nth`` it is one more asking than there are.
        """
        with self._database.writing() as db:
            if nth is None:
                (nth,) = db.execute(
                    "SELECT ifnull(max(nth), 0) + 1 FROM lines WHERE job = ? AND digest = ? AND nth IS NOT NULL",
                    (job, digest),
                ).fetchone()
                assert nth is not None
            elif (found := _find(db, "nth = ?", job, digest, nth)) is not None:
                return found
            changed = db.execute(
                "UPDATE jobs SET last_awaited = last_awaited + 1, total = total + 1, state = 'open' "
                "WHERE id = ? AND kind = 'awaited'",
                (job,),
            ).rowcount
            if not changed:
                raise JobError(f"{self._database.path}: the awaited job was removed from the store")
            (number,) = db.execute("SELECT last_awaited FROM jobs WHERE id = ?", (job,)).fetchone()
            db.execute(
                "INSERT INTO lines (job, number, custom_id, digest, path, body, nth) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (job, number, f"{digest.hex()}-{nth}", digest, path, body, nth),
            )
        return AwaitedLine(number, nth, None)

    def next_unhanded(self, job: int, digest: bytes, *, after: int = 0) -> AwaitedLine | None:
        """Return the first asking of the request after the ``after``-th whose answer nobody was given, if any."""
        with self._database.reading() as db:
            return _find(db, "nth > ? AND handed IS NULL", job, digest, after)

    def unhanded_of(self, digest: bytes, jobs: Sequence[int]) -> list[tuple[int, int]]:
        """Return where the request was asked before and nobody was given the answer: the job, and which asking."""
        with self._database.reading() as db:
            return db.execute(
                "SELECT job, nth FROM lines WHERE job IN (SELECT value FROM json_each(?)) AND digest = ? "
                "AND nth IS NOT NULL AND handed IS NULL ORDER BY job, nth",
                (json.dumps(list(jobs)), digest),
            ).fetchall()

    def jobs_like(self, pattern: str) -> list[tuple[int, str, bool]]:
        """Return the id and the name of each awaited job whose name matches (a GLOB of SQLite), the oldest first,
        and whether it holds anything worth having: an answer that nobody was given, or a line in a batch."""
        with self._database.reading() as db:
            rows = db.execute(
                "SELECT id, name, EXISTS (SELECT 1 FROM lines WHERE job = jobs.id AND nth IS NOT NULL "
                "AND handed IS NULL AND (ended IS NOT NULL OR outlet > 0)) "
                "FROM jobs WHERE kind = 'awaited' AND name GLOB ? ORDER BY id",
                (pattern,),
            ).fetchall()
        return [(id, name, bool(is_wanted)) for id, name, is_wanted in rows]

    def has_unhanded(self, job: int) -> bool:
        """Return whether the job has lines on their way, or answers that nobody was given."""
        with self._database.reading() as db:
            (left,) = db.execute(
                "SELECT EXISTS (SELECT 1 FROM lines WHERE job = ? AND nth IS NOT NULL AND handed IS NULL)", (job,)
            ).fetchone()
        return bool(left)

    def handed(self, job: int, numbers: Sequence[int], now: float) -> None:
        """Record that these lines' answers were given to their callers. What was recorded before stays."""
        with self._database.writing() as db:
            db.execute(
                # the plus keeps SQLite from going through all that have ended
                "UPDATE lines SET handed = ? WHERE job = ? AND nth IS NOT NULL AND +ended IS NOT NULL "
                "AND handed IS NULL AND number IN (SELECT value FROM json_each(?))",
                (now, job, json.dumps(list(numbers))),
            )

    def withdraw(self, job: int, number: int) -> bool:
        """Forget a line that nobody waits for. Returns False where it has ended, is to be sent by itself, or rides
        in a batch that is on its way."""
        with self._database.writing() as db:
            (outlet,) = db.execute(
                "SELECT outlet FROM lines WHERE job = ? AND number = ?", (job, number)
            ).fetchone() or (None,)
            gone = db.execute(
                "DELETE FROM lines WHERE job = ? AND number = ? AND nth IS NOT NULL AND state = 'pending' "
                "AND (outlet IS NULL OR outlet IN (SELECT id FROM batches WHERE state = 'open'))",
                (job, number),
            ).rowcount
            if gone:
                db.execute("UPDATE batches SET lines = lines - 1, riding = riding - 1 WHERE id = ?", (outlet,))
                _count_out(db, job, gone)
        return bool(gone)

    def clear(self, job: int) -> int:
        """Forget the lines that ride nowhere: nobody waits for those any more. Returns how many."""
        with self._database.writing() as db:
            gone = db.execute(
                "DELETE FROM lines WHERE job = ? AND nth IS NOT NULL AND state = 'pending' "
                "AND ifnull(outlet, 0) = 0",
                (job,),
            ).rowcount
            _count_out(db, job, gone)
        return gone

    def forget(self, job: int) -> int:
        """Forget all lines of the job that have no end; none may ride in a batch. Returns how many."""
        with self._database.writing() as db:
            gone = db.execute(
                "DELETE FROM lines WHERE job = ? AND nth IS NOT NULL AND state = 'pending'", (job,)
            ).rowcount
            db.execute("UPDATE jobs SET total = total - ?, state = 'ended' WHERE id = ?", (gone, job))
        return gone


def _count_out(db: sqlite3.Connection, job: int, gone: int) -> None:
    db.execute(
        "UPDATE jobs SET total = total - :gone, state = iif(done + failed = total - :gone, 'ended', state) "
        "WHERE id = :job",
        {"job": job, "gone": gone},
    )


def _find(db: sqlite3.Connection, which: str, job: int, digest: bytes, nth: int) -> AwaitedLine | None:
    row = db.execute(
        f"SELECT nth, {_RESULT} FROM lines WHERE job = ? AND digest = ? AND nth IS NOT NULL AND {which} "
        "ORDER BY nth LIMIT 1",
        (job, digest, nth),
    ).fetchone()
    if row is None:
        return None
    nth, *rest = row
    result = Result(*rest)
    return AwaitedLine(result.number, nth, result if result.ended is not None else None)
