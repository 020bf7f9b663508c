"""``orchestra run``: a file of requests, answered as a durable bulk job."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from orchestra.durations import parse_duration

if TYPE_CHECKING:
    from orchestra.cli.run_display import RunDisplay
    from orchestra.client import Orchestra
    from orchestra.config import Config
    from orchestra.jobs import Job, JobRecord, JsonlFile, Progress, Survey

__all__ = ["run"]

STDIN = "-"
TICK = 0.1
T = TypeVar("T")


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
        typer.Option("--deadline", metavar="6h", help="Lines that are not answered by then fail as expired."),
    ] = None,
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="NAME", help="The job's name. Default: made from the input and the model."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the input, say what it would ask for, and send nothing.")
    ] = False,
) -> None:
    """Answer a file of requests as bulk work, which leaves interactive calls their share.

    A line is {"messages": ...}, {"prompt": ...}, or an OpenAI batch line with custom_id, url and body. The file is
    checked whole before anything is sent. Answers are OpenAI batch output lines.

    The job is durable: interrupted or killed, the same command goes on with it, and no answered line is asked
    again.

    Exit code 0: all lines answered; 1: some failed, each with its reason in OUT.jsonl, or the job stopped;
    2: bad usage, settings or input, and nothing was sent; 130: interrupted.
    """
    from orchestra.cli.run_display import RunDisplay
    from orchestra.cli.settings import DEFAULT_CONFIG, find_settings
    from orchestra.jobs import check_output, checked_name

    seconds = _seconds(deadline)
    if job is not None:
        checked_name(job)
    settings, origin = find_settings(config)
    others = {"input": Path(source), "settings": config or DEFAULT_CONFIG, "store": Path(settings.bulk.store)}
    check_output(out, **others)
    display = RunDisplay()
    if config is None:
        display.say(f"settings: {origin}")
    command = _Run(settings, display, out, model=model, deadline=seconds, name=job)
    try:
        # read here, and not in a thread: an interrupt ends a read of a pipe that nobody writes to
        with _open(source) as file:
            code = asyncio.run(command.survey(file) if dry_run else command.run(file))
    except KeyboardInterrupt:
        display.say(command.farewell())
        code = 130
    raise typer.Exit(code)


def _open(source: str) -> JsonlFile:
    from orchestra.jobs import JsonlFile

    return JsonlFile.spool(sys.stdin.buffer) if source == STDIN else JsonlFile.open(source)


def _seconds(deadline: str | None) -> float | None:
    from orchestra.errors import InputError

    try:
        return None if deadline is None else parse_duration(deadline)
    except ValueError as error:
        raise InputError(f"--deadline: {error}") from None


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
    ) -> None:
        self._settings = settings
        self._display = display
        self._out = out
        self._model = model
        self._deadline = deadline
        self._name = name
        self._job: Job | None = None
        self._told = ""

    async def survey(self, file: JsonlFile) -> int:
        from orchestra.client import Orchestra

        async with Orchestra(self._settings) as orc:
            with _nothing_sent():
                survey = await orc.jobs.survey(file, model=self._model)
                self._check_weights(survey)
                name = await self._named(file)
                if self._recorded(orc, name) is not None:
                    self._display.say(
                        f"job {name}: exists already; the run goes on with it if its lines are these"
                    )
            self._display.survey(file.name, survey, {model: self._routes(model) for model in survey.models})
        return 0

    async def run(self, file: JsonlFile) -> int:
        from orchestra.client import Orchestra

        async with Orchestra(self._settings) as orc:
            with _nothing_sent():
                await self._start_engines(orc, file)
                self._job = job = await self._submit(orc, file)
            return await self._finish(orc, job)

    def farewell(self) -> str:
        """Return what to say to someone who interrupted the run."""
        if self._job is None:
            return "interrupted before anything was sent"
        return f"interrupted ({self._told}); the same command goes on with job {self._job.name!r}"

    def _routes(self, model: str) -> tuple[str, ...]:
        entry = self._settings.models.get(model)
        return entry.routes if entry else (model,)

    async def _start_engines(self, orc: Orchestra, file: JsonlFile) -> None:
        """Start the engines that are some model's only route: one that does not start is told before the job is.

        None is for a job that has ended, or that another process runs: it will be asked nothing. The file is read
        once more for it, which is nothing beside what an engine takes to answer.
        """
        from orchestra.errors import InputError, LocalEngineError
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
        if record is not None and (record.state == "ended" or is_locked(orc.jobs.store.path, name)):
            return
        survey = await orc.jobs.survey(file, model=self._model)
        self._check_weights(survey)
        for model in filter(self._is_local, survey.models):
            for route in self._routes(model):
                self._display.say(f"starting the engine of {route}")
                try:
                    with _leaving_at_once(self.farewell()):
                        await orc.engine(route.partition("/")[2])
                except LocalEngineError as error:
                    raise InputError(f"model {model!r}: {route}: {error}") from error

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
        return all(route.startswith("local/") for route in self._routes(model))

    async def _submit(self, orc: Orchestra, file: JsonlFile) -> Job:
        name = await self._named(file)
        submitting = orc.jobs.submit(file, model=self._model, job=name, deadline=self._deadline)
        with self._display.checking(file.size) as show:
            return await _watched(submitting, lambda: show(file.read_bytes))

    def _look(self, job: Job) -> Progress:
        progress = job.progress()
        self._told = str(progress)
        return progress

    async def _finish(self, orc: Orchestra, job: Job) -> int:
        from orchestra.errors import JobError
        from orchestra.jobs import write_output

        began = time.monotonic()
        progress = self._look(job)
        if progress.ended:
            self._display.say(f"job {job.name}: answered already; nothing is asked again")
        elif progress.done + progress.failed:
            self._display.say(f"job {job.name}: going on after {progress}")
        try:
            with self._display.running(job.name) as show:
                progress = await _watched(job.wait(), lambda: show(_with_outage(self._look(job), orc)))
        except JobError as error:
            self._display.say(f"orchestra: {error}".replace("submit it again", "run the same command again"))
            return 1
        await asyncio.to_thread(write_output, orc.jobs.store, job.record, self._out)
        failures = await asyncio.to_thread(orc.jobs.store.failures, job.record.id)
        self._display.summary(progress, failures, seconds=time.monotonic() - began, out=self._out)
        return 1 if progress.failed else 0


@contextmanager
def _leaving_at_once(farewell: str) -> Iterator[None]:
    """Let an interrupt end the process where it stands: a model that is being loaded cannot be stopped.

    Only for where nothing has been sent and the ledger holds nothing of ours.
    """

    def leave(number: int, frame: object) -> None:
        sys.stderr.write(f"{farewell}\n")
        sys.stderr.flush()
        os._exit(130)

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


async def _watched(work: Coroutine[Any, Any, T], look: Callable[[], None]) -> T:
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


def _with_outage(progress: Progress, orc: Orchestra) -> Progress:
    """Say that no route answers, while the job's calls still try: the job itself hears of it when they give up."""
    routes = orc.snapshot()["routes"]
    if progress.waiting is not None or not routes or any(_answers(route) for route in routes.values()):
        return progress
    return replace(progress, waiting=f"no answer from {', '.join(routes)} so far; it is tried again and again")


def _answers(route: Mapping[str, Any]) -> bool:
    return route["state"] == "closed" and route["paused_for"] is None


def _job_name(file: JsonlFile, model: str | None) -> str:
    """Return the name that the same input and model always get."""
    stem = re.sub(r"[^\w.-]+", "-", Path(file.name).stem)[:80]
    return f"{stem}-{file.digest(model=model).hex()[:10]}"
