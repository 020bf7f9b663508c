"""Writes into the ledger how lines ended, many in one statement, and counts them."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain

from orchestra.jobs.ledger.database import slices, storable
from orchestra.jobs.ledger.record import End

__all__ = ["write_ends"]

_MOST_TOKENS = 1 << 40  # of a line; a million such lines still fit the 63 bits that SQLite has

_COLUMNS = (
    "state",
    "ended",
    "status_code",
    "request_id",
    "response",
    "error_code",
    "error_message",
    "input_tokens",
    "output_tokens",
    "route",
    "via",
    "usd",
)


def write_ends(db: sqlite3.Connection, job: int, ends: Sequence[End], place: int) -> int:
    """Write how lines ended that had no end, and count them. Returns how many.

    ``place`` is that of the job's last end so far.
    """
    rows = {
        number: (row, batch)
        for number, row, batch in db.execute(
            "SELECT number, rowid, outlet FROM lines WHERE job = ? AND state = 'pending' "
            "AND number IN (SELECT value FROM json_each(?))",
            (job, json.dumps([end.number for end in ends])),
        )
    }
    changes: list[tuple[object, ...]] = []
    sums: dict[tuple[str | None, str | None], _Sum] = {}
    left: Counter[int] = Counter()
    for end in ends:
        if (found := rows.pop(end.number, None)) is None:
            continue
        row, batch = found
        if batch:
            left[batch] += 1
        input_tokens, output_tokens, usd = _tokens(end.input_tokens), _tokens(end.output_tokens), _money(end.usd)
        outlet = end.route, end.via
        sum = sums.get(outlet) or sums.setdefault(outlet, _Sum())
        sum.lines += 1
        sum.failed += end.error is not None
        sum.input_tokens += input_tokens
        sum.output_tokens += output_tokens
        sum.usd += usd or 0.0
        sum.unpriced += usd is None and end.error is None
        code, message = (None, None) if end.error is None else end.error
        changes.append(
            (
                row,
                "done" if end.error is None else "failed",
                place + len(changes) + 1,
                end.status_code,
                storable(end.request_id),
                end.response,
                storable(code),
                storable(message),
                input_tokens,
                output_tokens,
                end.route,
                end.via,
                usd,
            )
        )
    for some in slices(changes, len(_COLUMNS) + 1, db):
        db.execute(_statement(len(some)), tuple(chain.from_iterable(some)))
    for (route, via), sum in sums.items():
        counts = {**asdict(sum), "job": job, "route": route or "", "via": via}
        db.execute(_ADD_TO_JOB, counts)
        if via is not None:
            db.execute(_ADD_TO_OUTLET, counts)
    for batch, count in left.items():
        db.execute("UPDATE batches SET riding = riding - ? WHERE id = ?", (count, batch))
    return len(changes)


@dataclass(slots=True)
class _Sum:
    """What some ends come to."""

    lines: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0
    unpriced: int = 0


_SUMS = [field.name for field in fields(_Sum)]
_ADD_TO_OUTLET = (
    f"INSERT INTO outlets (job, route, via, {', '.join(_SUMS)}) "
    f"VALUES (:job, :route, :via, {', '.join(f':{name}' for name in _SUMS)}) "
    "ON CONFLICT (job, route, via) DO UPDATE SET "
    f"{', '.join(f'{name} = {name} + excluded.{name}' for name in _SUMS)}"
)
_ADD_TO_JOB = (
    "UPDATE jobs SET done = done + :lines - :failed, failed = failed + :failed, "
    "input_tokens = input_tokens + :input_tokens, output_tokens = output_tokens + :output_tokens, "
    "usd = usd + :usd, unpriced = unpriced + :unpriced WHERE id = :job"
)


def _statement(rows: int) -> str:
    row = f"({', '.join('?' * (len(_COLUMNS) + 1))})"
    # the columns of VALUES are called column1, column2 and so on
    changes = ", ".join(f"{name} = new.column{at}" for at, name in enumerate(_COLUMNS, start=2))
    return (
        f"UPDATE lines SET attempts = attempts + 1, {changes} "
        f"FROM (VALUES {', '.join([row] * rows)}) AS new WHERE lines.rowid = new.column1"
    )


def _tokens(count: int) -> int:
    """Return a provider's count as one that can be summed over any number of lines, whatever it claims."""
    return count if 0 <= count <= _MOST_TOKENS else max(0, min(count, _MOST_TOKENS))


def _money(usd: float | None) -> float | None:
    """Return the sum where it is one."""
    return usd if usd is not None and 0 <= usd < math.inf else None
