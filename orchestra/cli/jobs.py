"""``orchestra jobs``: what the ledger holds of bulk jobs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from orchestra.jobs import JobRecord, JobStore

__all__ = ["app", "list_jobs", "results", "show"]

app = typer.Typer(help="Bulk jobs of this and earlier days: list, show, results.", no_args_is_help=True)

_Config = Annotated[
    Path | None, typer.Option("--config", help="The settings. Default: orchestra.toml, if there is one.")
]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="A name from `orchestra jobs list`.")]


@app.command("list")
def list_jobs(config: _Config = None) -> None:
    """Say which jobs there are, newest first."""
    from rich.console import Console
    from rich.table import Table

    with _store(config) as store:
        if store is None or not (records := store.jobs()):
            typer.echo("no jobs yet")
            return
        table = Table("name", "state", "lines", "done", "failed", "begun", box=None, pad_edge=False)
        for record in records:
            tally = store.tally(record.id)
            numbers = (f"{number:,}" for number in (tally.total, tally.done, tally.failed))
            table.add_row(record.name, _state(store, record), *numbers, _instant(record.created))
        Console(highlight=False, markup=False).print(table)


@app.command()
def show(name: _Name, config: _Config = None) -> None:
    """Say where a job stands, and for what reasons lines have failed."""
    with _store(config) as store:
        record = _find(store, name)
        assert store is not None
        tally, state = store.tally(record.id), _state(store, record)
        facts = [
            ("job", record.name),
            ("state", state),
            ("begun", _instant(record.created)),
            ("deadline", _instant(record.deadline) if record.deadline else None),
            ("model", record.model or "as each line says"),
            ("lines", f"{tally.total:,}{'' if tally.whole else ' so far'}"),
            ("answered", f"{tally.done:,}"),
            ("failed", f"{tally.failed:,}"),
            ("tokens", f"{tally.input_tokens:,} in, {tally.output_tokens:,} out"),
            ("waiting" if state == "running" else "stopped", record.stopped if state != "ended" else None),
        ]
        for title, fact in facts:
            if fact is not None:
                typer.echo(f"{title:9} {fact}")
        for code, count in store.failures(record.id):
            typer.echo(f"          {count:,} x {code}")


@app.command()
def results(
    name: _Name,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="OUT.jsonl", help="Where they go. Default: stdout.")
    ] = None,
    config: _Config = None,
) -> None:
    """Write the results that a job has so far, as OpenAI batch output lines in input order."""
    from orchestra.cli.settings import DEFAULT_CONFIG, find_settings
    from orchestra.jobs import check_output, output_lines, write_output

    if out is not None:
        settings = find_settings(config)[0]
        check_output(out, settings=config or DEFAULT_CONFIG, store=Path(settings.bulk.store))
    with _store(config) as store:
        record = _find(store, name)
        assert store is not None
        if out is not None:
            write_output(store, record, out)
        else:
            sys.stdout.buffer.writelines(output_lines(store, record))


@contextmanager
def _store(config: Path | None) -> Iterator[JobStore | None]:
    """Open the ledger that the settings name; None where it was never made."""
    from orchestra.cli.settings import find_settings
    from orchestra.errors import ConfigError, JobError
    from orchestra.jobs import JobStore

    path = Path(find_settings(config)[0].bulk.store)
    if _is_missing(path):
        yield None
        return
    try:
        store = JobStore(path)
    except JobError as error:
        raise ConfigError(str(error)) from error
    try:
        yield store
    finally:
        store.close()


def _is_missing(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass  # opening it says what is the matter
    return False


def _find(store: JobStore | None, name: str) -> JobRecord:
    from orchestra.errors import InputError

    record = store.find(name) if store is not None else None
    if record is None:
        raise InputError(f"there is no job {name!r} here; `orchestra jobs list` says which there are")
    return record


def _state(store: JobStore, record: JobRecord) -> str:
    from orchestra.jobs import is_locked

    if record.state == "ended":
        return "ended"
    if is_locked(store.path, record.name):
        return "running"
    return "stopped" if record.stopped else "interrupted"


def _instant(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "in more years than a calendar has"
