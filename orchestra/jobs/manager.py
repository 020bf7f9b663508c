"""Takes jobs in, runs them, and knows those of earlier days."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from orchestra.batches import BatchDesk
from orchestra.clock import REAL_TIME, Clock
from orchestra.dispatch import Outage
from orchestra.durations import parse_duration
from orchestra.errors import ConfigError, InputError, JobError, JobLocked, OrchestraError, UnknownModelError
from orchestra.jobs.diversion.cancelling import Cancellation, cancel_job
from orchestra.jobs.diversion.deleting import Deletion, delete_job
from orchestra.jobs.intake.inspection import inspect_file
from orchestra.jobs.intake.intake import Intake
from orchestra.jobs.intake.line_parser import LineCheck, LineParser
from orchestra.jobs.intake.sources import NO_LINES, JsonlFile, file_chunks, object_chunks
from orchestra.jobs.intake.survey import Survey, survey, survey_left
from orchestra.jobs.job import Job
from orchestra.jobs.job_events import JobEvents
from orchestra.jobs.job_run import JobRun
from orchestra.jobs.ledger.job_name import checked_name
from orchestra.jobs.ledger.lock import JobLock, lock_to
from orchestra.jobs.ledger.record import JobRecord
from orchestra.jobs.ledger.store import JobStore
from orchestra.jobs.ledger.threads import in_thread
from orchestra.jobs.progress.forecast import Forecast, forecast
from orchestra.jobs.sending.patience import Patience
from orchestra.jobs.sending.runner import Price, Send
from orchestra.observe.events import EventBus

__all__ = ["JobManager", "Requests"]

Requests = str | os.PathLike[str] | JsonlFile | Iterable[object] | AsyncIterable[object]
"""A file of lines (its path, or open), or requests as mappings."""


class JobManager:
    """Bulk jobs in the ledger at ``store_path``, sent through ``send``.

    ``check`` may refuse a line before anything is sent. ``desk`` takes batches, where there are any; ``price``
    says what an answer cost, ``dollars_per_hour``, by route, what a machine does, ``outage`` why nobody answers
    just now. ``window`` is how many lines of a job are under way at once, waiting for the budget included.
    ``patience`` is how long, in seconds, a job bears a provider from which nothing but faults comes. ``clock`` is
    that of `Call.expires_at` and of the ledger; ``events`` are told when jobs begin and end, and batches end. The
    ledger is opened, and made, on first use.
    """

    def __init__(
        self,
        store_path: str | os.PathLike[str],
        send: Send,
        *,
        check: LineCheck | None = None,
        desk: BatchDesk | None = None,
        price: Price = lambda outcome: None,
        outage: Callable[[], Outage | None] = lambda: None,
        dollars_per_hour: Mapping[str, float] | None = None,
        window: int = 256,
        patience: float = 300.0,
        clock: Clock = REAL_TIME,
        events: EventBus | None = None,
    ) -> None:
        if window < 1:
            raise ValueError("window must be at least 1")
        self._path = Path(store_path)
        self._send = send
        self._check = check
        self._desk = desk
        self._price = price
        self._outage = outage
        self._dollars_per_hour = dollars_per_hour or {}
        self._window = window
        self._patience = patience
        self._clock = clock
        self._events = JobEvents(events or EventBus(), clock)
        self._store: JobStore | None = None
        self._opening = threading.Lock()  # a submit opens it in a thread of its own
        self._running: dict[str, Job] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    @property
    def store(self) -> JobStore:
        """The ledger. Raises JobError where it cannot be used."""
        with self._opening:
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
        return self._job(record)

    def open_batches(self) -> Sequence[dict[str, Any]]:
        """Return all batches of the ledger that are not over, whoever carries them, as plain values."""
        if self._store is None:
            return []
        if not (batches := self._store.batches.unfinished()):
            return []
        jobs = {record.id: record for record in self._store.jobs()}
        now = self._clock.wall()
        return [
            {
                "provider": batch.provider,
                "account": batch.account,
                "route": batch.route,
                "job": jobs[batch.job].name,
                "state": batch.state,
                "status": batch.status,
                "batch_id": batch.batch_id,
                "lines": batch.lines,
                "riding": batch.riding,
                "age": max(0.0, now - batch.opened),
                "deadline": jobs[batch.job].deadline,
                "expires": batch.expires,
            }
            for batch in batches
            if batch.job in jobs
        ]

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """Return where each job that this process runs stands, as plain values."""
        return {name: job.progress().plain() for name, job in list(self._running.items())}

    async def submit(
        self,
        requests: Requests,
        *,
        model: str | None = None,
        job: str | None = None,
        deadline: float | str | None = None,
        retry_failed: bool = False,
    ) -> Job:
        """Take in a job and run it, or go on with it where it was submitted before.

        ``model`` replaces the requests' own. A job of the same name and requests is joined: what has ended is not
        asked again, and its first ``deadline`` (a time from then on) holds. Without a name it is a new job each
        time. A file is checked whole before anything is sent. Of other requests a bad one fails and the rest go
        on; they are asked for as they can be taken in, and the first may be answered before the last has come.

        ``retry_failed``: lines that have failed are asked again, all but those that cannot be used. Then a first
        deadline that has passed gives way to this one.

        Raises InputError (nothing was sent), JobError (the name belongs to other requests, or the store cannot be
        used) and JobLocked (another process is running it).
        """
        name = checked_name(job)
        expires = self._expires(deadline)
        self.check_model(model)
        parser = LineParser(model=model, check=self._check)
        async with self._turns.setdefault(name, asyncio.Lock()):
            if isinstance(requests, str | os.PathLike):
                with await asyncio.to_thread(JsonlFile.open, requests) as file:
                    return await self._submit(name, file, parser, expires, retry_failed)
            return await self._submit(name, requests, parser, expires, retry_failed)

    async def survey(self, file: JsonlFile, *, model: str | None = None) -> Survey:
        """Check a file as `submit` would, and count what it asks for. Raises InputError for its bad lines."""
        self.check_model(model)
        return await survey(file, LineParser(model=model, check=self._check))

    async def survey_left(
        self, job: JobRecord, file: JsonlFile, *, model: str | None = None, retry_failed: bool = False
    ) -> Survey | None:
        """Count what a job would still ask for, with what has failed where that is to be asked again.

        None where the file, with that model, is not the one that the job was read from.
        """
        return await survey_left(
            self.store, job, file, LineParser(model=model, check=self._check), retry_failed=retry_failed
        )

    def forecast(
        self, found: Survey, *, deadline: float | str | None = None, until: float | None = None
    ) -> Forecast:
        """Return where the lines of a survey would go, at what cost. Nobody is asked. Blocks for a short time.

        ``deadline`` is as in `submit`, ``until`` a deadline that is known already, in unix time.
        """
        if self._desk is None:
            return Forecast(())
        expires = until if deadline is None else self._clock.wall() + parse_duration(deadline)
        if not self._path.exists():
            return forecast(found, self._desk, deadline=expires)
        return forecast(found, self._desk, deadline=expires, p90=self.store.batches.p90)

    async def resume(self, name: str, *, deadline: float | str | None = None, retry_failed: bool = False) -> Job:
        """Go on with a job from the ledger alone, without its input. ``retry_failed`` is as in `submit`.

        ``deadline``, a time from now on, takes the place of the job's own for all lines that have no end, those in
        open batches included.

        Raises InputError for a deadline that is none; JobError where there is no such job, where its input was not
        read to its end, where its lines are calls that a program awaits, and where it runs here and is to be
        changed; JobLocked where another process runs it.
        """
        expires = self._expires(deadline)
        async with self._turns.setdefault(name, asyncio.Lock()):
            job = self.get(name)
            record = job.record
            if name in self._running:
                if retry_failed or expires is not None:
                    raise _still_running(name)
                return job
            if record.state == "ended" and not retry_failed:
                return job
            if record.kind == "awaited":
                raise JobError(f"job {name!r} is made of calls that a program awaits: run that program again")
            if record.state == "loading":
                raise JobError(
                    f"the input of job {name!r} was not read to its end, so not all of its lines are here: submit "
                    "it again, with its input and this name"
                )
            lock = JobLock(self.store.path, name)
            try:
                if retry_failed:
                    record = await self._retry_failed(record, None)
                if expires is not None and record.state != "ended":
                    await in_thread(self.store.set_deadline, record.id, expires)
                    record = self.store.find(name) or record
            except BaseException:
                lock.release()
                raise
            if record.state == "ended":
                lock.release()
                return self._job(record)
            return self._start(record, lock, None)

    def _expires(self, deadline: float | str | None) -> float | None:
        """Return the unix time of a deadline from now on. Raises InputError."""
        try:
            return None if deadline is None else self._clock.wall() + parse_duration(deadline)
        except ValueError as error:
            raise InputError(f"deadline: {error}") from None

    async def cancel(self, name: str, *, collect: bool = True) -> Cancellation:
        """End a job: its lines that have no answer fail with the code ``cancelled``, its batches are cancelled.

        What its batches had answered before is taken in, unless ``collect`` is False: that takes as long as their
        providers need to end them. A batch that could not be cancelled is told with the reason, and goes on there.
        Of an awaited job the calls without an answer are forgotten.

        Raises JobError where there is no such job, JobLocked where another process runs it.
        """
        async with self._turns.setdefault(name, asyncio.Lock()):
            if (running := self._running.get(name)) is not None:
                await running.cancel()
            record = self.get(name).record
            if record.state == "ended":
                return Cancellation(0, 0, ())
            lock = lock_to("cancel", self.store.path, name)
            try:
                return await cancel_job(
                    self.store,
                    record,
                    self._desk,
                    collect=collect,
                    wall=self._clock.wall,
                    on_over=partial(self._events.batch_ended, record),
                )
            finally:
                lock.release()

    async def delete(self, name: str) -> Deletion:
        """Forget a job that has ended: its files at providers, and its requests and answers in the ledger.

        Raises JobError where there is no such job, or it has not ended; JobLocked where a process runs it.
        """
        async with self._turns.setdefault(name, asyncio.Lock()):
            record = self.get(name).record
            lock = lock_to("delete", self.store.path, name)
            try:
                return await delete_job(self.store, record, self._desk)
            finally:
                lock.release()

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
        retry_failed: bool,
    ) -> Job:
        store = await asyncio.to_thread(lambda: self.store)
        digest = None
        if isinstance(requests, JsonlFile):
            digest = await asyncio.to_thread(requests.digest, model=parser.model)
        running = self._running.get(name)
        record = store.find(name)
        if running is not None and record is not None and record.state == "loading":
            if digest is None or digest != record.source:
                raise JobLocked(f"job {name!r} is being submitted by this program already")
            return running
        if running is not None and retry_failed:
            raise _still_running(name)
        if record is not None and (running is not None or (record.state == "ended" and not retry_failed)):
            await _take_in(store, record, requests, parser, digest)
            return running or self._job(record)

        lock = JobLock(store.path, name)
        try:
            record = await _begin(store, name, requests, parser, deadline, digest, self._clock.wall())
            rest = await _take_in(store, record, requests, parser, digest)
            if retry_failed:
                record = await self._retry_failed(record, deadline)
        except BaseException:
            lock.release()
            raise
        if retry_failed and record.state == "ended":
            lock.release()
            return self._job(record)
        return self._start(store.find(name) or record, lock, rest)

    async def _retry_failed(self, record: JobRecord, deadline: float | None) -> JobRecord:
        """Make a job's failed lines pending again, and return it as it is then. Its lock is held."""
        if record.kind == "awaited":
            raise JobError(f"job {record.name!r} is made of calls that a program awaits: run that program again")
        await in_thread(lambda: self.store.retry_failed(record.id, now=self._clock.wall(), deadline=deadline))
        return self.store.find(record.name) or record

    def _start(self, record: JobRecord, lock: JobLock, rest: Intake | None) -> Job:
        """Run a job, of whose lines ``rest`` are still to come, and release its lock when that is over."""
        try:
            job = self._job(record)
            run = JobRun(
                self.store,
                record,
                self._send,
                self._desk,
                rest,
                window=self._window,
                patience=Patience(limit=self._patience),
                price=self._price,
                outage=self._outage,
                on_ended=job.note_ended,
                on_batch_over=partial(self._events.batch_ended, record),
                clock=self._clock,
            )
        except BaseException:
            lock.release()
            raise

        began = self._clock.monotonic()

        def finished() -> None:
            del self._running[record.name]
            self._tell_ended(record, began)
            lock.release()

        self._running[record.name] = job
        self._events.began(record)
        job.start(self._run(job, run), finished=finished, watch=run)
        return job

    def _tell_ended(self, record: JobRecord, began: float) -> None:
        if self._events.listening:
            with suppress(JobError):  # its ledger may be out of reach, which is why it ended
                self._events.ended(record, self.store.tally(record.id), self._clock.monotonic() - began)

    def _job(self, record: JobRecord) -> Job:
        return Job(self.store, record, dollars_per_hour=self._dollars_per_hour, clock=self._clock)

    async def _run(self, job: Job, run: JobRun) -> None:
        """Run a job to its end, and record why where it stops before."""
        store, id = self.store, job.record.id
        try:
            await asyncio.to_thread(store.stop, id, None)
            await run.run()
        except OrchestraError as error:
            await asyncio.to_thread(store.stop, id, str(error))
            raise JobError(
                f"job {job.name!r} stopped ({job.progress()}): {error}; submit it again to go on with it"
            ) from error

    async def aclose(self) -> None:
        """Stop all jobs, which stay resumable, and close the ledger. May be called again."""
        for job in list(self._running.values()):
            await job.cancel()
        if self._store is not None:
            self._store.close()
            self._store = None


def _still_running(name: str) -> JobError:
    return JobError(
        f"job {name!r} is running: its failed lines, or its deadline, can be changed when it has ended"
    )


async def _take_in(
    store: JobStore,
    record: JobRecord,
    requests: JsonlFile | Iterable[object] | AsyncIterable[object],
    parser: LineParser,
    digest: bytes | None,
) -> Intake | None:
    """Take in what must be there before the job runs: the lines that the ledger has already must be the same.

    Of a file that was checked whole its beginning is added too, of a stream that was kept all, of a program's
    requests nothing. Returns what is still to come.
    """
    complete = record.state != "loading"
    same = digest is not None and digest == record.source
    if complete and same:
        return None
    if not isinstance(requests, JsonlFile):
        intake = Intake(store, record, object_chunks(requests, parser))
        while complete or intake.comparing:
            if not await intake.step():
                return None
        return intake

    if requests.strict and not complete:
        parser = LineParser(model=parser.model)  # `_begin` has had them checked
    known = store.last_number(record.id)
    after = known if same else 0
    intake = Intake(store, record, file_chunks(requests, parser, after=after), after=after)
    begun = False
    try:
        while await intake.step():
            # the second look: what is short is whole before it runs
            if begun and requests.strict and not complete and not intake.comparing:
                return intake
            begun = True
        if not intake.at:
            raise InputError(f"{requests.name}: {NO_LINES}")
    except BaseException as error:
        await intake.aclose()
        if isinstance(error, InputError | ConfigError) and not complete and not known:
            await in_thread(store.discard, record.id)
        raise
    return None


async def _begin(
    store: JobStore,
    name: str,
    requests: JsonlFile | Iterable[object] | AsyncIterable[object],
    parser: LineParser,
    deadline: float | None,
    digest: bytes | None,
    now: float,
) -> JobRecord:
    """Return the job of that name, made where there is none. Its file is checked whole first.

    One whose intake broke off before anything was asked begins anew where its input is not known to be the same:
    it may have been put right since.
    """
    record = store.find(name)
    if record is not None and record.state != "loading":
        return record
    lines = 0
    if isinstance(requests, JsonlFile) and requests.strict:
        found = await inspect_file(requests, parser)
        found.refuse(requests.name)
        lines = found.lines
    if record is not None and (digest is None or digest != record.source) and not store.has_asked(record.id):
        await in_thread(store.discard, record.id)
        record = None
    if record is None:
        record = store.create(
            name, created=now, model=parser.model, deadline=deadline, source=digest, expected=lines
        )
    return record
