"""Forgets a job that has ended: its files at providers, and its requests and answers in the ledger."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from orchestra.batches import BatchBusy, BatchDesk, BatchNotFound, BatchRefused, BatchRoute
from orchestra.errors import ConnectionFailed, JobError
from orchestra.jobs.diversion.cancelling import route_of
from orchestra.jobs.ledger.record import BatchRecord, JobRecord
from orchestra.jobs.ledger.store import JobStore
from orchestra.jobs.ledger.threads import in_thread

__all__ = ["Deletion", "delete_job"]

_ASKING = 60.0
"""Seconds in which a provider has to delete the files of a batch."""
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Deletion:
    """What was forgotten: ``lines`` of the ledger, and ``files`` at providers.

    ``left`` says of each batch whose files could not be deleted why they stay there. ``compacted`` is False where
    the ledger's file keeps its size: another process writes it, or the disk is full. Jobs to come use the room.
    """

    lines: int
    files: int
    left: tuple[str, ...]
    compacted: bool


async def delete_job(store: JobStore, job: JobRecord, desk: BatchDesk | None) -> Deletion:
    """Delete a job that nobody runs; whoever calls holds its lock.

    The files first, while the ledger knows them: interrupted, it can be called again. Raises JobError where lines
    of the job may still be answered, and where the ledger cannot be used.
    """
    tally = await in_thread(store.tally, job.id)
    if await in_thread(store.batches.unfinished, job.id):
        raise JobError(f"job {job.name!r} has open batches: `orchestra jobs cancel {job.name}` ends them")
    if job.state != "ended" and (tally.pending or job.kind != "awaited"):
        raise JobError(
            f"job {job.name!r} has not ended: `orchestra jobs resume {job.name}` goes on with it, "
            f"`orchestra jobs cancel {job.name}` ends it; then it can be deleted"
        )
    turns = asyncio.Semaphore(_AT_ONCE)

    async def delete(record: BatchRecord) -> int | str:
        async with turns:
            return await _delete_files(record, desk)

    records = await in_thread(store.batches.of_job, job.id)
    told = await asyncio.gather(*(delete(record) for record in records))
    await in_thread(store.discard, job.id)
    return Deletion(
        lines=tally.total,
        files=sum(files for files in told if isinstance(files, int)),
        left=tuple(
            f"{record.batch_id or record.file_id} by {record.route}: {why}"
            for record, why in zip(records, told, strict=True)
            if isinstance(why, str)
        ),
        compacted=await in_thread(store.database.compact),
    )


async def _delete_files(record: BatchRecord, desk: BatchDesk | None) -> int | str:
    """Delete what a batch was made of and what came of it. Returns how many files, or why they stay.

    One that is over for us and not for its provider is ended first.
    """
    if record.file_id is None and (record.batch_id is None or record.state == "ended"):
        return 0  # its lines went without a file, as its results come, or were never handed in
    route = route_of(record, desk)
    if isinstance(route, str):
        return route
    assert desk is not None
    try:
        async with asyncio.timeout(_ASKING):
            return await _ask(record, route, desk)
    except (BatchBusy, BatchRefused, ConnectionFailed) as error:
        return str(error)
    except TimeoutError:
        return f"its provider did not answer in {_ASKING:.0f} s"


async def _ask(record: BatchRecord, route: BatchRoute, desk: BatchDesk) -> int | str:
    client = desk.client(route)
    results: tuple[str, ...] = ()
    if record.batch_id is not None:
        try:
            state = await client.poll(record.batch_id)
            if not state.ended and not (state := await client.cancel(record.batch_id)).ended:
                return "it was still under way, and is being cancelled now: what it brings stays there"
            results = state.files
        except BatchNotFound:
            pass  # with its results
    if record.file_id is None:
        return 0
    for file in (record.file_id, *results):
        await client.delete_file(file)
    return 1 + len(results)
