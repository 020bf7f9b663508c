"""A durable bulk job, as the program that submitted it holds it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Protocol

from orchestra.clock import REAL_TIME, Clock
from orchestra.errors import JobError
from orchestra.jobs.ledger.record import BatchRecord, JobRecord, Result, Tally
from orchestra.jobs.ledger.store import JobStore
from orchestra.jobs.progress.progress import MachineCost, OpenBatch, Progress, RateMeter

__all__ = ["Job"]

PAGE_LINES = 256
PAGE_BYTES = 4 << 20


class _Page(Protocol):
    def __call__(self, job: int, after: int, *, max_lines: int, max_bytes: int) -> list[Result]: ...


class Watch(Protocol):
    """What a run knows of itself that the ledger does not."""

    def waiting(self) -> str | None:
        """Return why nothing but a try is sent just now; None where all goes well."""
        ...

    def seconds_for(self, lines: int) -> float | None:
        """Return how long so many lines take that go by themselves, by how it went lately; None if unknown."""
        ...

    def looks(self) -> Mapping[int, float]:
        """Return when each batch is looked at next (unix time), by its id, as far as that is known."""
        ...


class Job:
    """A job in the ledger: its progress and its results, and its end if this process runs it.

    Iterating yields each line's result once it has ended, in the order in which they ended, those of earlier
    runs first; any number of tasks may iterate at once, each from the beginning. Where the job stops before its
    end, iterating and `wait` raise the JobError that says why. Results are read from the ledger as they are asked
    for, so a slow reader costs no memory.
    """

    def __init__(
        self,
        store: JobStore,
        record: JobRecord,
        *,
        dollars_per_hour: Mapping[str, float] | None = None,
        clock: Clock = REAL_TIME,
    ) -> None:
        self._store = store
        self._record = record
        self._dollars_per_hour = dollars_per_hour or {}
        self._clock = clock
        self._meter: RateMeter | None = None
        self._machines: MachineCost | None = None
        self._watch: Watch | None = None
        self._task: asyncio.Task[None] | None = None
        self._tick = asyncio.Event()
        self._over = asyncio.Event()
        self._error: JobError | None = None
        if record.state != "ended":
            self._error = JobError(
                f"job {record.name!r} is not run by this process; submit it again to go on with it"
            )

    @property
    def name(self) -> str:
        return self._record.name

    @property
    def record(self) -> JobRecord:
        """What the ledger said of the job when it was submitted."""
        return self._record

    def __repr__(self) -> str:
        try:
            return f"<Job {self.name!r}: {self.progress()}>"
        except JobError:  # its store was closed
            return f"<Job {self.name!r}>"

    def progress(self) -> Progress:
        """Return where the job stands, by the ledger."""
        id, now = self._record.id, self._clock.monotonic()
        ledger, watch = self._store.batches, self._watch
        # in this order: of a batch that ends meanwhile lines are told twice rather than not at all
        batches, tally, outlets = ledger.unfinished(id), self._store.tally(id), self._store.outlets(id)
        rate = self._meter.rate(now) if self._meter is not None else None
        looks = watch.looks() if watch is not None else {}
        waiting = watch.waiting() if watch is not None else None
        usual = {outlet: ledger.p90(outlet) for outlet in {record.outlet for record in batches}}
        open_batches = tuple(
            _open_batch(record, usual[record.outlet], looks.get(record.id), self._clock) for record in batches
        )
        return Progress(
            total=tally.total,
            done=tally.done,
            failed=tally.failed,
            input_tokens=tally.input_tokens,
            output_tokens=tally.output_tokens,
            whole=tally.whole,
            rate=rate,
            seconds_left=None if waiting else self._seconds_left(tally, open_batches, now),
            waiting=waiting,
            deadline=self._record.deadline,
            usd=tally.usd,
            unpriced=tally.unpriced,
            outlets=tuple(outlets),
            batches=open_batches,
            left_batches=ledger.released(id),
            usd_per_million=self._machines.look(now, outlets) if self._machines is not None else {},
        )

    def _seconds_left(self, tally: Tally, batches: tuple[OpenBatch, ...], instant: float) -> float | None:
        """Return how long it takes still: what goes by itself, and the last batch. None where nobody knows."""
        now = self._clock.wall()
        if not batches:
            return None if self._meter is None else self._meter.seconds_for(tally.pending, instant)
        ends = [batch.expected for batch in batches if batch.riding]
        alone = max(0, tally.pending - sum(batch.riding for batch in batches))
        by_themselves = self._watch.seconds_for(alone) if alone and self._watch is not None else None
        if any(end is None or end <= now for end in ends) or (alone and by_themselves is None):
            return None
        left = [end - now for end in ends if end is not None]
        return max([*left, by_themselves or 0.0])

    async def __aiter__(self) -> AsyncIterator[Result]:
        after = 0
        while True:
            # both taken before the ledger is read: what comes between makes us read it again
            tick, over = self._tick, self._over.is_set() or self._task is None
            async for result in self._pages(self._store.completed, after, lambda result: result.ended):
                after = result.ended
                yield result
            if over:
                if self._error is not None:
                    raise self._error
                return
            await tick.wait()

    async def in_order(self) -> AsyncGenerator[Result, None]:
        """Yield each line's result in input order, as soon as it and all before it have ended.

        Raises the JobError that says why where the job stops before its end.
        """
        at = 0
        while True:
            tick, over = self._tick, self._over.is_set() or self._task is None
            async for result in self._pages(self._store.results, at, lambda result: result.number):
                if result.number != at + 1 and not over:
                    break  # one before it has not ended yet
                at = result.number
                yield result
            if over:
                if self._error is not None:
                    raise self._error
                return
            await tick.wait()

    async def results(self) -> AsyncIterator[Result]:
        """Yield the results that there are, in input order."""
        async for result in self._pages(self._store.results, 0, lambda result: result.number):
            yield result

    async def _pages(self, read: _Page, after: int, place: Callable[[Result], int]) -> AsyncIterator[Result]:
        while page := await asyncio.to_thread(
            read, self._record.id, after, max_lines=PAGE_LINES, max_bytes=PAGE_BYTES
        ):
            for result in page:
                yield result
            after = place(page[-1])

    async def wait(self) -> Progress:
        """Wait until every line has an end. Raises JobError where the job stopped before."""
        if self._task is not None:
            await self._over.wait()
        if self._error is not None:
            raise self._error
        return self.progress()

    async def cancel(self) -> None:
        """Stop. Lines under way are given up and stay pending; submit the job again to go on with it."""
        if self._task is not None and not self._over.is_set():
            await asyncio.sleep(0)  # a task that never began could not clean up
            self._task.cancel()
            await self._over.wait()

    # for the manager, which runs the job

    def start(
        self,
        run: Coroutine[Any, Any, None],
        *,
        finished: Callable[[], None],
        watch: Watch,
    ) -> None:
        """Run the job in a task of its own, and call ``finished`` when that is over, however it ended.

        ``watch`` is asked how it goes, as long as it runs.
        """

        def over(task: asyncio.Task[None]) -> None:
            self._watch = None
            self._error = self._told(task)
            finished()
            self._over.set()
            self._wake()

        self._meter = RateMeter(self._clock.monotonic())
        if self._dollars_per_hour:
            outlets = self._store.outlets(self._record.id)
            self._machines = MachineCost(self._dollars_per_hour, self._clock.monotonic(), outlets)
        self._watch = watch
        self._error = None
        self._task = asyncio.create_task(run, name=f"orchestra job {self.name}")
        self._task.add_done_callback(over)

    def note_ended(self, count: int) -> None:
        """Count lines that have ended, and wake those who wait for results."""
        if self._meter is not None:
            self._meter.add(self._clock.monotonic(), count)
        self._wake()

    def _wake(self) -> None:
        self._tick.set()
        self._tick = asyncio.Event()

    def _told(self, task: asyncio.Task[None]) -> JobError | None:
        """Return how the task ended as the error that users see."""
        if task.cancelled():
            return JobError(f"job {self.name!r} was cancelled; submit it again to go on with it")
        fault = task.exception()
        if fault is None or isinstance(fault, JobError):
            return fault
        error = JobError(f"job {self.name!r} stopped by a fault of ours: {fault!r}")
        error.__cause__ = fault
        return error


def _open_batch(record: BatchRecord, usual: float | None, next_look: float | None, clock: Clock) -> OpenBatch:
    """Return what progress tells of a batch. ``usual`` is how long such batches take."""
    return OpenBatch(
        id=record.id,
        route=record.route,
        provider=record.provider,
        account=record.account,
        state=record.state,
        status=record.status,
        batch_id=record.batch_id,
        lines=record.lines,
        riding=record.riding,
        opened=record.opened,
        expected=None if usual is None else (record.submitted_at or clock.wall()) + usual,
        next_look=next_look,
    )
