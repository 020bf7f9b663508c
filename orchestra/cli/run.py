"""``orchestra run``: a file of requests, answered as a durable bulk job."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestra.cli.duration_option import duration_option
from orchestra.cli.engine_start import is_local, routes_of, start_engines
from orchestra.cli.following import Following, over, watched
from orchestra.cli.forecast_notes import (
    batch_notes,
    cap_notes,
    day_notes,
    endpoint_notes,
    full_price_notes,
    unpriced_notes,
)
from orchestra.cli.job_words import AN_HOUR, instant

if TYPE_CHECKING:
    from orchestra.cli.run_display import RunDisplay
    from orchestra.client import Orchestra
    from orchestra.config import Config
    from orchestra.jobs import Job, JobRecord, JsonlFile, Progress, Survey

__all__ = ["run"]

STDIN = "-"


def run(
    source: Annotated[
        str,
        typer.Argument(metavar="IN.jsonl", help="Requests: OpenAI batch lines, or plain ones. - is stdin."),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="OUT.jsonl", help="Where the answers go, in input order.")
    ],
    config: Annotated[
        Path | None, typer.Option("--config", help="The settings. Default: orchestra.toml, if there is one.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Ask this model, whatever the lines say.")] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            "--deadline",
            metavar="24h",
            help="When the answers are wanted: 90m, 24h, '2 days'. Work that has time rides in the provider's "
            "batches, for less. Lines that are not answered by then fail as expired.",
        ),
    ] = None,
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="NAME", help="The job's name. Default: made from the input and the model."),
    ] = None,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed",
            help="Ask lines again that have failed in an earlier run. A deadline that has passed since gives way "
            "to this run's.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check the input, say where its lines would go, at what cost and how long it would take; send "
            "nothing.",
        ),
    ] = False,
) -> None:
    """Answer a file of requests as bulk work, which leaves interactive calls their share.

    A line is {"messages": ...}, {"prompt": ...}, or an OpenAI batch line with custom_id, url and body. The file is
    checked whole before anything is sent. Answers are OpenAI batch output lines.

    Without a deadline every line is sent at once. With one, as many as have time for it ride in batches where the
    model's routes have them, mostly at half the price; what is not back is sent at once in time for the deadline.

    The job is durable: interrupted or killed, the same command goes on with it. No answered line is asked again,
    and one that failed only with --retry-failed. Batches that are open then go on at the provider, and are taken
    up. `orchestra jobs` shows, cancels and resumes jobs.

    Exit code 0: all lines answered; 1: some failed, each with its reason in OUT.jsonl, or the job stopped;
    2: bad usage, settings or input, and nothing was sent (of a --dry-run: nothing would be); 130: interrupted.
    """
    from orchestra.cli.run_display import RunDisplay
    from orchestra.cli.settings import DEFAULT_CONFIG, find_settings, shown
    from orchestra.jobs import check_output, checked_name

    seconds = None if deadline is None else duration_option("--deadline", deadline)
    if job is not None:
        checked_name(job)
    settings, origin = find_settings(config)
    others = {"input": Path(source), "settings": config or DEFAULT_CONFIG, "store": Path(settings.bulk.store)}
    check_output(out, **others)
    display = RunDisplay()
    display.say(f"settings: {origin}; ledger: {shown(settings.bulk.store)}")
    command = _Run(settings, display, out, model=model, deadline=seconds, name=job, retry_failed=retry_failed)
    try:
        # read here, and not in a thread: an interrupt ends a read of a pipe that nobody writes to
        with _open(source) as file:
            code = asyncio.run(command.survey(file) if dry_run else command.run(file))
    except KeyboardInterrupt:
        display.say(command.farewell())
        code = 130
    raise typer.Exit(code)


def _open(source: str) -> JsonlFile:
    from orchestra.errors import InputError
    from orchestra.jobs import JsonlFile

    if source == STDIN:
        return JsonlFile.spool(sys.stdin.buffer)
    try:
        return JsonlFile.open(source)
    except InputError as error:
        if os.path.lexists(source):
            raise
        raise InputError(f"{error}, or pipe the lines in with -") from None


@contextmanager
def _nothing_sent() -> Iterator[None]:
    """What goes wrong before a job runs is a fault of its input or its settings."""
    from orchestra.errors import InputError, JobError

    try:
        yield
    except JobError as error:
        raise InputError(str(error)) from error


class _Run:
    """One run of the command. Returns exit codes."""

    def __init__(
        self,
        settings: Config,
        display: RunDisplay,
        out: Path,
        *,
        model: str | None,
        deadline: float | None,
        name: str | None,
        retry_failed: bool,
    ) -> None:
        self._settings = settings
        self._display = display
        self._following = Following(display, out)
        self._model = model
        self._deadline = deadline
        self._name = name
        self._retry_failed = retry_failed

    async def survey(self, file: JsonlFile) -> int:
        from orchestra.client import Orchestra

        async with Orchestra(self._settings) as orc:
            with _nothing_sent():
                survey = await orc.jobs.survey(file, model=self._model)
                self._check_weights(survey)
                name = await self._named(file)
                until = None if self._deadline is None else time.time() + self._deadline
                if (record := self._recorded(orc, name)) is not None:
                    left = await orc.jobs.survey_left(
                        record, file, model=self._model, retry_failed=self._retry_failed
                    )
                    progress = orc.jobs.get(name).progress()
                    passed = record.deadline is not None and record.deadline <= time.time()
                    if not (self._retry_failed and passed):
                        until = record.deadline
                    if left is not None and not left.lines and progress.ended:
                        failures = await asyncio.to_thread(orc.jobs.store.failures, record.id)
                        self._display.say(f"job {name}: {over(progress, failures)}")
                        self._display.say("nothing was sent")
                        return 0
                    self._display.say(f"job {name}: {_goes_on(progress, left, until)}")
                    survey = survey if left is None else left
                forecast = await asyncio.to_thread(orc.jobs.forecast, survey, until=until)
            routes = {model: self._routes(model) for model in survey.models}
            every = [route for ways in routes.values() for route in ways]
            unpriced, stuck = unpriced_notes(self._settings, routes)
            notes = [*endpoint_notes(survey, self._model), *unpriced]
            notes += [*day_notes(forecast), *cap_notes(self._settings, forecast)]
            notes += full_price_notes(self._settings, forecast)
            if until is not None:
                notes += batch_notes(self._settings, every)
            self._display.forecast(file.name, survey, forecast, routes, notes)
        return 2 if stuck else 0

    async def run(self, file: JsonlFile) -> int:
        from orchestra.client import Orchestra

        async with Orchestra(self._settings) as orc:
            with _nothing_sent():
                await self._start_engines(orc, file)
                job = await self._submit(orc, file)
            return await self._following.follow(orc, job)

    def farewell(self) -> str:
        """Return what to say to someone who interrupted the run."""
        return self._following.farewell()

    def _routes(self, model: str) -> tuple[str, ...]:
        return routes_of(self._settings, model)

    async def _start_engines(self, orc: Orchestra, file: JsonlFile) -> None:
        """Start the engines that are some model's only route: one that does not start is told before the job is.

        None is for a job that has ended, or that another process runs: it will be asked nothing. The file is read
        once more for it, which is nothing beside what an engine takes to answer.
        """
        from orchestra.jobs import is_locked

        orc.jobs.check_model(self._model)
        names = (
            [self._model]
            if self._model
            else [*self._settings.models, *(f"local/{name}" for name in self._settings.local)]
        )
        if not any(self._is_local(name) for name in names):
            return
        name = await self._named(file)
        record = self._recorded(orc, name)
        is_over = record is not None and record.state == "ended" and not self._retry_failed
        if is_over or (record is not None and is_locked(orc.jobs.store.path, name)):
            return
        survey = await orc.jobs.survey(file, model=self._model)
        self._check_weights(survey)
        await start_engines(orc, survey.models, say=self._display.say, farewell=self.farewell)

    def _check_weights(self, survey: Survey) -> None:
        """Raise InputError where an engine that is some model's only route has no file to load."""
        from orchestra.errors import InputError

        for model in filter(self._is_local, survey.models):
            from orchestra.localengine.errors import ModelFileError
            from orchestra.localengine.weights.registry import resolve

            for route in self._routes(model):
                try:
                    resolve(self._settings.local[route.partition("/")[2]].weights)
                except ModelFileError as error:
                    raise InputError(f"model {model!r}: {route}: {error}") from error

    def _recorded(self, orc: Orchestra, name: str) -> JobRecord | None:
        """Return what the ledger has of the job; it is not made where there is none."""
        return orc.jobs.store.find(name) if Path(self._settings.bulk.store).exists() else None

    async def _named(self, file: JsonlFile) -> str:
        if self._name is None:
            self._name = await asyncio.to_thread(_job_name, file, self._model)
        return self._name

    def _is_local(self, model: str) -> bool:
        return is_local(self._settings, model)

    async def _submit(self, orc: Orchestra, file: JsonlFile) -> Job:
        name = await self._named(file)
        submitting = orc.jobs.submit(
            file, model=self._model, job=name, deadline=self._deadline, retry_failed=self._retry_failed
        )
        with self._display.checking(file.size) as show:
            return await watched(submitting, lambda: show(file.read_bytes))


def _goes_on(progress: Progress, left: Survey | None, until: float | None) -> str:
    """Say what of a job that exists a run would still ask, and until when it would have time."""
    if until is None:
        held = "it has no deadline"
    else:
        held = f"its deadline holds, {instant(until, exact=until - time.time() < AN_HOUR)}"
    if left is None:
        return f"exists already; the run goes on with it if its lines are these; {held}"
    riding = f", beside {progress.riding:,} that ride in batches already" if progress.riding else ""
    return f"exists already; {left.lines:,} of its {progress.total:,} lines are to be asked{riding}; {held}"


def _job_name(file: JsonlFile, model: str | None) -> str:
    """Return the name that the same input and model always get."""
    stem = re.sub(r"[^\w.-]+", "-", Path(file.name).stem)[:80]
    return f"{stem}-{file.digest(model=model).hex()[:10]}"
