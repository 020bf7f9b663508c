"""How the demo shows that it is alive: the phase, the questions, and the bulk job with its rate and time left."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from orchestra.cli.demo.measure import Watcher

if TYPE_CHECKING:
    from rich.console import Console

    from orchestra import Job

__all__ = ["Display"]

LINE_EVERY = 15.0
"""Seconds between lines where there is no terminal."""


class Display:
    """Progress bars on a terminal; elsewhere a line for each phase, and now and then one on the job."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._console = console
        self._told = time.monotonic()
        self._bars = Progress(
            TextColumn("    {task.description:24}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._questions = self._bars.add_task("questions answered", total=None, visible=False, note="")
        self._lines = self._bars.add_task("bulk lines answered", total=None, visible=False, note="")

    def watcher(self) -> Watcher:
        return Watcher(phase=self._phase, asked=self._asked, bulk=self._bulk)

    def _phase(self, text: str) -> None:
        self._console.print(f"[bold]==>[/] {text}", highlight=False)

    def _asked(self, answered: int, total: int) -> None:
        self._bars.update(self._questions, completed=answered, total=total, visible=True)

    def _bulk(self, job: Job) -> None:
        progress = job.progress()
        if not self._console.is_terminal:
            if progress.rate is not None and time.monotonic() - self._told >= LINE_EVERY:
                self._told = time.monotonic()
                self._console.print(f"    {progress}", highlight=False)
            return
        # the counts stand in their own column
        _, _, note = str(progress).partition(", ")
        self._bars.update(
            self._lines, completed=progress.done + progress.failed, total=progress.total, visible=True, note=note
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()
