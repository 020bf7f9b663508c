"""Follows a job to its end, for the commands that run one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from orchestra.cli.job_words import retriable, within_limits

if TYPE_CHECKING:
    from orchestra.cli.run_display import RunDisplay
    from orchestra.client import Orchestra
    from orchestra.jobs import Job, Progress

__all__ = ["Following", "over", "watched"]

TICK = 0.1
POOLS_TICK = 1.0
T = TypeVar("T")


class Following:
    """Shows a job as it goes on, and writes its results to ``out``.

    ``again`` is what to do to go on with one that was interrupted.
    """

    def __init__(self, display: RunDisplay, out: Path, *, again: str = "the same command") -> None:
        self._display = display
        self._out = out
        self._again = again
        self._job: Job | None = None
        self._last: Progress | None = None
        self._pools: Sequence[Mapping[str, Any]] = ()
        self._pools_until = 0.0

    async def follow(self, orc: Orchestra, job: Job) -> int:
        """Wait for the job's end, and write and tell what came of it. Returns the exit code."""
        from orchestra.errors import JobError
        from orchestra.jobs import was_cancelled, write_output

        self._job = job
        began = time.monotonic()
        progress = self._look()
        if was_cancelled(job.record):
            self._display.say(
                f"job {job.name}: was cancelled; nothing is asked again; --retry-failed asks what has no answer"
            )
        elif progress.ended:
            failures = await asyncio.to_thread(orc.jobs.store.failures, job.record.id)
            self._display.say(f"job {job.name}: {over(progress, failures)}")
        elif progress.done + progress.failed or progress.batches:
            self._display.say(f"job {job.name}: going on after {progress}")
        try:
            with self._display.running(job.name) as show:
                progress = await watched(job.wait(), lambda: show(self._within_limits(self._look(), orc)))
        except asyncio.CancelledError:
            self._look()  # the last one is a moment old
            raise
        except JobError as error:
            self._display.say(f"orchestra: {error}".replace("submit it again", f"run {self._again} again"))
            return 1
        await asyncio.to_thread(write_output, orc.jobs.store, job.record, self._out)
        failures = await asyncio.to_thread(orc.jobs.store.failures, job.record.id)
        self._display.summary(progress, failures, orc.config, seconds=time.monotonic() - began, out=self._out)
        return 1 if progress.failed else 0

    def farewell(self) -> str:
        """Return what to say to someone who interrupted it."""
        if self._job is None or self._last is None:
            return "interrupted before anything was sent"
        so_far = within_limits(self._last, self._pools, self._job.name)
        told = f"interrupted ({so_far}); {self._again} goes on with job {self._job.name!r}"
        sent = [batch for batch in self._last.batches if batch.state in ("creating", "submitted")]
        if sent:
            whose = "1 batch goes" if len(sent) == 1 else f"{len(sent)} batches go"
            it = "it" if len(sent) == 1 else "them"
            told += (
                f"\n{whose} on at the provider meanwhile, and {self._again} takes {it} up; "
                f"`orchestra jobs cancel {self._job.name}` ends {it}"
            )
        return told

    def _look(self) -> Progress:
        assert self._job is not None
        self._last = self._job.progress()
        return self._last

    def _within_limits(self, progress: Progress, orc: Orchestra) -> Progress:
        """Return the job's progress as the budget lets it go on."""
        assert self._job is not None
        now = time.monotonic()
        if now >= self._pools_until:
            self._pools_until = now + POOLS_TICK
            self._pools = orc.snapshot()["pools"]
        return within_limits(progress, self._pools, self._job.name)


def over(progress: Progress, failures: Iterable[tuple[str, int]]) -> str:
    """Say of a job that has ended how it did, and what can be done about it."""
    if not progress.failed:
        return "answered already; nothing is asked again"
    told = f"ended already: {progress.done:,} of {progress.total:,} answered, {progress.failed:,} failed"
    return f"{told}; --retry-failed asks them again" if retriable(failures) else f"{told}, which cannot be asked"


async def watched(work: Coroutine[Any, Any, T], look: Callable[[], None]) -> T:
    """Return what ``work`` does, and ``look`` at it while it goes on."""
    task = asyncio.create_task(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=TICK)
            look()
        return await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
