"""Calls that a program awaits, and that have time: they ride in batches, and their callers wait for their lines.

A call is known by its account, its job, what it asks, and how often that was asked before. So a program that is
started again finds the answers that it has paid for, and joins the batches that are still open. Where it names a
job, every answer is kept for it; where not, an answer is kept until it was handed over once.

Whoever stops waiting leaves the others' lines, and the batches, as they are. A batch whose last caller has gone is
not cancelled, once it is on its way: it is paid for line by line as it goes, and what it answers is there for the
next run. One that has not been handed in by then is not made.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any
from urllib.parse import urlsplit

from orchestra.batches import BatchDesk, BatchRoute
from orchestra.call import Call
from orchestra.errors import DeadlineExceeded, JobError
from orchestra.jobs.awaited.leftovers import drop
from orchestra.jobs.diversion.diversion import Diversion
from orchestra.jobs.intake.line_parser import encode_json
from orchestra.jobs.ledger.line import Line
from orchestra.jobs.ledger.lock import JobLock
from orchestra.jobs.ledger.record import AwaitedLine, BatchRecord, End, JobRecord, Result
from orchestra.jobs.ledger.store import JobStore
from orchestra.jobs.ledger.threads import first_of, in_thread
from orchestra.jobs.progress.pace import AllowedPace, pace_of
from orchestra.policies.diversion import SyncPace

__all__ = ["Awaited", "Lot", "request_digest"]

_log = logging.getLogger("orchestra.jobs")

_PAGE = 1000
_PAGE_BYTES = 4 << 20


def request_digest(route: BatchRoute, call: Call) -> bytes:
    """Return what identifies a request: the account and where it is, the model that answers, the endpoint, the
    headers that matter, and the body."""
    parts = (
        route.account.name,
        route.account.place,
        route.fingerprint,
        route.model,
        urlsplit(call.url).path,
        json.dumps(route.headers),
        json.dumps(call.payload, sort_keys=True, separators=(",", ":")),
    )
    return blake2b("\0".join(parts).encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Awaited:
    """What became of a line, which is the ``nth`` asking of the request ``digest``. ``result`` is its end; None
    where its call is to go by itself, and then the caller hands the end in by `Lot.record`.

    It is the caller's once `Lot.took` was told so; until then `Lot.forsake` gives it to whoever asks next.
    """

    number: int
    digest: bytes
    nth: int
    result: Result | None


@dataclass(eq=False, slots=True)
class _Rider:
    """A caller who waits for a line."""

    routes: Sequence[BatchRoute]
    deadline: float
    answer: asyncio.Future[Result | None] = field(repr=False)

    def tell(self, result: Result | None) -> None:
        if not self.answer.done():
            self.answer.set_result(result)

    def fail(self, fault: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(fault)


class Lot:
    """Where the callers of one job wait. It belongs to one loop, and holds the job's lock until `aclose`.

    `open` makes one.
    """

    def __init__(
        self, store: JobStore, job: JobRecord, lock: JobLock, told: int, desk: BatchDesk, *, keeps_all: bool
    ) -> None:
        self._store = store
        self._job = job
        self._lock = lock
        self._told = told  # how many ends have been handed on
        self._desk = desk
        self._keeps_all = keeps_all
        self._riders: dict[int, _Rider] = {}
        self._routes: dict[tuple[str, str, str], BatchRoute] = {}
        self._paces: dict[str, AllowedPace] = {}
        self._asked: Counter[bytes] = Counter()
        self._forsaken: dict[bytes, list[int]] = {}  # askings whose callers have gone
        self._asking = asyncio.Lock()
        self._news = asyncio.Event()
        self._new: list[int] = []  # lines whose callers have just sat down
        self._handed: list[int] = []
        self._left: list[int] = []  # lines whose callers have gone
        self._are_alone = False  # whether there may be lines that are to go by themselves
        self.fault: BaseException | None = None
        """Why nobody is served here any more."""
        self._ending: asyncio.Task[None] | None = None
        self._diversion = Diversion(store, job, desk, self)
        self._task = asyncio.create_task(self._run(), name=f"orchestra job {job.name}")

    @classmethod
    async def open(cls, store: JobStore, name: str, desk: BatchDesk, *, keeps_all: bool) -> Lot:
        """Open the lot of a job, which is made where it is missing.

        ``keeps_all``: answers are kept for every run of the program; otherwise until they were handed over. Raises
        JobLocked where another process has the job, JobError where the name is that of a submitted job.
        """
        held: list[JobLock] = []

        def enter() -> tuple[JobRecord, int]:
            held.append(JobLock(store.path, name))
            job = _opened(store, name, desk.wall())
            return job, store.tally(job.id).ended

        try:
            job, told = await in_thread(enter)
            return cls(store, job, held[0], told, desk, keeps_all=keeps_all)
        except BaseException:
            for lock in held:
                lock.release()
            raise

    @property
    def name(self) -> str:
        return self._job.name

    async def wait(
        self, call: Call, digest: bytes, routes: Sequence[BatchRoute], deadline: float, nth: int | None = None
    ) -> Awaited:
        """Wait for the end of the line that ``call`` is: the next asking of its request, or the ``nth``, claimed.

        ``routes`` are where it can ride, ``deadline`` is unix time. Raises DeadlineExceeded when that has passed,
        JobError where the ledger or the job's batches fail, or the lot is closed.
        """
        if nth is None:
            nth = self.forsaken(digest)
        found: list[AwaitedLine] = []
        try:
            async with self._asking:  # or two who ask the same would get the same line, or one that is withdrawn
                if self.fault is not None:
                    raise self.fault
                await in_thread(lambda: found.append(self._find(digest, call, nth)))
                line = found[0]
                self.claim(digest, line.nth)
                rider = None if line.result is not None else self._seat(line.number, routes, deadline)
            result = line.result if rider is None else await self._ride(line.number, rider)
            return Awaited(line.number, digest, line.nth, result)
        except BaseException:
            if found:  # it may not have sat down
                nth = found[0].nth
                self.claim(digest, nth)
                if found[0].result is None:
                    self._left.append(found[0].number)
                    self._news.set()
            if nth is not None:
                self._forsaken.setdefault(digest, []).append(nth)
            raise

    async def record(self, end: End) -> None:
        """Record how a line ended whose call went by itself."""
        await in_thread(self._store.finish, self._job.id, [end])

    def took(self, awaited: Awaited) -> None:
        """Hear that the caller has the answer."""
        self._handed.append(awaited.number)
        self._news.set()

    def forsake(self, awaited: Awaited) -> None:
        """Hear that the caller has not got the answer. Who asks the same next gets the line."""
        self._forsaken.setdefault(awaited.digest, []).append(awaited.nth)

    def forsaken(self, digest: bytes) -> int | None:
        """Return an asking whose caller has gone, if there is one: it is that of who asks now."""
        left = self._forsaken.pop(digest, [])
        nth = left.pop(0) if left else None
        if left:
            self._forsaken[digest] = left
        return nth

    def claim(self, digest: bytes, nth: int) -> bool:
        """Note that somebody asks for the ``nth`` time. Returns False where somebody has before."""
        if nth <= self._asked[digest]:
            return False
        self._asked[digest] = nth
        return True

    def end(self) -> asyncio.Task[None]:
        """Leave the batches to whoever comes next, and give the job back. Who waits is told so at once."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(), name=f"orchestra job {self.name} ends")
            self._fail(
                JobError(
                    f"closed while the call waited for its batch, which goes on: run this again to join job "
                    f"{self.name!r}"
                )
            )
        return self._ending

    async def aclose(self) -> None:
        """As `end`, and wait for it. Cancelled, it goes on; it may be called again."""
        await asyncio.shield(self.end())

    @property
    def has_failed(self) -> bool:
        """Whether it serves nobody any more, though nobody has closed it."""
        return self.fault is not None and self._ending is None

    async def _end(self) -> None:
        try:
            self._task.cancel()
            await asyncio.wait({self._task})
            async with self._asking:  # who has not sat down by now does not any more
                await in_thread(self._write)
                await in_thread(self._withdraw)
            if not self._keeps_all:
                await in_thread(drop, self._store, self._job.id)
        except JobError as error:
            _log.warning("job %s: not all was recorded at its end: %s", self.name, error)
        finally:
            self._lock.release()

    def _find(self, digest: bytes, call: Call, nth: int | None) -> AwaitedLine:
        """Return the line that this call is. Blocks."""
        path, body = urlsplit(call.url).path, encode_json(call.payload)
        ledger, job = self._store.awaited, self._job.id
        if nth is not None or self._keeps_all:
            return ledger.await_line(job, digest, path, body, nth or self._asked[digest] + 1)
        found = ledger.next_unhanded(job, digest, after=self._asked[digest])
        return ledger.await_line(job, digest, path, body) if found is None else found

    def _seat(self, number: int, routes: Sequence[BatchRoute], deadline: float) -> _Rider:
        for route in routes:
            self._routes.setdefault((route.name, route.path, route.fingerprint), route)
        rider = self._riders[number] = _Rider(routes, deadline, asyncio.get_running_loop().create_future())
        return rider

    async def _ride(self, number: int, rider: _Rider) -> Result | None:
        deadline, answer = rider.deadline, rider.answer
        try:
            self._new.append(number)
            self._news.set()
            self._diversion.stir()
            async with asyncio.timeout(max(0.0, deadline - self._desk.wall())) as bound:
                return await answer
        except TimeoutError:
            if not bound.expired():
                raise
            if answer.done() and not answer.cancelled():  # both at once
                return answer.result()
            raise DeadlineExceeded("the deadline passed before a batch answered this call") from None
        finally:
            del self._riders[number]

    async def _run(self) -> None:
        """Carry the batches, and hand on what they bring. Whoever waits is told where that cannot go on."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._diversion.run())
                group.create_task(self._hand_on())
        except BaseExceptionGroup as faults:
            fault = first_of(faults)
            _log.warning("the batches of job %s are not carried any more: %s", self._job.name, fault)
            self._fail(fault)
        except asyncio.CancelledError:
            if self._ending is None:  # it is the loop that ends
                self._lock.release()
            raise

    def _fail(self, fault: BaseException) -> None:
        if self.fault is None:
            self.fault = fault
        for rider in list(self._riders.values()):
            rider.fail(self.fault)

    async def _hand_on(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await in_thread(self._write)
            if self._left:
                async with self._asking:
                    await in_thread(self._withdraw)
            # what has ended, or was let go, before its caller sat down
            new, self._new = self._new, []
            for result in await in_thread(self._ended_of, new):
                self._tell(result)
            while results := await in_thread(
                lambda: self._store.completed(self._job.id, self._told, max_lines=_PAGE, max_bytes=_PAGE_BYTES)
            ):
                for result in results:
                    self._tell(result)
                self._told = results[-1].ended
            if new or self._are_alone:
                self._are_alone = False
                for number in await in_thread(self._alone):
                    if (rider := self._riders.get(number)) is not None:
                        rider.tell(None)

    def _tell(self, result: Result) -> None:
        if (rider := self._riders.get(result.number)) is not None:
            rider.tell(result)

    # what is read and written, in threads

    def _write(self) -> None:
        """Record what was handed over."""
        handed, self._handed = self._handed, []
        if handed:
            self._store.awaited.handed(self._job.id, handed, self._desk.wall())

    def _withdraw(self) -> None:
        """Forget what nobody waits for."""
        left, self._left = self._left, []
        for number in left:
            if number not in self._riders:
                self._store.awaited.withdraw(self._job.id, number)

    def _ended_of(self, numbers: Sequence[int]) -> list[Result]:
        results = []
        for number in numbers:
            results += self._store.results(self._job.id, number - 1, max_lines=1, max_bytes=_PAGE_BYTES)
        return results  # some may be of lines behind these: that they have ended is true all the same

    def _alone(self) -> list[int]:
        """Return the lines that are to go by themselves."""
        numbers: list[int] = []
        while lines := self._store.pending(
            self._job.id, numbers[-1] if numbers else 0, outlet=0, max_lines=_PAGE, max_bytes=_PAGE_BYTES
        ):
            numbers += [line.number for line in lines]
        return numbers

    # what its batches want to know

    def routes(self, line: Line, payload: Mapping[str, Any]) -> Sequence[BatchRoute]:
        """Return where a line can ride: nowhere, where nobody waits for it."""
        rider = self._riders.get(line.number)
        if rider is None:
            return ()
        first = rider.routes[0]
        self._paces.setdefault(first.name, AllowedPace()).look(first, payload)
        return rider.routes

    def waits(self, number: int) -> bool:
        """Return whether somebody waits for a line: who asked for it may not have sat down yet."""
        return number in self._riders

    def is_awaited(self, record: BatchRecord) -> bool:
        """Return whether somebody waits for one of a batch's lines."""
        return any(number in self._riders for number in self._store.batches.numbers(record.id))

    def deadline(self, number: int) -> float | None:
        """Return the unix time by which a line is wanted."""
        rider = self._riders.get(number)
        return None if rider is None else rider.deadline

    def deadline_of(self, record: BatchRecord) -> float | None:
        """Return the unix time by which the first of those who wait for a batch's lines wants its answer."""
        riders = (self._riders.get(number) for number in self._store.batches.numbers(record.id))
        return min((rider.deadline for rider in riders if rider is not None), default=None)

    def route(self, record: BatchRecord) -> BatchRoute | None:
        """Return the route of a batch that was made earlier; None while nobody who has its key waits."""
        route = self._routes.get((record.route, record.path, record.account))
        return self._desk.reopened(record) if route is None else replace(route, headers=record.headers)

    def pace(self) -> SyncPace:
        """Return how fast calls are answered that go by themselves, as far as the settings tell."""
        return pace_of(list(self._paces.values()))

    def refused(self, route: BatchRoute, why: str) -> None:
        """Hear that the account is refused: the calls go by themselves, and hear so from the provider."""

    def ended(self, numbers: Sequence[int], count: int, *, late: bool) -> None:
        """Hear that lines have ended."""
        self._news.set()

    def released(self) -> None:
        """Hear that there are lines that are to go by themselves."""
        self._are_alone = True
        self._news.set()


def _opened(store: JobStore, name: str, now: float) -> JobRecord:
    """Return the job, made where there is none, without the lines that were never sent."""
    record = store.find(name)
    if record is None:
        return store.create(name, created=now, model=None, deadline=None, source=None, kind="awaited")
    if record.kind != "awaited":
        raise JobError(f"job {name!r} was submitted, and its lines are fixed: give awaited calls another job")
    store.awaited.clear(record.id)
    return record
