"""Write-ahead logging for the files that several processes share."""

from __future__ import annotations

import sqlite3
import time

__all__ = ["use_wal"]

_AGAIN_AFTER = 0.005


def use_wal(db: sqlite3.Connection, *, patience: float) -> None:
    """Put the file into write-ahead mode, or find that it is. Waits ``patience`` seconds for others at most.

    SQLite's own timeout does not cover this statement: where another connection makes the same switch, or uses the
    file for the first time, it fails at once (https://www.sqlite.org/wal.html, "Sometimes Queries Return
    SQLITE_BUSY In WAL Mode"). Raises sqlite3.OperationalError.
    """
    until = time.monotonic() + patience
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
        time.sleep(_AGAIN_AFTER)
