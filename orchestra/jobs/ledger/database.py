"""The ledger's file: who may read it, its format, and its transactions."""

from __future__ import annotations

import os
import queue
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from orchestra.errors import JobError
from orchestra.jobs.ledger.schema import APPLICATION_ID, MIGRATIONS
from orchestra.sqlite_wal import use_wal

__all__ = ["Database", "columns", "page", "slices", "storable"]

_T = TypeVar("_T")

_READERS = 3
_PATIENCE = 1.0
"""Seconds that a fork waits at most for who is about something."""
_BUSY = 30.0
"""Seconds that another process may keep the file to itself."""
_MOST_ROWS = 1000


class Database:
    """The SQLite file at ``path``, which is made, for its owner's eyes only, where it is missing.

    Any thread may use it, and so may a forked child, which opens the file for itself. Whatever goes wrong with the
    file is raised as a JobError that names the remedy.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._closed = False
        self._begin()
        with self._telling():
            self._open()
        _all.add(self)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Write in one transaction, which is undone where an exception is raised in it."""
        with self._writing, self._telling():
            self._open_again()
            with self._transaction():
                yield self._writer

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Read what has been committed, while others may write."""
        reader = self._reader()
        try:
            with self._telling():
                yield reader
        finally:
            self._readers.put(reader)

    def compact(self) -> bool:
        """Give the room of what was deleted back to the disk, and leave nothing of it in the file.

        Returns False where that cannot be just now: another process writes, or there is no room for a copy.
        """
        with self._writing, self._telling():
            self._open_again()
            try:
                self._writer.execute("VACUUM")
                # it says that it is busy, and raises nothing, where somebody still reads what was before
                (is_busy, _, _) = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL")):
                    return False
                raise
        return not is_busy

    def close(self) -> None:
        """Close the file. May be called again."""
        with self._writing:
            self._closed = True
            if self._is_shut:
                return
            readers = [self._readers.get() for _ in range(_READERS)]
            for connection in (*readers, self._writer):
                connection.close()
            for reader in readers:
                self._readers.put(reader)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if self._closed:
                raise JobError(
                    f"{self.path}: the job store was closed, as its Orchestra is when its block ends: look at "
                    "jobs before that, or open another and get the job there by its name (`orc.jobs.get`)"
                ) from None
            raise JobError(f"{self.path}: {_remedy(error)}") from error
        except (OverflowError, UnicodeEncodeError) as error:
            raise JobError(
                f"{self.path}: the job store was given what it cannot hold ({error}); run the same command again, "
                "and report this"
            ) from error

    def _reader(self) -> sqlite3.Connection:
        while True:
            if self._is_shut:
                with self._writing, self._telling():
                    self._open_again()
            try:
                return self._readers.get(timeout=_PATIENCE)
            except queue.Empty:
                pass  # all are in use, or a fork has shut them

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._writer.execute("COMMIT")
        except BaseException:
            if self._writer.in_transaction:  # after some faults (a full disk) SQLite has ended it itself
                self._writer.execute("ROLLBACK")
            raise

    # around a fork

    def _begin(self) -> None:
        self._writing = threading.Lock()
        # several, since who looks at a few counts must not wait for who reads a page of lines
        self._readers: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        self._is_shut = False
        """Whether the file has to be opened again: it was shut for a fork."""

    def _pause(self) -> Callable[[], None]:
        """Shut the file as soon as nobody is about something. Returns what lets the parent go on.

        SQLite keeps its locks for each process: a child of one that has the file open would believe to hold those
        of its parent, and neither would be safe. Who does not come to an end is not waited for for long; then the
        child leaves all to the parent, and opens the file beside.
        """
        until = time.monotonic() + _PATIENCE
        writing, readers = self._writing, self._readers
        is_ours = writing.acquire(timeout=_PATIENCE)
        held: list[sqlite3.Connection] = []
        try:
            while is_ours and not self._is_shut and len(held) < _READERS:
                held.append(readers.get(timeout=max(0.0, until - time.monotonic())))
        except queue.Empty:
            pass
        if len(held) == _READERS and not self._closed:
            for connection in (*held, self._writer):
                connection.close()
            held.clear()
            self._is_shut = True

        def go_on() -> None:
            for reader in held:
                readers.put(reader)
            if is_ours:
                writing.release()

        return go_on

    def _leave(self) -> None:
        """In a forked child: leave to the parent what is open. To close it would let go of the parent's locks."""
        _abandoned.append((self._writer, self._readers, self._writing))
        self._begin()
        self._is_shut = True

    def _open_again(self) -> None:
        """Open the file where it was shut for a fork. Whoever calls holds ``_writing``."""
        if self._is_shut:
            if self._closed:
                raise sqlite3.ProgrammingError("it was closed")
            self._open()
            self._is_shut = False

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # made here and not by SQLite, so that at no moment others could read it
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise JobError(
                f"{self.path}: the job store cannot be made ({error.strerror}); name another under [bulk] store"
            ) from None
        self._writer = self._connect(cache_kib=32768)
        opened = [self._writer]
        try:
            with self._transaction():
                self._migrate()
            opened += [self._connect(cache_kib=8192) for _ in range(_READERS)]
        except BaseException:
            for connection in opened:
                connection.close()
            raise
        for reader in opened[1:]:
            self._readers.put(reader)

    def _connect(self, *, cache_kib: int) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
        try:
            use_wal(connection, patience=_BUSY)
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute(f"PRAGMA cache_size = -{cache_kib}")
            connection.execute("PRAGMA wal_autocheckpoint = 4000")
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self) -> None:
        db = self._writer
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != APPLICATION_ID and (tables or application or version):
            raise JobError(f"{self.path}: a database of another program; name another file under [bulk] store")
        if version > len(MIGRATIONS):
            raise JobError(
                f"{self.path}: written by a newer version of orchestra (format {version}, this one knows "
                f"{len(MIGRATIONS)}); upgrade orchestra here"
            )
        for migration in MIGRATIONS[version:]:
            for statement in migration:
                db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def columns(record: type[Any]) -> str:
    """Return the columns that a dataclass or a named tuple is made of, in the order of its fields."""
    names = (field.name for field in fields(record)) if is_dataclass(record) else record._fields
    return ", ".join(names)


def slices(entries: Sequence[_T], parameters: int, db: sqlite3.Connection) -> Iterator[Sequence[_T]]:
    """Yield slices of entries, each as long as one statement takes with so many ``parameters`` an entry.

    Around each statement ``sqlite3`` gives the interpreter's lock away, and waits to have it back. Beside a loop
    that is busy this may take milliseconds, which is nothing for a thousand lines and far too long for one. The
    slices have few lengths: every other length is another statement, which is kept.
    """
    most = min(_MOST_ROWS, db.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // parameters)
    start = 0
    while left := len(entries) - start:
        length = most if left >= most else 1 << (left.bit_length() - 1)
        yield entries[start : start + length]
        start += length


def storable(said: str | None) -> str | None:
    """Return what a provider said as text that can be stored: an escape can say half of a character."""
    return said if said is None or said.isascii() else said.encode("utf-8", "replace").decode()


def page(entries: Iterable[_T], size: Callable[[_T], int], max_bytes: int) -> list[_T]:
    """Return entries up to the one that fills ``max_bytes``."""
    page = []
    for entry in entries:
        page.append(entry)
        max_bytes -= size(entry)
        if max_bytes <= 0:
            break
    return page


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


_all: weakref.WeakSet[Database] = weakref.WeakSet()
_paused: list[Callable[[], None]] = []
_abandoned: list[object] = []
"""The parent's, in a forked child."""


def _before_fork() -> None:
    _paused.extend([database._pause() for database in list(_all)])


def _after_fork() -> None:
    while _paused:
        _paused.pop()()


def _after_fork_in_child() -> None:
    _abandoned.extend(_paused)
    _paused.clear()
    for database in list(_all):
        database._leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
