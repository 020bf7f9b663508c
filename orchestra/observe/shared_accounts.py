"""What a shared budget's file says of its accounts, read without a part in it."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

__all__ = ["read_accounts"]


def read_accounts(path: Path) -> list[dict[str, Any]]:
    """Return each account's numbers as a plain dict; none where the file is not there yet.

    Raises StoreError where it cannot be read.
    """
    from orchestra.budget.shared import StoreError
    from orchestra.budget.shared.account import Account
    from orchestra.budget.shared.sqlite import APPLICATION_ID, boot_id

    path = path.absolute()
    if not path.exists():
        return []
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=1.0)) as db:
            if db.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
                raise StoreError(f"{path}: not a budget file")
            rows = db.execute("SELECT name, state FROM accounts ORDER BY name").fetchall()
        found = []
        for name, text in rows:
            state = Account.loads(text)
            now = state.advance(boot_id(), time.monotonic())
            holders = [
                {"pid": int(holder.partition("-")[0]), "held": one.held, "wants": one.want}
                for holder, one in state.holders.items()
            ]
            found.append({"file": str(path), **_name(name), **state.describe(now), "holders": holders})
    except (sqlite3.Error, ValueError) as error:
        raise StoreError(f"{path}: cannot be read: {error}") from error
    return found


def _name(text: str) -> dict[str, Any]:
    """Return what an account's name says: whose limits they are."""
    provider, key, models, *kind = json.loads(text)
    models = models if isinstance(models, list) else [models]
    return {"provider": provider, "key": key, "models": models, "kind": kind[0] if kind else "online"}
