"""``orchestra top``: what the running programs of this user do, live."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from orchestra.observe.history import History

__all__ = ["top"]


def top(
    pid: Annotated[int | None, typer.Option("--pid", metavar="N", min=1, help="Only this process.")] = None,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.1, max=60.0, help="How often it looks.")
    ] = 1.0,
    looks: Annotated[
        int | None,
        typer.Option("--looks", metavar="N", min=1, help="Look so many times, then print one screen and end."),
    ] = None,
) -> None:
    """Show what running programs do, live: who waits and why, limits, engines, routes, jobs, batches.

    It looks in as `orchestra status` does, and draws the last five minutes of what it has seen. Ctrl-C ends it.
    Where the output is no terminal it looks twice and prints one screen: `orchestra top --pid 4242 > seen.txt`.
    Exit code 1 where nothing is running then, or there is no such process.
    """
    from rich.console import Console
    from rich.live import Live

    from orchestra.cli.status import look
    from orchestra.observe.history import History

    if pid is not None and not look(pid)["processes"]:
        typer.echo(f"there is no process {pid} to be seen", err=True)
        raise typer.Exit(1)
    console, history = Console(highlight=False, markup=False), History()
    try:
        if console.is_terminal and looks is None:
            with Live(console=console, screen=True, auto_refresh=False) as live:
                while True:
                    live.update(_look(console, history, pid, every, console.height)[0], refresh=True)
                    time.sleep(every)
        for number in range(looks or 2):
            if number:
                time.sleep(every)
            text, anything = _look(console, history, pid, every, None)
        console.print(text)
        if not anything:
            raise typer.Exit(1)
    except KeyboardInterrupt:  # which is how to end it
        return


def _look(
    console: Console, history: History, pid: int | None, every: float, height: int | None
) -> tuple[Text, bool]:
    """Return the screen, and whether there is a process on it."""
    from rich.text import Text

    from orchestra.cli.status import look
    from orchestra.cli.top_view import screen
    from orchestra.observe.history import look_at

    report = look(pid)
    history.add(time.monotonic(), look_at(report))
    minutes = history.keep / 60
    title = f"orchestra top  {time.strftime('%H:%M:%S')}  every {every:g} s; lines show {minutes:g} minutes"
    lines = screen(report, history, title=title, width=console.width or 80, height=height)
    return Text("\n").join(Text(line, style) for line, style in lines), bool(report["processes"])
