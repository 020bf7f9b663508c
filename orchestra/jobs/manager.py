"""Takes jobs in, runs them, and knows those of earlier days."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestra.durations import parse_duration
from orchestra.errors import ConfigError, InputError, JobError, JobLocked, OrchestraError, UnknownModelError
from orchestra.jobs.intake import Intake
from orchestra.jobs.job import Job
from orchestra.jobs.lines import LineCheck, LineParser
from orchestra.jobs.lock import JobLock
from orchestra.jobs.patience import Patience
from orchestra.jobs.record import JobRecord
from orchestra.jobs.runner import Runner, Send
from orchestra.jobs.sources import NO_LINES, JsonlFile, file_chunks, object_chunks
from orchestra.jobs.store import JobStore
from orchestra.jobs.survey import Survey, survey
from orchestra.jobs.threads import in_thread

__all__ = ["JobManager", "Requests", "checked_name"]

Requests = str | os.PathLike[str] | JsonlFile | Iterable[object] | AsyncIterable[object]
"""A file of lines (its path, or open), or requests as mappings."""


class JobManager:
    """Bulk jobs in the ledger at ``store_path``, sent through ``send``.

    ``check`` may refuse a line before anything is sent. ``window`` is how many lines of a job are under way at
    once, waiting for the budget included. ``patience`` is how long, in seconds, a job bears a provider from which
    nothing but faults comes. The ledger is opened, and made, on first use.
    """

    def __init__(
        self,
        store_path: str | os.PathLike[str],
        send: Send,
        *,
        check: LineCheck | None = None,
        window: int = 256,
        patience: float = 300.0,
    ) -> None:
        if window < 1:
            raise ValueError("window must be at least 1")
        self._path = Path(store_path)
        self._send = send
        self._check = check
        self._window = window
        self._patience = patience
        self._store: JobStore | None = None
        self._running: dict[str, Job] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    @property
    def store(self) -> JobStore:
        """The ledger. Raises JobError where it cannot be used."""
        if self._store is None:
            self._store = JobStore(self._path)
        return self._store

    def list(self) -> list[JobRecord]:
        """Return all jobs of the ledger, newest first."""
        return self.store.jobs()

    def get(self, name: str) -> Job:
        """Return the job of that name: the running one, or what the ledger has of it. Raises JobError."""
        if name in self._running:
            return self._running[name]
        record = self.store.find(name)
        if record is None:
            raise JobError(f"there is no job {name!r} in {self._path}; `orchestra jobs list` says which there are")
        return Job(self.store, record)

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """Return where each job that this process runs stands, as plain values."""
        return {name: asdict(job.progress()) for name, job in list(self._running.items())}

    async def submit(
        self,
        requests: Requests,
        *,
        model: str | None = None,
        job: str | None = None,
        deadline: float | str | None = None,
    ) -> Job:
        """Take in a job and run it, or go on with it where it was submitted before.

        ``model`` replaces the requests' own. A job of the same name and requests is joined: what has ended is not
        asked again, and its first ``deadline`` (a time from then on) holds. Without a name it is a new job each
        time. A file is checked whole before anything is sent. Of other requests a bad one fails and the rest go
        on; they are asked for as they can be taken in, and the first may be answered before the last has come.

        Raises InputError (nothing was sent), JobError (the name belongs to other requests, or the store cannot be
        used) and JobLocked (another process is running it).
        """
        name = checked_name(job)
        try:
            expires = None if deadline is None else time.time() + parse_duration(deadline)
        except ValueError as error:
            raise InputError(f"deadline: {error}") from None
        self.check_model(model)
        parser = LineParser(model=model, check=self._check)
        async with self._turns.setdefault(name, asyncio.Lock()):
            if isinstance(requests, str | os.PathLike):
                with await asyncio.to_thread(JsonlFile.open, requests) as file:
                    return await self._submit(name, file, parser, expires)
            return await self._submit(name, requests, parser, expires)

    async def survey(self, file: JsonlFile, *, model: str | None = None) -> Survey:
        """Check a file as `submit` would, and count what it asks for. Raises InputError for its bad lines."""
        self.check_model(model)
        return await survey(file, LineParser(model=model, check=self._check))

    def check_model(self, model: str | None) -> None:
        """Refuse at once a model for all lines that each of them would be refused for.

        Raises UnknownModelError where there is none of that name, ConfigError where its key is missing.
        """
        if model is None or self._check is None:
            return
        try:
            self._check("/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": "?"}]})
        except UnknownModelError:
            raise
        except InputError:
            pass  # about the request that we made up

    async def _submit(
        self,
        name: str,
        requests: JsonlFile | Iterable[object] | AsyncIterable[object],
        parser: LineParser,
        deadline: float | None,
    ) -> Job:
        store = await asyncio.to_thread(lambda: self.store)
        running = self._running.get(name)
        if running is not None and not running.progress().whole:
            raise JobLocked(f"job {name!r} is being submitted by this program already")
        digest = None
        if isinstance(requests, JsonlFile):
            digest = await asyncio.to_thread(requests.digest, model=parser.model)
        record = store.find(name)
        if record is not None and (running is not None or record.state == "ended"):
            await _take_in(store, record, requests, parser, digest)
            return running or Job(store, record)

        lock = JobLock(store.path, name)
        try:
            record = _begin(store, name, parser.model, deadline, digest)
            rest = await _take_in(store, record, requests, parser, digest)
            job = Job(store, store.find(name) or record)
            runner = Runner(
                store,
                job.record,
                self._send,
                window=self._window,
                patience=Patience(limit=self._patience),
                on_ended=job.note_ended,
            )
        except BaseException:
            lock.release()
            raise

        def finished() -> None:
            del self._running[name]
            lock.release()

        self._running[name] = job
        job.start(self._run(job, runner, rest), finished=finished, waiting=runner.waiting)
        return job

    async def _run(self, job: Job, runner: Runner, rest: Intake | None) -> None:
        """Run a job to its end. ``rest`` are the lines that are still to come."""
        store, id = self.store, job.record.id
        try:
            await asyncio.to_thread(store.stop, id, None)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(runner.run())
                    group.create_task(_feed(runner, rest))
            except BaseExceptionGroup as faults:
                raise faults.exceptions[0] from None
        except OrchestraError as error:
            await asyncio.to_thread(store.stop, id, str(error))
            raise JobError(
                f"job {job.name!r} stopped ({job.progress()}): {error}; submit it again to go on with it"
            ) from error
        finally:
            if rest is not None:
                await rest.aclose()

    async def aclose(self) -> None:
        """Stop all jobs, which stay resumable, and close the ledger. May be called again."""
        for job in list(self._running.values()):
            await job.cancel()
        if self._store is not None:
            self._store.close()
            self._store = None


async def _feed(runner: Runner, rest: Intake | None) -> None:
    while rest is not None and await rest.step():
        runner.stir()
    runner.loaded = True
    runner.stir()


async def _take_in(
    store: JobStore,
    record: JobRecord,
    requests: JsonlFile | Iterable[object] | AsyncIterable[object],
    parser: LineParser,
    digest: bytes | None,
) -> Intake | None:
    """Take in a file whole, and of other requests those that the ledger has. Returns what is still to come."""
    complete = record.state != "loading"
    if complete and digest is not None and digest == record.source:
        return None
    if isinstance(requests, JsonlFile):
        intake = Intake(store, record, file_chunks(requests, parser))
        new = not complete and not intake.comparing
        try:
            lines = await intake.take_all()
            if not lines:
                raise InputError(f"{requests.name}: {NO_LINES}")
            if requests.strict:
                intake.refuse_faults(requests.name)
        except (InputError, ConfigError):
            if new:
                await in_thread(store.discard, record.id)
            raise
        return None
    intake = Intake(store, record, object_chunks(requests, parser))
    while complete or intake.comparing:
        if not await intake.step():
            return None
    return intake


def _begin(
    store: JobStore, name: str, model: str | None, deadline: float | None, source: bytes | None
) -> JobRecord:
    """Return the job of that name, made where there is none.

    One whose intake broke off before anything was asked begins anew: its input may have been put right since.
    """
    record = store.find(name)
    if record is not None and record.state == "loading" and not store.has_asked(record.id):
        store.discard(record.id)
        record = None
    if record is None:
        record = store.create(name, created=time.time(), model=model, deadline=deadline, source=source)
    return record


def checked_name(name: str | None) -> str:
    """Return the name, or a new one where it is None. Raises InputError where no job can be called so."""
    if name is None:
        return time.strftime("job-%Y%m%d-%H%M%S-") + secrets.token_hex(3)
    if not name or len(name) > 200 or not name.isprintable() or name != name.strip():
        raise InputError(f"job name {name!r:.80}: must be 1 to 200 printable characters, without spaces around it")
    return name
