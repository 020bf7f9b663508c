"""``orchestra status``: what the running programs of this user do, and what their calls wait for."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestra.errors import ConfigError

__all__ = ["look", "status"]

NOTHING = """\
nothing is running that can be seen.
A program is seen while it has an Orchestra open: from `async with Orchestra...`, or its first call, to its end.
It must run on this machine, as this user, and not have `status = false` under [observe] in its settings."""


def status(
    pid: Annotated[int | None, typer.Option("--pid", metavar="N", min=1, help="Only this process.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="Settings whose shared budget file (sqlite) is read as well, whether or not anything runs. "
            "Default: orchestra.toml, if there is one.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All of it, as one JSON object.")] = False,
    watch: Annotated[
        float | None, typer.Option("--watch", metavar="SECONDS", min=0.1, help="Say it again and again.")
    ] = None,
) -> None:
    """Say what running programs do: limits, how much is used, who waits, for what and how long.

    Exit code 1 where nothing is running.
    """
    file = _budget_file(config) if pid is None else None
    if watch is not None:
        try:
            while True:
                _say(look(pid, file), as_json=as_json, again=True)
                time.sleep(watch)
        except KeyboardInterrupt:  # which is how to end it
            return
    report = look(pid, file)
    if report["processes"] or report["accounts"] or as_json:
        _say(report, as_json=as_json)
    else:
        typer.echo(f"there is no process {pid} to be seen" if pid is not None else _nothing(), err=True)
    if not (report["processes"] or report["accounts"]):
        raise typer.Exit(1)


def look(pid: int | None, file: Path | None = None) -> dict[str, Any]:
    """Return what can be seen, as plain values: of all processes or one, and of the budget file's accounts."""
    from orchestra.budget.shared import StoreError
    from orchestra.observe.shared_accounts import read_accounts
    from orchestra.observe.status_client import look_around

    processes = [
        one.told if one.told is not None else {"pid": one.pid, "instance": one.instance, "fault": one.fault}
        for one in look_around(pid=pid)
    ]
    accounts: list[dict[str, Any]] = []
    if file is not None:
        try:
            accounts = read_accounts(file)
        except StoreError as error:
            accounts = [{"file": str(file), "fault": str(error)}]
    return {"processes": processes, "accounts": accounts}


def _say(report: dict[str, Any], *, as_json: bool, again: bool = False) -> None:
    """Print the report. ``again``: in the place of the one before, where a terminal shows it."""
    if as_json:
        import json

        typer.echo(json.dumps(report, indent=None if again else 2))
        return
    from rich.console import Console
    from rich.text import Text

    from orchestra.cli.status_view import describe

    console = Console(highlight=False, markup=False, soft_wrap=True)
    known = console.width > 0 and (console.is_terminal or "COLUMNS" in os.environ)
    if not console.width:  # a terminal that tells no size has none, and rich would print nothing
        console.width = 100
    lines = list(describe(report, width=console.width if known else 100))
    if again:
        console.clear()
        lines.insert(0, (time.strftime("%H:%M:%S" if lines else "%H:%M:%S  nothing is running"), "dim"))
    for text, style in lines:
        console.print(Text(text, style))


def _budget_file(config: Path | None) -> Path | None:
    """Return the file that the settings share a budget through, if they do."""
    from orchestra.cli.settings import find_settings

    try:
        return find_settings(config)[0].budget.sqlite_path
    except ConfigError as error:
        if config is not None:
            raise
        typer.echo(f"orchestra: left aside: {error}", err=True)  # what runs can be seen all the same
        return None


def _nothing() -> str:
    from orchestra.observe.status_folder import check_folder, folders

    places, unfit = [], []
    for folder in folders():
        try:
            check_folder(folder)
        except PermissionError as error:  # programs put nothing there, and nothing there is trusted
            unfit.append(f"\nLeft aside: {error}.")
            continue
        except OSError:
            pass
        places.append(str(folder))
    if not places and not unfit:
        return f"{NOTHING}\nThis platform has no Unix sockets."
    return f"{NOTHING}\n" + f"Looked in {', '.join(places) or 'no folder'}." + "".join(unfit)
