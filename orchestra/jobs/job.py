"""A durable bulk job, as the program that submitted it holds it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol

from orchestra.errors import JobError
from orchestra.jobs.progress import Progress, RateMeter
from orchestra.jobs.record import JobRecord, Result
from orchestra.jobs.store import JobStore

__all__ = ["Job"]

PAGE_LINES = 256
PAGE_BYTES = 4 << 20


class _Page(Protocol):
    def __call__(self, job: int, after: int, *, max_lines: int, max_bytes: int) -> list[Result]: ...


class Job:
    """A job in the ledger: its progress and its results, and its end if this process runs it.

    Iterating yields each line's result once it has ended, in the order in which they ended, those of earlier
    runs first; any number of tasks may iterate at once, each from the beginning. Where the job stops before its
    end, iterating and `wait` raise the JobError that says why. Results are read from the ledger as they are asked
    for, so a slow reader costs no memory.
    """

    def __init__(self, store: JobStore, record: JobRecord) -> None:
        self._store = store
        self._record = record
        self._meter: RateMeter | None = None
        self._waiting: Callable[[], str | None] = _not_waiting
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
        return f"<Job {self.name!r}: {self.progress()}>"

    def progress(self) -> Progress:
        """Return where the job stands, by the ledger."""
        tally = self._store.tally(self._record.id)
        rate = self._meter.rate(time.monotonic()) if self._meter is not None else None
        return Progress(
            total=tally.total,
            done=tally.done,
            failed=tally.failed,
            input_tokens=tally.input_tokens,
            output_tokens=tally.output_tokens,
            whole=tally.whole,
            rate=rate,
            seconds_left=tally.pending / rate if rate else None,
            waiting=self._waiting(),
        )

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
        waiting: Callable[[], str | None],
    ) -> None:
        """Run the job in a task of its own, and call ``finished`` when that is over, however it ended.

        ``waiting`` is asked why it stands still, as long as it runs.
        """

        def over(task: asyncio.Task[None]) -> None:
            self._waiting = _not_waiting
            self._error = self._told(task)
            finished()
            self._over.set()
            self._wake()

        self._meter = RateMeter(time.monotonic())
        self._waiting = waiting
        self._error = None
        self._task = asyncio.create_task(run, name=f"orchestra job {self.name}")
        self._task.add_done_callback(over)

    def note_ended(self, count: int) -> None:
        """Count lines that have ended, and wake those who wait for results."""
        if self._meter is not None:
            self._meter.add(time.monotonic(), count)
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


def _not_waiting() -> None:
    return None
