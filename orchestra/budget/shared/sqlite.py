"""Shared accounts in a SQLite file, for the processes of one machine.

The file holds one row an account. It names accounts by a fingerprint and never holds a key. Instants are those of
``time.monotonic``, which is one clock for all processes of a machine, does not jump when the time of day is set,
and stands still while the machine sleeps; the machine's boot tells whether they still mean anything.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, Final

from orchestra.budget.shared.account import Account, Reply, Request
from orchestra.budget.shared.store import StoreError
from orchestra.errors import ConfigError
from orchestra.sqlite_wal import use_wal

__all__ = ["SqliteStore", "boot_id"]

APPLICATION_ID: Final = 0x4F726362
"""Marks the file as ours ("Orcb")."""

MIGRATIONS: Final = (
    ("CREATE TABLE accounts (name TEXT PRIMARY KEY, state TEXT NOT NULL) WITHOUT ROWID",),
    (),  # states may hold windows since; those without are read as they were
)

_BUSY_SECONDS = 2.0

logger = logging.getLogger(__name__)


@cache
def boot_id() -> str:
    """Return a name for this start of the machine, the same in all its processes."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        # Elsewhere the instant of the start tells, to the minute: the time of day may be set a little meanwhile.
        return f"started {round((time.time() - time.monotonic()) / 60.0)}"


class SqliteStore:
    """The accounts in the file at ``path``, which is made, for its owner's eyes only, where it is missing.

    Raises ConfigError where the file cannot serve: not a database, damaged, from a newer version, not writable.
    Put it on a local disk: SQLite's locks do not hold across a network.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Callable[[], float] = time.monotonic,
        boot: Callable[[], str] = boot_id,
    ) -> None:
        self.path = Path(path).absolute()  # where the process stood when it was named
        self._clock = clock
        self._boot = boot
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None
        try:
            self._connection()
        except StoreError as error:
            raise ConfigError(str(error)) from error.__cause__

    def exchange(self, account: str, request: Request) -> Reply:
        """Let a process exchange with an account. Raises StoreError where the file cannot serve."""
        with self._lock:
            db = self._connection()
            try:
                db.execute("BEGIN IMMEDIATE")
                try:
                    reply = self._exchange(db, account, request)
                except BaseException:
                    db.execute("ROLLBACK")
                    raise
                db.execute("COMMIT")
            except sqlite3.Error as error:
                self._close()
                raise StoreError(f"{self.path}: {_remedy(error)}") from error
            return reply

    def look(self, account: str) -> dict[str, Any] | None:
        """Return an account's numbers as a plain dict; None where there is no such account. Raises StoreError."""
        try:  # by a connection of its own, which waits for nobody's exchange
            with closing(sqlite3.connect(f"{self.path.as_uri()}?mode=rw", uri=True, timeout=0.0)) as db:
                state = self._read(db, account)
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {_remedy(error)}") from error
        if state is None:
            return None
        now = state.advance(self._boot(), self._clock())
        return state.describe(now)

    def close(self) -> None:
        """Close the file. What comes after opens it again."""
        with self._lock:
            self._close()

    def abandon(self) -> None:
        """Forget the connection without closing it: a forked child may not touch its parent's."""
        if self._db is not None:
            _abandoned.append(self._db)
        self._db = None
        self._lock = threading.Lock()

    def _exchange(self, db: sqlite3.Connection, name: str, request: Request) -> Reply:
        account = self._read(db, name)
        now = self._clock()  # after the wait for the lock
        if account is None:
            account = Account(request.terms, boot=self._boot(), now=now)
        reply = account.exchange(request, boot=self._boot(), now=now)
        db.execute(
            "INSERT INTO accounts (name, state) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET state = excluded.state",
            (name, account.dumps()),
        )
        return reply

    def _read(self, db: sqlite3.Connection, name: str) -> Account | None:
        row = db.execute("SELECT state FROM accounts WHERE name = ?", (name,)).fetchone()
        try:
            return None if row is None else Account.loads(row[0])
        except ValueError as error:
            raise StoreError(f"{self.path}: {_DAMAGED} ({error})") from None

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _connection(self) -> sqlite3.Connection:
        """Return the open connection. A file that was taken away under it is made anew."""
        if self._db is not None and self._identity() != self._opened:
            self._close()
            logger.warning(
                "%s was taken away: a new one is made, and what is left of a day counts anew", self.path
            )
        if self._db is None:
            self._db = self._open()
            self._opened = self._identity()
        return self._db

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            message = f"the budget file cannot be made ({error.strerror}); name another under [budget] backend"
            raise StoreError(f"{self.path}: {message}") from None
        db = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            use_wal(db, patience=_BUSY_SECONDS)
            db.execute("PRAGMA synchronous = NORMAL")
            self._migrate(db)
        except sqlite3.Error as error:
            db.close()
            raise StoreError(f"{self.path}: {_remedy(error)}") from error
        except BaseException:
            db.close()
            raise
        return db

    def _migrate(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        try:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            (application,) = db.execute("PRAGMA application_id").fetchone()
            (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if application != APPLICATION_ID and (tables or application or version):
                raise StoreError(
                    f"{self.path}: a database of another program; name another file under [budget] backend"
                )
            if version > len(MIGRATIONS):
                raise StoreError(
                    f"{self.path}: written by a newer version of orchestra (format {version}, this one knows "
                    f"{len(MIGRATIONS)}); upgrade orchestra here"
                )
            for migration in MIGRATIONS[version:]:
                for statement in migration:
                    db.execute(statement)
            if version < len(MIGRATIONS):
                db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")


_abandoned: list[sqlite3.Connection] = []

_DAMAGED = "the budget file is damaged; stop the processes that use it and move it away: a new one is made"


def _remedy(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_NOTADB":
        return "not a budget file (not an SQLite database); move it away, or name another under [budget] backend"
    if name.startswith("SQLITE_CORRUPT"):
        return _DAMAGED
    if name == "SQLITE_FULL":
        return "no room left on the disk for the budget file; make room"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "another process holds the budget file locked; it must be on a local disk, and in nobody else's use"
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_IOERR")):
        return f"the budget file cannot be read and written ({error}); check the rights of the file and its folder"
    return f"the budget file failed: {error}"
