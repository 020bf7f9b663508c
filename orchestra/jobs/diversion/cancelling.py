"""Ends a job before its time: its batches at their providers, and its lines in the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from orchestra.batches import BatchBusy, BatchDesk, BatchNotFound, BatchRefused, BatchRoute
from orchestra.clock import wall
from orchestra.errors import ConnectionFailed, JobError
from orchestra.jobs.diversion.carrier import Carrier
from orchestra.jobs.diversion.hand_in import HandIn
from orchestra.jobs.ledger.record import BatchRecord, JobRecord, LineError
from orchestra.jobs.ledger.store import JobStore
from orchestra.jobs.ledger.threads import in_thread
from orchestra.policies.escalation import Escalation

__all__ = ["Cancellation", "CancelledBatch", "cancel_job", "route_of", "was_cancelled"]

_ASKING = 60.0
"""Seconds in which a provider has to answer that it cancels a batch."""
_READING = 60.0
"""Seconds beyond what a cancelled batch takes to end, in which its results have to be read."""
_AT_ONCE = 8
_PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds between attempts to cancel a batch."""
_MARK = "cancelled"


@dataclass(frozen=True, slots=True)
class CancelledBatch:
    """What became of a batch. ``batch_id`` is the provider's name for it, ``riding`` how many lines waited for it.

    ``outcome``: ``"cancelled"`` at its provider, and what it had answered is in the ledger where that was wanted,
    unless ``note`` says otherwise; ``"unsent"``, there was nothing to cancel; ``"left"``, it could not be
    cancelled, and ``note`` says why.
    """

    provider: str
    route: str
    batch_id: str | None
    riding: int
    outcome: Literal["cancelled", "unsent", "left"]
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Cancellation:
    """``lines`` had no end and got none any more; ``collected`` were answered by batches before these ended."""

    lines: int
    collected: int
    batches: tuple[CancelledBatch, ...]


async def cancel_job(
    store: JobStore,
    job: JobRecord,
    desk: BatchDesk | None,
    *,
    collect: bool,
    wall: Callable[[], float] = wall,
    on_over: Callable[[BatchRecord], object] = lambda record: None,
) -> Cancellation:
    """End a job that nobody runs; whoever calls holds its lock.

    Its open batches are cancelled at their providers. With ``collect`` what they had answered is taken in, which
    takes as long as they need to end. Then the lines of a submitted job that have no end get one, the error
    ``cancelled``. Those of an awaited job are forgotten, so that a program that asks again is answered.
    ``on_over`` is told of each batch.

    Interrupted, it can be called again. Raises JobError where the ledger cannot be used.
    """
    before = (await in_thread(store.tally, job.id)).ended
    turns = asyncio.Semaphore(_AT_ONCE)

    async def cancel(record: BatchRecord) -> CancelledBatch:
        async with turns:
            cancelled, route = await _cancel(store, job, record, desk)
        if collect and route is not None and desk is not None:
            return await _collect(store, job, cancelled, await in_thread(_again, store, record), route, desk)
        return cancelled

    records = await in_thread(store.batches.unfinished, job.id)
    batches = await asyncio.gather(*(cancel(record) for record in records))
    for record, batch in zip(records, batches, strict=True):
        await in_thread(_give_up, store, record, batch.note or "its job was cancelled", wall())
        on_over(await in_thread(store.batches.get, record.id))
    collected = (await in_thread(store.tally, job.id)).ended - before
    return Cancellation(await in_thread(_end_lines, store, job), collected, tuple(batches))


async def _cancel(
    store: JobStore, job: JobRecord, record: BatchRecord, desk: BatchDesk | None
) -> tuple[CancelledBatch, BatchRoute | None]:
    """Cancel a batch at its provider. Returns its route too, where there is something to collect."""
    told = CancelledBatch(record.provider, record.route, record.batch_id, record.riding, "unsent")
    if record.state not in ("creating", "submitted"):
        return told, None
    route = route_of(record, desk)
    if isinstance(route, str):
        return replace(told, outcome="left", note=route), None
    assert desk is not None
    try:
        async with asyncio.timeout(_ASKING):
            batch_id = record.batch_id or await HandIn(store, job, record, route, desk).find(at_once=True)
            if batch_id is None:
                return told, None
            told = replace(told, batch_id=batch_id)
            await _ask(desk, route, batch_id)
    except BatchNotFound:
        return replace(told, outcome="left", note="its provider does not know it any more"), None
    except (BatchBusy, BatchRefused, ConnectionFailed) as error:
        return replace(told, outcome="left", note=str(error)), None
    except TimeoutError:
        return replace(told, outcome="left", note=f"its provider did not answer in {_ASKING:.0f} s"), None
    return replace(told, outcome="cancelled"), route


def route_of(record: BatchRecord, desk: BatchDesk | None) -> BatchRoute | str:
    """Return the way to a batch that was made earlier, or why the settings do not lead to it any more."""
    route = None if desk is None else desk.reopened(record)
    if route is None:
        return f"[providers.{record.provider}] with its key is not set"
    if route.fingerprint != record.account:
        return f"it was made with another key of [providers.{record.provider}] ({record.account})"
    if record.origin not in (None, route.account.place):
        return f"it is at {record.origin}, and [providers.{record.provider}] is at {route.account.place} now"
    return route


async def _ask(desk: BatchDesk, route: BatchRoute, batch_id: str) -> None:
    """Ask for the end of a batch, a few times where the provider does not answer."""
    client, pauses, heard = desk.client(route), iter(_PAUSES), False
    while True:
        try:
            await client.cancel(batch_id)
            return
        except (BatchBusy, ConnectionFailed) as error:
            if (pause := next(pauses, None)) is None:
                raise
            heard = True
            await desk.sleep(max(pause, getattr(error, "retry_after", 0.0)))
        except BatchRefused as error:
            if isinstance(error, BatchNotFound) or not heard:
                raise
            return  # it is being cancelled already


async def _collect(
    store: JobStore, job: JobRecord, told: CancelledBatch, record: BatchRecord, route: BatchRoute, desk: BatchDesk
) -> CancelledBatch:
    """Take in what a cancelled batch had answered, as soon as it has ended."""
    carrier = Carrier(store, job, record, route, desk, _Patiently())
    try:
        async with asyncio.timeout(route.outlet().settling + _READING):
            await carrier.run()
    except TimeoutError:
        return replace(told, note="it did not end in time; what it had answered was not collected")
    except JobError as error:
        return replace(told, note=str(error))
    return told


class _Patiently:
    """Waits for a batch, and lets none of its lines go."""

    def bounds(self) -> Escalation | None:
        return None

    def is_awaited(self) -> bool:
        return True

    def is_wanted(self) -> bool:
        return True

    def refused(self, why: str) -> None:
        pass

    def fails(self, what: str, why: str, until: float | None) -> None:
        pass

    def works(self, what: str) -> None:
        pass

    def ended(self, numbers: Sequence[int], count: int, *, late: bool) -> None:
        pass

    def over(self, record: BatchRecord) -> None:
        pass

    def released(self) -> None:
        pass


def _again(store: JobStore, record: BatchRecord) -> BatchRecord:
    return next((one for one in store.batches.unfinished(record.job) if one.id == record.id), record)


def _give_up(store: JobStore, record: BatchRecord, note: str, now: float) -> None:
    """Wait no longer for a batch, where it is not over."""
    if any(one.id == record.id for one in store.batches.unfinished(record.job)):
        store.batches.abandon(record.id, note, now)


def _end_lines(store: JobStore, job: JobRecord) -> int:
    if job.kind == "awaited":
        return store.awaited.forget(job.id)
    store.stop(job.id, _MARK)
    store.seal(job.id)
    return store.fail_rest(job.id, LineError("cancelled", "the job was cancelled before this line was answered"))


def was_cancelled(job: JobRecord) -> bool:
    """Return whether a job has ended because somebody cancelled it."""
    return job.state == "ended" and job.stopped == _MARK
