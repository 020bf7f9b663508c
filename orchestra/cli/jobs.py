"""``orchestra jobs``: what the ledger holds of bulk jobs, and what can be done with them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestra.cli.command_help import Command, Group
from orchestra.cli.duration_option import duration_option
from orchestra.cli.engine_start import start_engines
from orchestra.cli.following import Following
from orchestra.cli.job_words import (
    AN_HOUR,
    cancellation_lines,
    cost_lines,
    deletion_lines,
    expected_end,
    instant,
    outlet_lines,
    record_lines,
    retriable,
)

if TYPE_CHECKING:
    from orchestra.cli.run_display import RunDisplay
    from orchestra.config import Config
    from orchestra.jobs import JobRecord, JobStore

__all__ = ["app", "cancel", "delete", "list_jobs", "results", "resume", "show"]

_HELP = """\
Bulk jobs of this and earlier days: list, show, cancel, resume, results, delete.

They are in the file that [bulk] store names, by default .orchestra/jobs.db beside the settings. A job is `running`
in some process, or `interrupted` (`resume` goes on with it), or `stopped` by a fault that `show` tells, or
`cancelled`, or `ended`.
"""

app = typer.Typer(cls=Group, help=_HELP, no_args_is_help=True, rich_markup_mode="markdown")

_MOST_BATCHES = 20
_MOST_NAMES = 5
_COLUMNS = ("name", "kind", "state", "lines", "done", "failed", "in batches", "begun")

_Config = Annotated[
    Path | None, typer.Option("--config", help="The settings. Default: orchestra.toml, if there is one.")
]
_Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A name from `orchestra jobs list`, or how only that one begins.")
]


@app.command("list", cls=Command)
def list_jobs(config: _Config = None) -> None:
    """Say which jobs there are, newest first."""
    from rich.cells import cell_len
    from rich.console import Console

    from orchestra.cli.settings import find_settings, shown

    ledger = shown(find_settings(config)[0].bulk.store)
    with _store(config) as store:
        if store is None or not (records := store.jobs()):
            typer.echo(f"no jobs yet in {ledger}")
            return
        typer.echo(f"ledger: {ledger}", err=True)
        rows = []
        for record in records:
            tally = store.tally(record.id)
            riding = sum(batch.riding for batch in store.batches.unfinished(record.id))
            numbers = (f"{number:,}" for number in (tally.total, tally.done, tally.failed, riding))
            rows.append((record.name, record.kind, _state(store, record), *numbers, instant(record.created)))
    console = Console(highlight=False, markup=False, soft_wrap=True)
    narrow = console.is_terminal and console.width < max(cell_len(line) for line in _lined_up(_COLUMNS, rows))
    if not narrow:
        for line in _lined_up(_COLUMNS, rows):
            console.print(line)
        return
    # a name that is cut cannot be used: it has a line of its own where there is no room beside it
    title, *facts = _lined_up(_COLUMNS[1:], [row[1:] for row in rows])
    console.print(f"name\n  {title}")
    for row, line in zip(rows, facts, strict=True):
        console.print(f"{row[0]}\n  {line}")


def _lined_up(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the columns' titles and the rows as lines of text, cell below cell."""
    from rich.cells import cell_len

    lines = [columns, *rows]
    widths = [max(cell_len(line[at]) for line in lines) for at in range(len(columns))]
    return [
        "  ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


@app.command(cls=Command)
def show(name: _Name, config: _Config = None) -> None:
    """Say where a job stands: what went where and at what cost, its batches, and why lines have failed.

    Exit code 0, however the job is; 2 where there is none of that name.
    """
    from orchestra.cli.settings import find_settings
    from orchestra.jobs import Job

    with _store(config) as store:
        record = _find(store, name)
        assert store is not None
        progress, state, now = Job(store, record).progress(), _state(store, record), time.time()
        is_whole = progress.whole or record.kind == "awaited"  # more may always come of calls that are awaited
        facts = [
            ("job", record.name),
            ("kind", "calls that a program awaits" if record.kind == "awaited" else None),
            ("state", state),
            ("begun", instant(record.created)),
            ("deadline", _deadline(record)),
            ("model", record.model or "as each line says"),
            ("lines", f"{progress.total:,}{'' if is_whole else ', not all read yet'}"),
            ("answered", f"{progress.done:,}"),
            ("failed", f"{progress.failed:,}"),
            ("riding", f"{progress.riding:,} in batches" if progress.batches else None),
            ("tokens", f"{progress.input_tokens:,} in, {progress.output_tokens:,} out"),
            ("waiting" if state == "running" else "stopped", record.stopped if record.state != "ended" else None),
            ("end", expected_end(progress, now) if state == "running" else None),
        ]
        for title, fact in facts:
            if fact is not None:
                typer.echo(f"{title:9} {fact}")
        failures = store.failures(record.id)
        for code, count in failures:
            typer.echo(f"          {count:,} x {code}")
        if progress.ended and (again := retriable(failures)):
            typer.echo(
                f"          `orchestra jobs resume {record.name} --retry-failed` asks {again:,} of them again"
            )
        for line in [*outlet_lines(progress), *cost_lines(progress, find_settings(config)[0])]:
            typer.echo(line)
        _show_batches(store, record, now)


def _deadline(record: JobRecord) -> str | None:
    if record.deadline is None:
        return None
    return instant(record.deadline, exact=record.deadline - record.created < AN_HOUR)


def _show_batches(store: JobStore, record: JobRecord, now: float) -> None:
    """Say how the latest of a job's batches are, and all that are open."""
    batches = store.batches.of_job(record.id)
    latest = {batch.id for batch in batches[-_MOST_BATCHES:]}
    shown = [batch for batch in batches if batch.id in latest or batch.ended_at is None]
    if batches:
        left_out = len(batches) - len(shown)
        typer.echo("batches:" + (f" (and {left_out:,} before these, which are over)" if left_out else ""))
    for line in record_lines(shown, now):
        typer.echo(f"  {line}")


@app.command(cls=Command)
def cancel(
    name: _Name,
    now: Annotated[
        bool, typer.Option("--now", help="Do not wait for what its batches had answered before they end.")
    ] = False,
    config: _Config = None,
) -> None:
    """End a job: lines without an answer fail with the code `cancelled`, and its open batches are cancelled.

    What its batches had answered before is collected first, since it is paid for: that takes as long as the
    providers need to end them, mostly a few minutes, and `--now` leaves it out. A batch that cannot be cancelled
    is told, with the reason: it goes on at the provider. `orchestra jobs results` has all that was answered. Of a
    job that a program awaits, the calls without an answer are forgotten.

    A job that another process runs is refused: stop that process first. Exit code 0, also where nothing was left
    to cancel.
    """
    settings, name = _settings_with(config, name)
    try:
        asyncio.run(_cancel(settings, name, collect=not now))
    except KeyboardInterrupt:
        typer.echo(f"interrupted; `orchestra jobs cancel {name}` goes on, with --now without waiting", err=True)
        raise typer.Exit(130) from None


async def _cancel(settings: Config, name: str, *, collect: bool) -> None:
    from orchestra.client import Orchestra
    from orchestra.errors import InputError, JobLocked
    from orchestra.jobs import is_locked

    async with Orchestra(settings) as orc:
        record = orc.jobs.get(name).record
        if record.state == "ended":
            typer.echo(f"job {name}: has ended already; there is nothing to cancel")
            return
        sent = [batch for batch in orc.jobs.store.batches.unfinished(record.id) if batch.batch_id is not None]
        if sent and collect and not is_locked(orc.jobs.store.path, name):  # else it is refused below
            whose = "1 batch" if len(sent) == 1 else f"{len(sent)} batches"
            typer.echo(f"cancelling {whose}, and waiting for what was answered (--now does not wait)", err=True)
        try:
            cancelled = await orc.jobs.cancel(name, collect=collect)
        except JobLocked as error:
            raise InputError(str(error)) from error
        for line in cancellation_lines(name, cancelled):
            typer.echo(line)


@app.command(cls=Command)
def delete(name: _Name, config: _Config = None) -> None:
    """Forget a job that has ended: its requests and answers, and its files at the providers of its batches.

    The ledger keeps every job until then. Its file becomes smaller by what the job took. Files that cannot be
    deleted at a provider are told, with the reason. The whole name is needed. A job with lines that have no end is
    refused: cancel it first. Exit code 0, also where a provider kept files.
    """
    settings, whole = _settings_with(config, name)
    if whole != name:
        from orchestra.errors import InputError

        raise InputError(f"nothing was deleted: write the whole name, `orchestra jobs delete {whole}`")
    asyncio.run(_delete(settings, name))


async def _delete(settings: Config, name: str) -> None:
    from orchestra.client import Orchestra
    from orchestra.errors import InputError, JobError

    async with Orchestra(settings) as orc:
        try:
            deleted = await orc.jobs.delete(name)
        except JobError as error:
            raise InputError(str(error)) from error
        for line in deletion_lines(name, deleted):
            typer.echo(line)


@app.command(cls=Command)
def resume(
    name: _Name,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="OUT.jsonl", help="Where the answers go, in input order.")
    ],
    deadline: Annotated[
        str | None,
        typer.Option("--deadline", metavar="24h", help="Another deadline for what is left: a time from now on."),
    ] = None,
    retry_failed: Annotated[
        bool,
        typer.Option("--retry-failed", help="Ask lines again that have failed, also of a job that has ended."),
    ] = False,
    config: _Config = None,
) -> None:
    """Go on with an interrupted job from the ledger alone, without its input.

    Batches that are open are taken up, and no answered line is asked again. A job whose input was not read to its
    end cannot be resumed so: run it again with its input. The job's deadline holds, unless --deadline gives
    another: then what is left is planned for anew, and lines that ride leave their batches in time for it. With
    --retry-failed a deadline that has passed holds no more. Exit codes are those of `orchestra run`.
    """
    from orchestra.cli.run_display import RunDisplay
    from orchestra.cli.settings import DEFAULT_CONFIG
    from orchestra.jobs import check_output

    seconds = None if deadline is None else duration_option("--deadline", deadline)
    settings, name = _settings_with(config, name)
    check_output(out, settings=config or DEFAULT_CONFIG, store=Path(settings.bulk.store))
    display = RunDisplay()
    following = Following(display, out, again=f"`orchestra jobs resume {name}`")
    try:
        run = _resume(settings, name, display, following, deadline=seconds, retry_failed=retry_failed)
        code = asyncio.run(run)
    except KeyboardInterrupt:
        display.say(following.farewell())
        code = 130
    raise typer.Exit(code)


async def _resume(
    settings: Config,
    name: str,
    display: RunDisplay,
    following: Following,
    *,
    deadline: float | None,
    retry_failed: bool,
) -> int:
    from orchestra.client import Orchestra
    from orchestra.errors import InputError, JobError
    from orchestra.jobs import is_locked

    async with Orchestra(settings) as orc:
        store = orc.jobs.store
        if settings.local and not is_locked(store.path, name):
            models = store.models(orc.jobs.get(name).record.id, with_failed=retry_failed)
            await start_engines(orc, models, say=display.say, farewell=following.farewell)
        try:
            job = await orc.jobs.resume(name, deadline=deadline, retry_failed=retry_failed)
        except JobError as error:  # before it runs it is a fault of what was asked for
            raise InputError(str(error)) from error
        return await following.follow(orc, job)


@app.command(cls=Command)
def results(
    name: _Name,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="OUT.jsonl", help="Where they go. Default: stdout.")
    ] = None,
    config: _Config = None,
) -> None:
    """Write the results that a job has so far, as OpenAI batch output lines in input order.

    Exit code 0, also where lines have failed or have no answer yet; 2 where there is no job of that name, or the
    file cannot be written.
    """
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
    from orchestra.cli.settings import cannot_be_made, find_settings
    from orchestra.errors import ConfigError, JobError
    from orchestra.jobs import JobStore

    path = Path(find_settings(config)[0].bulk.store)
    if _is_missing(path):
        if (reason := cannot_be_made(path)) is not None:
            raise ConfigError(f"{path}: the job store cannot be made: {reason}; name another under [bulk] store")
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
    """Return the job of that name, or the only one whose name begins so."""
    from orchestra.errors import InputError

    record = store.find(name) if store is not None else None
    if record is not None:
        return record
    alike = [one for one in store.jobs() if one.name.startswith(name)] if store is not None and name else []
    if len(alike) > 1:
        names = ", ".join(one.name for one in alike[:_MOST_NAMES])
        more = f" and {len(alike) - _MOST_NAMES} more" if len(alike) > _MOST_NAMES else ""
        raise InputError(f"{name!r} is how several jobs begin: {names}{more}; write more of the name")
    if not alike:
        raise InputError(f"there is no job {name!r} here; `orchestra jobs list` says which there are")
    return alike[0]


def _settings_with(config: Path | None, name: str) -> tuple[Config, str]:
    """Return the settings, of whose ledger the job is one, and its whole name. Raises InputError otherwise."""
    from orchestra.cli.settings import find_settings

    with _store(config) as store:
        record = _find(store, name)
    return find_settings(config)[0], record.name


def _state(store: JobStore, record: JobRecord) -> str:
    from orchestra.jobs import is_locked, was_cancelled

    if record.state == "ended":
        return "cancelled" if was_cancelled(record) else "ended"
    if is_locked(store.path, record.name):
        return "running"
    return "stopped" if record.stopped else "interrupted"
