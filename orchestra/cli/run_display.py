"""What ``orchestra run`` shows: a bar and what is below it on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TaskID, TextColumn
from rich.text import Text

from orchestra.cli.job_words import batch_lines, cost_lines, expected_end, forecast_lines, outlet_lines, retriable
from orchestra.clock import wall
from orchestra.durations import format_duration

if TYPE_CHECKING:
    from rich.progress import Task

    from orchestra.config import Config
    from orchestra.jobs import Forecast, Survey
    from orchestra.jobs import Progress as JobProgress

__all__ = ["RunDisplay"]

LINE_EVERY = 10.0
"""Seconds between lines where there is no terminal."""

REASONS_SHOWN = 5


class _State(ProgressColumn):
    """Shows the job's own account of itself, which knows more than a bar does."""

    def render(self, task: Task) -> Text:
        return Text(str(task.fields["state"]))


class _Board(Progress):
    """A bar, and lines of text below it."""

    below: Sequence[str] = ()

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        for line in self.below:
            yield Text(f"  {line}", style="dim", no_wrap=True, overflow="ellipsis")


class RunDisplay:
    """Messages and progress go to stderr, the summary to stdout."""

    def __init__(self) -> None:
        self._messages = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self._results = Console(highlight=False, markup=False, soft_wrap=True)

    def say(self, sentence: str) -> None:
        self._messages.print(sentence)

    @contextmanager
    def checking(self, size: int) -> Iterator[Callable[[int], None]]:
        """Show how much of a file of ``size`` bytes has been checked."""
        with self._bar("checking", size or 1) as (bar, task):
            yield lambda read: bar.update(task, completed=read, state=f"{read / 1e6:,.1f} MB")

    @contextmanager
    def running(self, name: str) -> Iterator[Callable[[JobProgress], None]]:
        """Show a job's progress."""
        if not self._messages.is_terminal:
            yield self._lines(name)
            return
        with self._bar(name, None) as (bar, task):

            def show(job: JobProgress) -> None:
                bar.below = below_bar(job, wall())
                bar.update(task, completed=job.done + job.failed, total=job.total, state=_told(job))

            yield show

    @contextmanager
    def _bar(self, title: str, total: int | None) -> Iterator[tuple[_Board, TaskID]]:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(24), _State())
        bar = _Board(*columns, console=self._messages, transient=True, disable=not self._messages.is_terminal)
        with bar:
            yield bar, bar.add_task(title, total=total, state="")

    def _lines(self, name: str) -> Callable[[JobProgress], None]:
        due = time.monotonic() + LINE_EVERY
        waiting = False

        def show(job: JobProgress) -> None:
            nonlocal due, waiting
            began, waiting = job.waiting is not None and not waiting, job.waiting is not None
            if began or time.monotonic() >= due:
                due = time.monotonic() + LINE_EVERY
                end = expected_end(job, wall())
                self.say(f"{name}: {_told(job)}" + (f"; {end}" if end is not None else ""))

        return show

    def summary(
        self, job: JobProgress, failures: Sequence[tuple[str, int]], config: Config, *, seconds: float, out: Path
    ) -> None:
        """Say how a job ended."""
        self._results.print(
            f"{job.done:,} of {job.total:,} lines answered, {job.failed:,} failed; "
            f"{job.input_tokens:,} tokens in, {job.output_tokens:,} out; {format_duration(seconds)}"
        )
        if failures:
            told = ", ".join(f"{code} ({count:,})" for code, count in failures[:REASONS_SHOWN])
            again = "; --retry-failed asks them again" if retriable(failures) else ""
            more = f" and {len(failures) - REASONS_SHOWN} other reasons" if len(failures) > REASONS_SHOWN else ""
            self._results.print(f"failed for: {told}{more}; each line has its reason{again}")
        for line in outlet_lines(job):
            self._results.print(f"  {line}")
        for line in cost_lines(job, config):
            self._results.print(line)
        self._results.print(f"results: {out}")

    def forecast(
        self,
        name: str,
        survey: Survey,
        forecast: Forecast,
        routes: Mapping[str, Sequence[str]],
        notes: Sequence[str] = (),
    ) -> None:
        """Say what a file would ask for, where that would go and what it would cost."""
        for line in forecast_lines(name, survey, forecast, routes):
            self._results.print(line)
        for note in notes:
            self._results.print(note)
        self._results.print("nothing was sent")


def _told(job: JobProgress) -> str:
    return f"{job}; waiting: {job.waiting}" if job.waiting else str(job)


def below_bar(job: JobProgress, now: float) -> list[str]:
    """Return what stands below the bar: where lines went, which batches are open, and when it ends."""
    end = expected_end(job, now)
    several = len(job.outlets) > 1 or job.batches or job.usd_per_million
    told = [*outlet_lines(job)] if several else []
    return [*told, *batch_lines(job.batches, now), *([] if end is None else [end])]
