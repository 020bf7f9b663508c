"""What ``orchestra run`` shows: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TaskID, TextColumn
from rich.text import Text

from orchestra.durations import format_duration

if TYPE_CHECKING:
    from rich.progress import Task

    from orchestra.jobs import Progress as JobProgress
    from orchestra.jobs import Survey

__all__ = ["RunDisplay"]

LINE_EVERY = 10.0
"""Seconds between lines where there is no terminal."""

REASONS_SHOWN = 5


class _State(ProgressColumn):
    """Shows the job's own account of itself, which knows more than a bar does."""

    def render(self, task: Task) -> Text:
        return Text(str(task.fields["state"]))


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
            yield lambda job: bar.update(task, completed=job.done + job.failed, total=job.total, state=_told(job))

    @contextmanager
    def _bar(self, title: str, total: int | None) -> Iterator[tuple[Progress, TaskID]]:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(24), _State())
        bar = Progress(*columns, console=self._messages, transient=True, disable=not self._messages.is_terminal)
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
                self.say(f"{name}: {_told(job)}")

        return show

    def summary(self, job: JobProgress, failures: Sequence[tuple[str, int]], *, seconds: float, out: Path) -> None:
        """Say how a job ended."""
        self._results.print(
            f"{job.done:,} of {job.total:,} lines answered, {job.failed:,} failed; "
            f"{job.input_tokens:,} tokens in, {job.output_tokens:,} out; {format_duration(seconds)}"
        )
        if failures:
            told = ", ".join(f"{code} ({count:,})" for code, count in failures[:REASONS_SHOWN])
            more = f" and {len(failures) - REASONS_SHOWN} other reasons" if len(failures) > REASONS_SHOWN else ""
            self._results.print(f"failed for: {told}{more}; each line has its reason")
        self._results.print(f"results: {out}")

    def survey(self, name: str, survey: Survey, routes: Mapping[str, Sequence[str]]) -> None:
        """Say what a file would ask for."""
        self._results.print(
            f"{name}: {survey.lines:,} lines, about {survey.input_tokens:,} tokens in, "
            f"at most {survey.output_tokens:,} out"
            + (f" and {survey.unbounded:,} lines that set no bound" if survey.unbounded else "")
        )
        for model, count in survey.models.most_common():
            self._results.print(f"  {model}: {count:,} lines, by {', then '.join(routes[model])}")
        if survey.faulty:
            self._results.print(f"  lines that cannot be used and would fail: {survey.faulty:,}")
        local = [route for model in survey.models for route in routes[model] if route.startswith("local/")]
        if local:
            names = ", ".join(dict.fromkeys(local))
            self._results.print(f"  the lengths of prompts for {names} are checked when the run starts its engine")
        self._results.print("nothing was sent")


def _told(job: JobProgress) -> str:
    return f"{job}; waiting: {job.waiting}" if job.waiting else str(job)
