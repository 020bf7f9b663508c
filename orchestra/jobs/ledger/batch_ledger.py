"""The ledger's part about batches: which there are, how far each is, and which lines ride in it.

A batch goes through the stages of `BatchStage` in their order, without those that its provider does not need, and
each is recorded before the next is begun. A line that has no end rides in one batch at most, and only in one that
is not over: what a batch leaves unanswered goes back in the transaction that ends it. So a process killed at any
instant leaves nothing that the next one could not take up.
"""

from __future__ import annotations

import json
import re
import secrets
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestra.call import Headers
from orchestra.errors import JobError
from orchestra.jobs.ledger.database import Database, columns, page, storable
from orchestra.jobs.ledger.line import Line
from orchestra.jobs.ledger.record import BatchRecord, BatchStage, Dealt
from orchestra.policies.rank import nearest_rank

__all__ = ["BatchLedger", "number_of", "wire_id"]

_BATCH, _LINE = columns(BatchRecord), columns(Line)
_RIDING = "job = (SELECT job FROM batches WHERE id = :id) AND outlet = :id AND state = 'pending'"
_OVER = ("ended", "abandoned")
_KEPT_DURATIONS = 100
_SECRET_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "cookie", "api-key", "x-api-key", "x-goog-api-key"}
)

_BEFORE: Mapping[BatchStage, tuple[BatchStage, ...]] = {
    "sealed": ("open",),
    # from `creating` by one who knows that it was not created: its file was gone
    "uploaded": ("sealed", "uploaded", "creating"),
    "creating": ("sealed", "uploaded", "creating"),
    "submitted": ("creating",),
    "ended": ("submitted",),
    "abandoned": ("open", "sealed", "uploaded", "creating", "submitted"),
}


def wire_id(tag: str, number: int) -> str:
    """Return what a line of the job of that tag is called in a batch.

    It is unique among all jobs, and short and plain enough for every provider, as a user's custom_id need not be.
    """
    return f"{tag}-{number}"


def number_of(tag: str, custom_id: str) -> int | None:
    """Return the number of the line that is so called in a batch of the job of that tag, or None."""
    found = re.fullmatch(r"([0-9a-f]{12})-([1-9][0-9]{0,17})", custom_id, re.ASCII)
    return int(found[2]) if found is not None and found[1] == tag else None


class BatchLedger:
    """Batches of lines, reached as `JobStore.batches`.

    Methods block for a short time and may be called from any thread. Each raises JobError as those of `JobStore`,
    and where the batch is not at a stage that allows what is asked. One that a crash may make somebody repeat may
    be repeated.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    # stages

    def open(
        self,
        job: int,
        *,
        provider: str,
        account: str,
        route: str,
        model: str,
        path: str,
        headers: Headers,
        window: float,
        now: float,
        origin: str | None = None,
    ) -> BatchRecord:
        """Begin a batch, to which lines can be dealt. ``headers`` hold no credentials."""
        if secret := _SECRET_HEADERS & {name.lower() for name, _ in headers}:
            raise ValueError(f"credentials do not belong in the ledger: {', '.join(sorted(secret))}")
        with self._database.writing() as db:
            id = db.execute(
                "INSERT INTO batches "
                "(job, key, provider, account, route, model, path, headers, window, opened, origin) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    job,
                    secrets.token_hex(16),
                    provider,
                    account,
                    route,
                    model,
                    path,
                    json.dumps(headers, separators=(",", ":")).encode(),
                    window,
                    now,
                    origin,
                ),
            ).lastrowid
            assert id is not None
            return _record(self._look(db, id, _BATCH))

    def seal(self, id: int) -> BatchRecord:
        """Record that no more lines are dealt to the batch, and return it as it is then."""
        with self._database.writing() as db:
            self._enter(db, id, "sealed")
            return _record(self._look(db, id, _BATCH))

    def uploaded(self, id: int, file_id: str) -> None:
        """Record which file at the provider holds the lines. It may be another one later, if that one is lost."""
        with self._database.writing() as db:
            self._enter(db, id, "uploaded", file_id=file_id)

    def creating(self, id: int, now: float) -> None:
        """Record that the provider is about to be asked to create the batch; repeated, the first time stands."""
        with self._database.writing() as db:
            (before,) = self._look(db, id, "creating_at")
            self._enter(db, id, "creating", creating_at=now if before is None else before)

    def submitted(self, id: int, batch_id: str, status: str, expires: float | None, now: float) -> None:
        """Record that the provider has the batch, and what it calls it."""
        with self._database.writing() as db:
            (before,) = self._look(db, id, "batch_id")
            if before not in (None, batch_id):
                raise JobError(f"batch {id} is {before!r} at the provider already, not {batch_id!r}")
            self._enter(
                db,
                id,
                "submitted",
                batch_id=batch_id,
                status=storable(status),
                expires=expires,
                submitted_at=now,
            )

    def seen(self, id: int, status: str, finished: int | None) -> None:
        """Record what the provider says of a batch on its way. Of one that is over, nothing is."""
        with self._database.writing() as db:
            (state,) = self._look(db, id, "state")
            if state not in ("submitted", *_OVER):
                raise self._misplaced(id, state, "seen")
            db.execute(
                "UPDATE batches SET status = ?, finished = ? WHERE id = ? AND state = 'submitted'",
                (storable(status), finished, id),
            )

    def end(self, id: int, status: str, now: float, *, count: bool = True) -> int:
        """Record that the batch is over and its results are in the ledger.

        Its lines that still have no end go back to nobody; returns how many. How long it took is kept for `p90`,
        unless ``count`` is False.
        """
        with self._database.writing() as db:
            submitted_at, route, path = self._look(db, id, "submitted_at, route, path")
            if not self._enter(db, id, "ended", status=storable(status), ended_at=now):
                return 0
            if count:
                _keep_duration(db, f"{route}|{path}", max(0.0, now - submitted_at), now)
            return _release(db, id)

    def abandon(self, id: int, note: str, now: float) -> int:
        """Record that nothing is awaited of the batch any more, and why.

        Its lines that have no end go back to nobody; returns how many.
        """
        with self._database.writing() as db:
            if not self._enter(db, id, "abandoned", note=storable(note), ended_at=now):
                return 0
            return _release(db, id)

    # lines

    def deal(self, job: int, outlets: Mapping[int, Dealt]) -> int:
        """Give lines to outlets: 0, to be sent by themselves, or an open batch's id. Returns how many.

        Lines that have ended, or about which somebody has decided already, stay as they are. The batch's bytes and
        tokens then are more than it holds.
        """
        given = 0
        with self._database.writing() as db:
            for outlet, dealt in outlets.items():
                if outlet:
                    state, owner = self._look(db, outlet, "state, job")
                    if state != "open" or owner != job:
                        raise self._misplaced(outlet, state, f"dealt lines of job {job}")
                lines = db.execute(
                    "UPDATE lines SET outlet = ? WHERE job = ? AND outlet IS NULL AND state = 'pending' "
                    "AND number IN (SELECT value FROM json_each(?))",
                    (outlet, job, _array(dealt.numbers)),
                ).rowcount
                if outlet and lines:
                    db.execute(
                        "UPDATE batches SET lines = lines + ?1, riding = riding + ?1, bytes = bytes + ?2, "
                        "tokens = tokens + ?3 WHERE id = ?4",
                        (lines, dealt.bytes, dealt.tokens, outlet),
                    )
                given += lines
        return given

    def release(
        self, id: int, numbers: Sequence[int] | None = None, *, outlet: int | None = None, attempted: bool = False
    ) -> int:
        """Take lines that have no end, all or these, out of the batch. Returns how many.

        They go back to nobody, or with ``outlet=0`` to being sent by themselves. ``attempted`` counts an attempt
        of each. What was dealt to the batch stays counted.
        """
        if outlet not in (None, 0):
            raise ValueError("lines go from a batch to nobody or to being sent by themselves")
        with self._database.writing() as db:
            self._look(db, id, "id")
            return _release(db, id, numbers, outlet=outlet, attempted=attempted)

    def lines(self, id: int, after: int, *, max_lines: int, max_bytes: int) -> list[Line]:
        """Return the batch's next lines without an end after number ``after``: at least one where there is any."""
        with self._database.reading() as db:
            rows = db.execute(
                f"SELECT {_LINE} FROM lines WHERE {_RIDING} AND number > :after ORDER BY number LIMIT :limit",
                {"id": id, "after": after, "limit": max_lines},
            )
            return page((Line(*row) for row in rows), lambda line: len(line.body), max_bytes)

    def numbers(self, id: int) -> list[int]:
        """Return the numbers of the batch's lines without an end, in order."""
        with self._database.reading() as db:
            rows = db.execute(f"SELECT number FROM lines WHERE {_RIDING} ORDER BY number", {"id": id})
            return [number for (number,) in rows]

    def pending(self, id: int) -> int:
        """Return how many of the batch's lines have no end."""
        with self._database.reading() as db:
            (count,) = db.execute(f"SELECT count(*) FROM lines WHERE {_RIDING}", {"id": id}).fetchone()
        return int(count)

    # what there is

    def get(self, id: int) -> BatchRecord:
        """Return the batch as it is now."""
        with self._database.reading() as db:
            return _record(self._look(db, id, _BATCH))

    def unfinished(self, job: int | None = None) -> list[BatchRecord]:
        """Return the batches, of one job or of all, that are not over, the oldest first."""
        return self._records("state NOT IN ('ended', 'abandoned') AND (?1 IS NULL OR job = ?1)", job)

    def of_job(self, job: int) -> list[BatchRecord]:
        """Return all batches of a job, the oldest first."""
        return self._records("job = ?", job)

    def released(self, job: int) -> int:
        """Return how many lines of the job have left a batch without an end, each time counted."""
        with self._database.reading() as db:
            (count,) = db.execute("SELECT ifnull(sum(released), 0) FROM batches WHERE job = ?", (job,)).fetchone()
        return int(count)

    def claimed(self, provider: str) -> set[str]:
        """Return the names that the provider has given to batches of ours."""
        with self._database.reading() as db:
            rows = db.execute(
                "SELECT batch_id FROM batches WHERE provider = ? AND batch_id IS NOT NULL", (provider,)
            )
            return {batch_id for (batch_id,) in rows}

    def p90(self, outlet: str, *, least: int = 3) -> float | None:
        """Return within how many seconds nine of ten of the latest batches ended (nearest rank).

        ``outlet`` is that of `BatchRecord`. None where fewer than ``least`` have.
        """
        with self._database.reading() as db:
            rows = db.execute("SELECT seconds FROM durations WHERE outlet = ?", (outlet,))
            seconds = [float(each) for (each,) in rows]
        return nearest_rank(seconds, 0.9) if len(seconds) >= max(1, least) else None

    def _records(self, where: str, job: int | None) -> list[BatchRecord]:
        with self._database.reading() as db:
            rows = db.execute(f"SELECT {_BATCH} FROM batches WHERE {where} ORDER BY opened, id", (job,))
            return [_record(row) for row in rows]

    def _look(self, db: sqlite3.Connection, id: int, what: str) -> tuple[Any, ...]:
        row: tuple[Any, ...] | None = db.execute(f"SELECT {what} FROM batches WHERE id = ?", (id,)).fetchone()
        if row is None:
            raise JobError(f"{self._database.path}: batch {id} was removed from the store")
        return row

    def _enter(self, db: sqlite3.Connection, id: int, state: BatchStage, **values: object) -> bool:
        """Bring the batch to a stage. Returns False where it is there already, and that is for good."""
        (before,) = self._look(db, id, "state")
        if before not in _BEFORE[state]:
            if before == state:
                return False
            raise self._misplaced(id, before, state)
        changes = ", ".join(f"{name} = :{name}" for name in ("state", *values))
        db.execute(f"UPDATE batches SET {changes} WHERE id = :id", {**values, "state": state, "id": id})
        return True

    def _misplaced(self, id: int, state: str, wanted: str) -> JobError:
        return JobError(f"batch {id} is {state} and cannot be {wanted}")


def _release(
    db: sqlite3.Connection,
    id: int,
    numbers: Iterable[int] | None = None,
    *,
    outlet: int | None = None,
    attempted: bool = False,
) -> int:
    these = "" if numbers is None else " AND number IN (SELECT value FROM json_each(:numbers))"
    count = db.execute(
        f"UPDATE lines SET outlet = :outlet, attempts = attempts + :attempted WHERE {_RIDING}{these}",
        {"id": id, "outlet": outlet, "attempted": attempted, "numbers": _array(numbers or ())},
    ).rowcount
    db.execute(
        "UPDATE batches SET riding = riding - :count, released = released + :count WHERE id = :id",
        {"count": count, "id": id},
    )
    return count


def _array(numbers: Iterable[int]) -> str:
    return json.dumps(list(numbers), separators=(",", ":"))


def _keep_duration(db: sqlite3.Connection, outlet: str, seconds: float, now: float) -> None:
    db.execute("INSERT INTO durations (outlet, seconds, at) VALUES (?, ?, ?)", (outlet, seconds, now))
    db.execute(
        "DELETE FROM durations WHERE rowid IN (SELECT rowid FROM durations WHERE outlet = ? "
        "ORDER BY at DESC, rowid DESC LIMIT -1 OFFSET ?)",
        (outlet, _KEPT_DURATIONS),
    )


def _record(row: Sequence[Any]) -> BatchRecord:
    values = dict(zip(_BATCH.split(", "), row, strict=True))
    headers = tuple((name, value) for name, value in json.loads(values.pop("headers")))
    return BatchRecord(headers=headers, **values)
