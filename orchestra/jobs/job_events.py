"""Tells of durable jobs and their batches."""

from __future__ import annotations

from typing import Any

from orchestra.clock import Clock
from orchestra.jobs.ledger.record import BatchRecord, JobRecord, Tally
from orchestra.observe.events import Event, EventBus, EventKind
from orchestra.policies.traffic import TrafficClass
from orchestra.providers import operation_at

__all__ = ["JobEvents"]


class JobEvents:
    """Tells ``bus``, where anybody listens, what happens to jobs: see `orchestra.observe.events`."""

    def __init__(self, bus: EventBus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock

    @property
    def listening(self) -> bool:
        """Whether anybody wants to know."""
        return self._bus.listening

    def began(self, job: JobRecord) -> None:
        """Tell that a job begins to run, or goes on."""
        left = None if job.deadline is None else job.deadline - self._clock.wall()
        self._tell("job_began", job, time_left=left)

    def ended(self, job: JobRecord, tally: Tally, lasted: float) -> None:
        """Tell that a job is over, or stops before, after it ran for so many seconds."""
        self._tell(
            "job_ended",
            job,
            reason=None if tally.whole and not tally.pending else "stopped",
            lines=tally.total,
            input_tokens=tally.input_tokens,
            output_tokens=tally.output_tokens,
            usd=tally.usd,
            duration=lasted,
        )

    def batch_ended(self, job: JobRecord, batch: BatchRecord) -> None:
        """Tell that a batch is over. One that never got a line is none."""
        if not batch.lines:
            return
        ended, handed_in = batch.ended_at or self._clock.wall(), batch.submitted_at
        self._tell(
            "batch_ended",
            job,
            call=f"batch-{batch.key}",
            route=batch.route,
            operation=operation_at(batch.path),
            reason="given up" if batch.state == "abandoned" else None,
            lines=batch.lines,
            answered=batch.lines - batch.released,
            waited=None if handed_in is None else max(0.0, handed_in - batch.opened),
            duration=max(0.0, ended - (batch.opened if handed_in is None else handed_in)),
        )

    def _tell(self, kind: EventKind, job: JobRecord, *, call: str = "", **fields: Any) -> None:
        if self._bus.listening:
            at, traffic = self._clock.monotonic(), TrafficClass.BULK
            self._bus.emit(
                Event(kind=kind, call=call, traffic=traffic, at=at, model=job.model, job=job.name, **fields)
            )
