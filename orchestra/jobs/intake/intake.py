"""Brings a job's lines into the ledger, or finds that they are there already."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from orchestra.errors import JobError, OrchestraError
from orchestra.jobs.intake.sources import Chunk
from orchestra.jobs.ledger.record import JobRecord
from orchestra.jobs.ledger.store import JobStore
from orchestra.jobs.ledger.threads import in_thread

__all__ = ["Intake"]


class Intake:
    """Takes in ``chunks``, the input of a job from the line after number ``after`` to its end.

    Lines that the ledger has must be the same again; those after them are added, unless the job is complete. So an
    interrupted intake goes on where it was, and a job cannot be mistaken for another.
    """

    def __init__(
        self, store: JobStore, job: JobRecord, chunks: AsyncGenerator[Chunk, None], *, after: int = 0
    ) -> None:
        self._store = store
        self._job = job
        self._chunks = chunks
        self._known = store.last_number(job.id)
        self._at = after

    @property
    def at(self) -> int:
        """The number of the last line that was taken in, or compared."""
        return self._at

    @property
    def comparing(self) -> bool:
        """Whether the next line is one that the ledger has."""
        return self._at < self._known

    async def step(self) -> bool:
        """Take in a chunk. Returns whether there was one; after the last, the job is complete.

        Raises JobError where the input is not the job's.
        """
        try:
            chunk = await anext(self._chunks, None)
        except OrchestraError:
            raise
        except Exception as error:
            raise JobError(f"its requests could not be read: {error!r}") from error
        await in_thread(self._take, chunk or [], end=chunk is None)
        return chunk is not None

    async def aclose(self) -> None:
        await self._chunks.aclose()

    def _take(self, chunk: Chunk, *, end: bool) -> None:
        new = [entry for entry in chunk if entry.number > self._known]
        if self.comparing and (chunk or end):
            upto = self._known if new or end else chunk[-1].number
            old = chunk[: len(chunk) - len(new)]
            self._refuse(self._store.first_difference(self._job.id, old, after=self._at, upto=upto))
        if new and self._job.state != "loading":
            self._refuse(new[0].number)
        if new:
            self._store.add(self._job.id, new)
        if chunk:
            self._at = chunk[-1].number
        if end:
            self._store.seal(self._job.id)

    def _refuse(self, number: int | None) -> None:
        if number is not None:
            raise JobError(
                f"job {self._job.name!r} exists already with other requests or another model: line {number} is "
                "not the same; give this work another name (--job), or use the input that the job began with"
            )
