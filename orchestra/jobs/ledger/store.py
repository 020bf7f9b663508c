"""The ledger of jobs: a SQLite file that says of every line what it asks and how it ended.

Nothing is sent that is not in the ledger, and nothing is reported that is not in it, so that a process killed at
any instant leaves exactly the lines that have no end yet. It holds requests and answers; keys and headers never
enter.

Many processes may read one ledger while others write it. Every write is one short transaction.
"""

from __future__ import annotations

import heapq
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

from orchestra.errors import JobError
from orchestra.jobs.ledger.awaited_ledger import AwaitedLedger
from orchestra.jobs.ledger.batch_ledger import BatchLedger
from orchestra.jobs.ledger.database import Database, columns, page, storable
from orchestra.jobs.ledger.line import Fault, Line, named_twice
from orchestra.jobs.ledger.line_ends import write_ends
from orchestra.jobs.ledger.line_insert import insert_lines
from orchestra.jobs.ledger.line_retry import FAILED_ANEW, undo_failures
from orchestra.jobs.ledger.record import End, JobKind, JobRecord, LineError, OutletTally, Result, Tally

__all__ = ["JobStore"]

_CHUNK = 5000

_JOB, _LINE, _RESULT = columns(JobRecord), columns(Line), columns(Result)


class JobStore:
    """The ledger in the file at ``path``, which is made, for its owner's eyes only, where it is missing.

    ``batches`` is its part about batches, ``awaited`` that about the calls of awaited jobs.

    Methods block for a short time and may be called from any thread. Each raises JobError where the file cannot
    serve: not a database, damaged, from a newer version, not writable, no room.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.database = Database(path)
        self.batches = BatchLedger(self.database)
        self.awaited = AwaitedLedger(self.database)

    @property
    def path(self) -> Path:
        return self.database.path

    def close(self) -> None:
        """Close the file. May be called again."""
        self.database.close()

    # jobs

    def create(
        self,
        name: str,
        *,
        created: float,
        model: str | None,
        deadline: float | None,
        source: bytes | None,
        kind: JobKind = "submitted",
        expected: int = 0,
    ) -> JobRecord:
        """Record a new job that has no lines yet. ``created`` and ``deadline`` are unix times.

        ``expected`` is how many lines there will be, where that is known: the counts say so from the start.
        """
        with self.database.writing() as db:
            id = db.execute(
                "INSERT INTO jobs (name, created, model, deadline, source, kind, expected, tag) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (name, created, model, deadline, source, kind, expected, secrets.token_hex(6)),
            ).lastrowid
            row = db.execute(f"SELECT {_JOB} FROM jobs WHERE id = ?", (id,)).fetchone()
        return JobRecord(*row)

    def find(self, name: str) -> JobRecord | None:
        """Return the job of that name."""
        with self.database.reading() as db:
            row = db.execute(f"SELECT {_JOB} FROM jobs WHERE name = ?", (name,)).fetchone()
        return None if row is None else JobRecord(*row)

    def jobs(self) -> list[JobRecord]:
        """Return all jobs, newest first."""
        with self.database.reading() as db:
            rows = db.execute(f"SELECT {_JOB} FROM jobs ORDER BY created DESC, id DESC").fetchall()
        return [JobRecord(*row) for row in rows]

    def discard(self, job: int) -> None:
        """Forget a job, its lines and its batches."""
        with self.database.writing() as db:
            db.execute("DELETE FROM jobs WHERE id = ?", (job,))

    def seal(self, job: int) -> None:
        """Record that the last line of the job has been added."""
        with self.database.writing() as db:
            db.execute(
                "UPDATE jobs SET state = iif(done + failed = total, 'ended', 'open') "
                "WHERE id = ? AND state = 'loading'",
                (job,),
            )

    def stop(self, job: int, reason: str | None) -> None:
        """Record why the job stands still; None when it goes on."""
        with self.database.writing() as db:
            db.execute("UPDATE jobs SET stopped = ? WHERE id = ?", (storable(reason), job))

    def tally(self, job: int) -> Tally:
        """Return the counts of the job's lines and tokens."""
        with self.database.reading() as db:
            row = db.execute(
                "SELECT iif(state = 'loading', max(total, expected), total), done, failed, input_tokens, "
                "output_tokens, state <> 'loading', usd, unpriced FROM jobs WHERE id = ?",
                (job,),
            ).fetchone()
        if row is None:
            raise JobError(self._removed())
        total, done, failed, input_tokens, output_tokens, whole, usd, unpriced = row
        return Tally(total, done, failed, input_tokens, output_tokens, bool(whole), usd, unpriced)

    def outlets(self, job: int) -> list[OutletTally]:
        """Return what each way of answering did for the job, in the order of their names.

        Lines that went no way (invalid ones, those that nobody answered in time) are in none.
        """
        with self.database.reading() as db:
            rows = db.execute(
                "SELECT nullif(route, ''), via, lines, failed, input_tokens, output_tokens, usd, unpriced "
                "FROM outlets WHERE job = ? ORDER BY route, via",
                (job,),
            ).fetchall()
        return [OutletTally(*row) for row in rows]

    def _removed(self) -> str:
        return f"{self.path}: the job was removed from the store"

    def models(self, job: int, *, with_failed: bool = False) -> list[str]:
        """Return the models that lines without an end ask for, and failed ones where that is wanted."""
        states = "('pending', 'failed')" if with_failed else "('pending')"
        with self.database.reading() as db:
            rows = db.execute(
                "SELECT DISTINCT json_extract(CAST(body AS TEXT), '$.model') AS model FROM lines "
                f"WHERE job = ? AND state IN {states} AND body IS NOT NULL ORDER BY model",
                (job,),
            ).fetchall()
        return [model for (model,) in rows if isinstance(model, str)]

    # lines going in

    def has_asked(self, job: int) -> bool:
        """Return whether any of the job's lines has ended otherwise than by its own faults, or rode in a batch."""
        with self.database.reading() as db:
            (asked,) = db.execute(
                "SELECT EXISTS (SELECT 1 FROM lines WHERE job = ?1 AND ended IS NOT NULL AND attempts > 0) "
                "OR EXISTS (SELECT 1 FROM batches WHERE job = ?1)",
                (job,),
            ).fetchone()
        return bool(asked)

    def last_number(self, job: int) -> int:
        """Return the number of the job's last line in the ledger, or 0."""
        with self.database.reading() as db:
            (number,) = db.execute("SELECT max(number) FROM lines WHERE job = ?", (job,)).fetchone()
        return number or 0

    def add(self, job: int, entries: Sequence[Line | Fault]) -> list[Fault]:
        """Add lines in ascending order of number, the faulty ones as failed.

        Returns the lines whose custom_id an earlier line has. They are added as failed too, under a name of
        their own.
        """
        lines = [entry for entry in entries if isinstance(entry, Line)]
        with self.database.writing() as db:
            twice = [] if insert_lines(db, job, lines) == len(lines) else [*_duplicates(db, job, lines)]
            faults = [entry for entry in entries if isinstance(entry, Fault)]
            (failed,) = db.execute("SELECT failed + done FROM jobs WHERE id = ?", (job,)).fetchone()
            for place, fault in enumerate((*faults, *twice), start=failed + 1):
                _insert_fault(db, job, fault, place)
            db.execute(
                "UPDATE jobs SET total = total + ?, failed = failed + ? WHERE id = ?",
                (len(entries), len(faults) + len(twice), job),
            )
        return twice

    def first_difference(self, job: int, entries: Sequence[Line | Fault], *, after: int, upto: int) -> int | None:
        """Compare ``entries`` with the ledger's lines of the numbers from ``after`` (exclusive) to ``upto``.

        Returns the first number at which they differ, or None.
        """
        with self.database.reading() as db:
            ours: list[tuple[int, bytes]] = db.execute(
                "SELECT number, digest FROM lines WHERE job = ? AND number > ? AND number <= ?",
                (job, after, upto),
            ).fetchall()
        differing = {(entry.number, entry.digest) for entry in entries}.symmetric_difference(ours)
        return min((number for number, _ in differing), default=None)

    # lines being worked on

    def pending(
        self,
        job: int,
        after: int,
        *,
        max_lines: int,
        max_bytes: int,
        outlet: int | Literal["any"] | None = "any",
    ) -> list[Line]:
        """Return the next lines without an end after number ``after``: at least one where there is any.

        ``outlet`` narrows it to those that nobody has decided about (None), that are to be sent by themselves (0),
        or that ride in the batch of that id.
        """
        with self.database.reading() as db:
            # the index has them by outlet first; each part is in order of number, so that merging them is all
            parts = [
                db.execute(
                    f"SELECT {_LINE} FROM lines WHERE job = ? AND outlet IS ? AND state = 'pending' "
                    "AND number > ? ORDER BY number LIMIT ?",
                    (job, part, after, max_lines),
                )
                for part in (_outlets(db, job) if outlet == "any" else [outlet])
            ]
            rows = islice(heapq.merge(*parts), max_lines)
            return page((Line(*row) for row in rows), lambda line: len(line.body), max_bytes)

    def finish(self, job: int, ends: Sequence[End]) -> int:
        """Record how lines ended. A line that has an end already keeps it. Returns how many had none."""
        with self.database.writing() as db:
            row = db.execute("SELECT done + failed FROM jobs WHERE id = ?", (job,)).fetchone()
            if row is None:
                raise JobError(self._removed())
            finished = write_ends(db, job, ends, row[0])
            db.execute(
                "UPDATE jobs SET state = 'ended' WHERE id = ? AND state = 'open' AND done + failed = total", (job,)
            )
        return finished

    def count_attempt(self, job: int, number: int) -> int:
        """Count an attempt that had no end, and return how many there were."""
        with self.database.writing() as db:
            db.execute("UPDATE lines SET attempts = attempts + 1 WHERE job = ? AND number = ?", (job, number))
            (attempts,) = db.execute(
                "SELECT attempts FROM lines WHERE job = ? AND number = ?", (job, number)
            ).fetchone()
        return int(attempts)

    def fail_rest(self, job: int, error: LineError) -> int:
        """End every line that has no end with that error, wherever it is. Returns how many."""
        count = 0
        while numbers := self._unended(job):
            count += self.finish(job, [End(number, error, via=None) for number in numbers])
        return count

    def retry_failed(self, job: int, *, now: float, deadline: float | None = None) -> int:
        """Make the failed lines pending again that can be asked again, all but ``invalid_line``. Returns how many.

        A deadline of the job that has passed by ``now`` gives way to ``deadline``. Whoever calls holds its lock.
        """
        with self.database.writing() as db:
            if count := undo_failures(db, job):
                db.execute("UPDATE jobs SET deadline = ?2 WHERE id = ?1 AND deadline <= ?3", (job, deadline, now))
        return count

    def set_deadline(self, job: int, deadline: float) -> None:
        """Give a job another deadline, in unix time. Whoever calls holds its lock.

        Lines that were to go by themselves under the one before are decided about anew.
        """
        with self.database.writing() as db:
            db.execute("UPDATE jobs SET deadline = ?2 WHERE id = ?1", (job, deadline))
            db.execute("UPDATE lines SET outlet = NULL WHERE job = ? AND state = 'pending' AND outlet = 0", (job,))

    def retriable(self, job: int, after: int, *, max_lines: int, max_bytes: int) -> list[Line]:
        """Return the next lines after number ``after`` that `retry_failed` would make pending again."""
        with self.database.reading() as db:
            rows = db.execute(
                f"SELECT {_LINE} FROM lines WHERE {FAILED_ANEW} AND number > :after ORDER BY number LIMIT :limit",
                {"job": job, "after": after, "limit": max_lines},
            )
            return page((Line(*row) for row in rows), lambda line: len(line.body), max_bytes)

    def _unended(self, job: int) -> list[int]:
        with self.database.reading() as db:
            rows = db.execute(
                "SELECT number FROM lines WHERE job = ? AND state = 'pending' ORDER BY outlet, number LIMIT ?",
                (job, _CHUNK),
            )
            return sorted(number for (number,) in rows)

    # results coming out

    def failures(self, job: int) -> list[tuple[str, int]]:
        """Return the codes of the errors that lines failed with, and how many of each, the most frequent first."""
        with self.database.reading() as db:
            return db.execute(
                "SELECT error_code, count(*) FROM lines WHERE job = ? AND state = 'failed' "
                "GROUP BY error_code ORDER BY count(*) DESC, error_code",
                (job,),
            ).fetchall()

    def results(self, job: int, after: int, *, max_lines: int, max_bytes: int) -> list[Result]:
        """Return the next results after line number ``after``, in input order."""
        return self._results("number", job, after, max_lines, max_bytes)

    def completed(self, job: int, after: int, *, max_lines: int, max_bytes: int) -> list[Result]:
        """Return the next results after the ``after``-th that ended, in the order in which they ended."""
        return self._results("ended", job, after, max_lines, max_bytes)

    def _results(self, order: str, job: int, after: int, max_lines: int, max_bytes: int) -> list[Result]:
        with self.database.reading() as db:
            rows = db.execute(
                f"SELECT {_RESULT} FROM lines WHERE job = ? AND {order} > ? AND ended IS NOT NULL "
                f"ORDER BY {order} LIMIT ?",
                (job, after, max_lines),
            )
            return page((Result(*row) for row in rows), lambda result: len(result.response or b""), max_bytes)


def _outlets(db: sqlite3.Connection, job: int) -> list[int | None]:
    """Return the outlets that pending lines may have; None, after which there is no more, is always one."""
    rows = db.execute(
        "WITH RECURSIVE found (outlet) AS ("
        "  SELECT min(outlet) FROM lines WHERE job = :job AND state = 'pending' AND outlet >= 0"
        "  UNION ALL SELECT (SELECT min(outlet) FROM lines"
        "    WHERE job = :job AND state = 'pending' AND outlet > found.outlet)"
        "  FROM found WHERE found.outlet IS NOT NULL"
        ") SELECT outlet FROM found",
        {"job": job},
    )
    return [outlet for (outlet,) in rows]


def _duplicates(db: sqlite3.Connection, job: int, lines: Iterable[Line]) -> Iterator[Fault]:
    for line in lines:
        (first,) = db.execute(
            "SELECT number FROM lines WHERE job = ? AND custom_id = ?", (job, line.custom_id)
        ).fetchone()
        if first != line.number:
            yield named_twice(line.number, line.custom_id, first, line.digest)


def _insert_fault(db: sqlite3.Connection, job: int, fault: Fault, place: int) -> None:
    custom_id = fault.custom_id
    while not db.execute(
        "INSERT INTO lines (job, number, custom_id, digest, state, ended, error_code, error_message) "
        "VALUES (?, ?, ?, ?, 'failed', ?, 'invalid_line', ?) ON CONFLICT (job, custom_id) DO NOTHING",
        (job, fault.number, custom_id, fault.digest, place, fault.message),
    ).rowcount:
        custom_id += "-invalid"  # another line bears the name
