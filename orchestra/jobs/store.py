"""The ledger of jobs: a SQLite file that says of every line what it asks and how it ended.

Nothing is sent that is not in the ledger, and nothing is reported that is not in it, so that a process killed at
any instant leaves exactly the lines that have no end yet. It holds requests and answers; keys and headers never
enter.

Many processes may read one ledger while others write it. Every write is one short transaction.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from orchestra.errors import JobError
from orchestra.jobs.lines import Fault, Line
from orchestra.jobs.record import End, JobRecord, LineError, Result, Tally
from orchestra.jobs.schema import APPLICATION_ID, MIGRATIONS

__all__ = ["JobStore"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

_MOST_TOKENS = 1 << 40  # of a line; a million such lines still fit the 63 bits that SQLite has

_JOB = "id, name, created, model, deadline, source, state, stopped"
_RESULT = (
    "number, custom_id, status_code, request_id, response, error_code, error_message, "
    "input_tokens, output_tokens, route, attempts, ended"
)


def _telling(method: Callable[Concatenate[JobStore, _P], _T]) -> Callable[Concatenate[JobStore, _P], _T]:
    """Turn SQLite's errors into JobErrors that name the file and the remedy."""

    @wraps(method)
    def wrapper(self: JobStore, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return method(self, *args, **kwargs)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise JobError(f"{self.path}: {_remedy(error)}") from error

    return wrapper


def _remedy(error: sqlite3.Error | UnicodeDecodeError) -> str:
    # what is not text where text must be was not written by us
    name = "SQLITE_CORRUPT" if isinstance(error, UnicodeDecodeError) else getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_NOTADB":
        return "not a job store (not an SQLite database); move the file away, or name another under [bulk] store"
    if name.startswith("SQLITE_CORRUPT"):
        return "the job store is damaged; restore it from a copy, or move it away to begin a new one"
    if name == "SQLITE_FULL":
        return "no room left on the disk for the job store; make room and run the same command again"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "another process holds the job store locked; try again when it has ended"
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_IOERR")):
        return (
            f"the job store cannot be read and written ({error}); check the rights of the file and its folder, "
            "and the room on its disk"
        )
    return f"the job store failed: {error}"


class JobStore:
    """The ledger in the file at ``path``, which is made, for its owner's eyes only, where it is missing.

    Methods block for a short time and may be called from any thread. Each raises JobError where the file cannot
    serve: not a database, damaged, from a newer version, not writable, no room.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._open()

    @_telling
    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # made here and not by SQLite, so that at no moment others could read it
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise JobError(
                f"{self.path}: the job store cannot be made ({error.strerror}); name another under [bulk] store"
            ) from None
        self._writer = self._connect()
        try:
            self._migrate()
            self._reader = self._connect()
        except BaseException:
            self._writer.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=30, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA cache_size = -32768")
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self) -> None:
        with self._transaction() as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            (application,) = db.execute("PRAGMA application_id").fetchone()
            (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if application != APPLICATION_ID and (tables or application or version):
                raise JobError(f"{self.path}: a database of another program; name another file under [bulk] store")
            if version > len(MIGRATIONS):
                raise JobError(
                    f"{self.path}: written by a newer version of orchestra (format {version}, this one knows "
                    f"{len(MIGRATIONS)}); upgrade with: pip install -U orchestra-llm"
                )
            for migration in MIGRATIONS[version:]:
                for statement in migration:
                    db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._writing:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:  # after some faults (a full disk) SQLite has ended it itself
                    self._writer.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file. May be called again."""
        with self._writing, self._reading:
            self._reader.close()
            self._writer.close()

    # jobs

    @_telling
    def create(
        self, name: str, *, created: float, model: str | None, deadline: float | None, source: bytes | None
    ) -> JobRecord:
        """Record a new job that has no lines yet. ``created`` and ``deadline`` are unix times."""
        with self._transaction() as db:
            id = db.execute(
                "INSERT INTO jobs (name, created, model, deadline, source) VALUES (?, ?, ?, ?, ?)",
                (name, created, model, deadline, source),
            ).lastrowid
            row = db.execute(f"SELECT {_JOB} FROM jobs WHERE id = ?", (id,)).fetchone()
        return JobRecord(*row)

    @_telling
    def find(self, name: str) -> JobRecord | None:
        """Return the job of that name."""
        with self._reading:
            row = self._reader.execute(f"SELECT {_JOB} FROM jobs WHERE name = ?", (name,)).fetchone()
        return None if row is None else JobRecord(*row)

    @_telling
    def jobs(self) -> list[JobRecord]:
        """Return all jobs, newest first."""
        with self._reading:
            rows = self._reader.execute(f"SELECT {_JOB} FROM jobs ORDER BY created DESC, id DESC").fetchall()
        return [JobRecord(*row) for row in rows]

    @_telling
    def discard(self, job: int) -> None:
        """Forget a job and its lines."""
        with self._transaction() as db:
            db.execute("DELETE FROM jobs WHERE id = ?", (job,))

    @_telling
    def seal(self, job: int) -> None:
        """Record that the last line of the job has been added."""
        with self._transaction() as db:
            db.execute(
                "UPDATE jobs SET state = iif(done + failed = total, 'ended', 'open') "
                "WHERE id = ? AND state = 'loading'",
                (job,),
            )

    @_telling
    def stop(self, job: int, reason: str | None) -> None:
        """Record why the job stands still; None when it goes on."""
        with self._transaction() as db:
            db.execute("UPDATE jobs SET stopped = ? WHERE id = ?", (_text(reason), job))

    @_telling
    def tally(self, job: int) -> Tally:
        """Return the counts of the job's lines and tokens."""
        with self._reading:
            row = self._reader.execute(
                "SELECT total, done, failed, input_tokens, output_tokens, state FROM jobs WHERE id = ?", (job,)
            ).fetchone()
        if row is None:
            raise JobError(f"{self.path}: the job was removed from the store")
        total, done, failed, input_tokens, output_tokens, state = row
        return Tally(total, done, failed, input_tokens, output_tokens, whole=state != "loading")

    # lines going in

    @_telling
    def has_asked(self, job: int) -> bool:
        """Return whether any of the job's lines has ended otherwise than by its own faults."""
        with self._reading:
            (asked,) = self._reader.execute(
                "SELECT EXISTS (SELECT 1 FROM lines WHERE job = ? AND ended IS NOT NULL AND attempts > 0)", (job,)
            ).fetchone()
        return bool(asked)

    @_telling
    def last_number(self, job: int) -> int:
        """Return the number of the job's last line in the ledger, or 0."""
        with self._reading:
            (number,) = self._reader.execute("SELECT max(number) FROM lines WHERE job = ?", (job,)).fetchone()
        return number or 0

    @_telling
    def add(self, job: int, entries: Sequence[Line | Fault]) -> list[Fault]:
        """Add lines in ascending order of number, the faulty ones as failed.

        Returns the lines whose custom_id an earlier line has. They are added as failed too, under a name of
        their own.
        """
        lines = [entry for entry in entries if isinstance(entry, Line)]
        rows = [(job, line.number, line.custom_id, line.digest, line.path, line.body) for line in lines]
        with self._transaction() as db:
            before = db.total_changes
            db.executemany(
                "INSERT INTO lines (job, number, custom_id, digest, path, body) VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (job, custom_id) DO NOTHING",
                rows,
            )
            added = db.total_changes - before
            twice = [] if added == len(rows) else [*_duplicates(db, job, lines)]
            faults = [entry for entry in entries if isinstance(entry, Fault)]
            (failed,) = db.execute("SELECT failed + done FROM jobs WHERE id = ?", (job,)).fetchone()
            for place, fault in enumerate((*faults, *twice), start=failed + 1):
                _insert_fault(db, job, fault, place)
            db.execute(
                "UPDATE jobs SET total = total + ?, failed = failed + ? WHERE id = ?",
                (len(entries), len(faults) + len(twice), job),
            )
        return twice

    @_telling
    def first_difference(self, job: int, entries: Sequence[Line | Fault], *, after: int, upto: int) -> int | None:
        """Compare ``entries`` with the ledger's lines of the numbers from ``after`` (exclusive) to ``upto``.

        Returns the first number at which they differ, or None.
        """
        with self._reading:
            ours: list[tuple[int, bytes]] = self._reader.execute(
                "SELECT number, digest FROM lines WHERE job = ? AND number > ? AND number <= ?",
                (job, after, upto),
            ).fetchall()
        differing = {(entry.number, entry.digest) for entry in entries}.symmetric_difference(ours)
        return min((number for number, _ in differing), default=None)

    # lines being worked on

    @_telling
    def pending(self, job: int, after: int, *, max_lines: int, max_bytes: int) -> list[Line]:
        """Return the next lines without an end after number ``after``: at least one where there is any."""
        with self._reading:
            rows = self._reader.execute(
                "SELECT number, custom_id, path, body, digest FROM lines "
                "WHERE job = ? AND state = 'pending' AND number > ? ORDER BY number LIMIT ?",
                (job, after, max_lines),
            )
            return _page((Line(*row) for row in rows), lambda line: len(line.body), max_bytes)

    @_telling
    def finish(self, job: int, ends: Sequence[End]) -> None:
        """Record how lines ended. A line that has an end already keeps it."""
        with self._transaction() as db:
            done, failed = db.execute("SELECT done, failed FROM jobs WHERE id = ?", (job,)).fetchone()
            place = done + failed
            input_tokens = output_tokens = 0
            for end in ends:
                error = end.error
                used_in, used_out = _tokens(end.input_tokens), _tokens(end.output_tokens)
                changed = db.execute(
                    "UPDATE lines SET state = ?, ended = ?, attempts = attempts + 1, status_code = ?, "
                    "request_id = ?, response = ?, error_code = ?, error_message = ?, input_tokens = ?, "
                    "output_tokens = ?, route = ? WHERE job = ? AND number = ? AND state = 'pending'",
                    (
                        "failed" if error else "done",
                        place + 1,
                        end.status_code,
                        _text(end.request_id),
                        end.response,
                        _text(error.code) if error else None,
                        _text(error.message) if error else None,
                        used_in,
                        used_out,
                        end.route,
                        job,
                        end.number,
                    ),
                ).rowcount
                if not changed:
                    continue
                place += 1
                done += error is None
                failed += error is not None
                input_tokens += used_in
                output_tokens += used_out
            _count(db, job, done, failed, input_tokens, output_tokens)

    @_telling
    def count_attempt(self, job: int, number: int) -> int:
        """Count an attempt that had no end, and return how many there were."""
        with self._transaction() as db:
            db.execute("UPDATE lines SET attempts = attempts + 1 WHERE job = ? AND number = ?", (job, number))
            (attempts,) = db.execute(
                "SELECT attempts FROM lines WHERE job = ? AND number = ?", (job, number)
            ).fetchone()
        return int(attempts)

    def fail_rest(self, job: int, error: LineError) -> int:
        """End every line that has no end with that error. Returns how many."""
        count = 0
        while lines := self.pending(job, 0, max_lines=1000, max_bytes=1 << 30):
            self.finish(job, [End(line.number, error) for line in lines])
            count += len(lines)
        return count

    # results coming out

    @_telling
    def failures(self, job: int) -> list[tuple[str, int]]:
        """Return the codes of the errors that lines failed with, and how many of each, the most frequent first."""
        with self._reading:
            return self._reader.execute(
                "SELECT error_code, count(*) FROM lines WHERE job = ? AND state = 'failed' "
                "GROUP BY error_code ORDER BY count(*) DESC, error_code",
                (job,),
            ).fetchall()

    @_telling
    def results(self, job: int, after: int, *, max_lines: int, max_bytes: int) -> list[Result]:
        """Return the next results after line number ``after``, in input order."""
        return self._results("number", job, after, max_lines, max_bytes)

    @_telling
    def completed(self, job: int, after: int, *, max_lines: int, max_bytes: int) -> list[Result]:
        """Return the next results after the ``after``-th that ended, in the order in which they ended."""
        return self._results("ended", job, after, max_lines, max_bytes)

    def _results(self, order: str, job: int, after: int, max_lines: int, max_bytes: int) -> list[Result]:
        with self._reading:
            rows = self._reader.execute(
                f"SELECT {_RESULT} FROM lines WHERE job = ? AND {order} > ? AND ended IS NOT NULL "
                f"ORDER BY {order} LIMIT ?",
                (job, after, max_lines),
            )
            return _page((Result(*row) for row in rows), lambda result: len(result.response or b""), max_bytes)


def _text(said: str | None) -> str | None:
    """Return what a provider said as text that can be stored: an escape can say half of a character."""
    return None if said is None else said.encode("utf-8", "replace").decode()


def _tokens(count: int) -> int:
    """Return a provider's count as one that can be summed over any number of lines, whatever it claims."""
    return max(0, min(count, _MOST_TOKENS))


def _page(entries: Iterable[_T], size: Callable[[_T], int], max_bytes: int) -> list[_T]:
    """Return entries up to the one that fills ``max_bytes``."""
    page = []
    for entry in entries:
        page.append(entry)
        max_bytes -= size(entry)
        if max_bytes <= 0:
            break
    return page


def _duplicates(db: sqlite3.Connection, job: int, lines: Iterable[Line]) -> Iterator[Fault]:
    for line in lines:
        (first,) = db.execute(
            "SELECT number FROM lines WHERE job = ? AND custom_id = ?", (job, line.custom_id)
        ).fetchone()
        if first != line.number:
            message = f"custom_id {line.custom_id!r:.80} is that of line {first} too; each must be unique"
            yield Fault(line.number, message, line.digest)


def _insert_fault(db: sqlite3.Connection, job: int, fault: Fault, place: int) -> None:
    custom_id = fault.custom_id
    while not db.execute(
        "INSERT INTO lines (job, number, custom_id, digest, state, ended, error_code, error_message) "
        "VALUES (?, ?, ?, ?, 'failed', ?, 'invalid_line', ?) ON CONFLICT (job, custom_id) DO NOTHING",
        (job, fault.number, custom_id, fault.digest, place, fault.message),
    ).rowcount:
        custom_id += "-invalid"  # another line bears the name


def _count(
    db: sqlite3.Connection, job: int, done: int, failed: int, input_tokens: int, output_tokens: int
) -> None:
    db.execute(
        "UPDATE jobs SET done = ?, failed = ?, "
        "input_tokens = input_tokens + ?, output_tokens = output_tokens + ?, "
        "state = iif(state = 'open' AND ? = total, 'ended', state) WHERE id = ?",
        (done, failed, input_tokens, output_tokens, done + failed, job),
    )
