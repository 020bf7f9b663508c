"""One run of a job: its lines come in, are dealt, ride or go by themselves, and end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from orchestra.batches import BatchDesk
from orchestra.clock import REAL_TIME, Clock
from orchestra.dispatch import Outage
from orchestra.jobs.diversion.diversion import Diversion
from orchestra.jobs.intake.intake import Intake
from orchestra.jobs.job_riders import JobRiders
from orchestra.jobs.ledger.record import BatchRecord, JobRecord
from orchestra.jobs.ledger.store import JobStore
from orchestra.jobs.ledger.threads import first_of
from orchestra.jobs.sending.patience import Patience
from orchestra.jobs.sending.runner import Price, Runner, Send

__all__ = ["JobRun"]

_GRACE = 1.0
"""Seconds after the deadline in which what batches bring is still taken in."""
_LATE_GRACE = 300.0
"""The same where the job is taken up after its deadline: batches may have ended since, and are paid for."""


class JobRun:
    """Runs one job, once. ``rest`` are the lines that are still to come; ``on_batch_over`` is told of each batch.

    Lines ride in batches where the job has a deadline, and a ``desk`` that takes them; and batches that an earlier
    run left open are carried to their end. Else every line goes by itself, as fast as the budget lets it.
    """

    def __init__(
        self,
        store: JobStore,
        job: JobRecord,
        send: Send,
        desk: BatchDesk | None,
        rest: Intake | None,
        *,
        window: int,
        patience: Patience,
        price: Price,
        outage: Callable[[], Outage | None] = lambda: None,
        on_ended: Callable[[int], None],
        on_batch_over: Callable[[BatchRecord], object] = lambda record: None,
        clock: Clock = REAL_TIME,
    ) -> None:
        diverts = desk is not None and (job.deadline is not None or bool(store.batches.unfinished(job.id)))
        self._rest = rest
        self._runner = runner = Runner(
            store,
            job,
            send,
            window=window,
            patience=patience,
            price=price,
            outage=outage,
            alone=diverts,
            on_ended=on_ended,
            last_chance=self._wind_up,
            clock=clock,
        )
        self._diversion: Diversion | None = None
        self._diverting: asyncio.Task[None] | None = None
        self._grace = 0.0
        if desk is not None and diverts:
            self._grace = _GRACE if job.deadline is None or desk.wall() < job.deadline else _LATE_GRACE
            riders = JobRiders(
                job,
                desk,
                rate=runner.pace,
                on_ended=on_ended,
                on_overtaken=runner.forgo,
                on_released=runner.rewind,
            )
            self._diversion = Diversion(store, job, desk, riders, on_over=on_batch_over)

    def waiting(self) -> str | None:
        """Return why nothing but a try is sent, until when, and what then; None where all goes well."""
        return self._runner.waiting() or (None if self._diversion is None else self._diversion.waiting())

    def seconds_for(self, lines: int) -> float | None:
        """Return how long so many lines take that go by themselves, by how it went lately; None if unknown."""
        return self._runner.seconds_for(lines)

    def looks(self) -> Mapping[int, float]:
        """Return when each batch is looked at next (unix time), by its id, as far as that is known."""
        return {} if self._diversion is None else self._diversion.looks()

    async def run(self) -> None:
        """Run until every line has an end. Raises JobError where that cannot be, and OrchestraError."""
        try:
            async with asyncio.TaskGroup() as group:
                if self._diversion is not None:
                    self._diverting = group.create_task(self._diversion.run())
                group.create_task(self._runner.run())
                group.create_task(self._feed())
        except BaseExceptionGroup as faults:
            raise first_of(faults) from None
        finally:
            if self._rest is not None:
                await self._rest.aclose()
        if self._diversion is not None and self._diversion.stuck is not None:
            raise self._diversion.stuck  # now that nothing else is left to do

    async def _feed(self) -> None:
        """Let the lines in, and say when the last is where it goes."""
        runner, diversion = self._runner, self._diversion
        while self._rest is not None and await self._rest.step():
            runner.stir()
            if diversion is not None:
                diversion.stir()
        if diversion is not None and self._diverting is not None:
            diversion.complete = True
            diversion.stir()
            await asyncio.wait({self._diverting})
        runner.loaded = True
        runner.stir()

    async def _wind_up(self) -> None:
        """The deadline has passed: let batches that have ended give what they have, and forget the others."""
        diversion, diverting = self._diversion, self._diverting
        if diversion is None or diverting is None:
            return
        diversion.complete = True
        diversion.stir()
        await asyncio.wait({diverting}, timeout=self._grace)
        if not diverting.done():
            diverting.cancel()
            await asyncio.wait({diverting})
        if diversion.stuck is not None or diverting.cancelled():
            await diversion.abandon("the deadline has passed")
