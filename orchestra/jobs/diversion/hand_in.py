"""Hands a batch in: writes its lines, uploads them, and has the provider create it, once.

Every step is in the ledger before the next begins. A batch whose creation nobody lived to record is looked for at
the provider before it is created again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from textwrap import shorten
from typing import IO, TypeVar

from orchestra.batches import (
    AccountRefused,
    BatchBusy,
    BatchDesk,
    BatchForbidden,
    BatchRefused,
    BatchRoute,
    BatchUnclear,
    Lines,
)
from orchestra.errors import BudgetExceeded, ConnectionFailed, JobError, PriceUnknown, QueueFull
from orchestra.jobs.diversion.errand import Errand
from orchestra.jobs.ledger.batch_ledger import number_of, wire_id
from orchestra.jobs.ledger.record import BatchRecord, JobRecord
from orchestra.jobs.ledger.store import JobStore
from orchestra.jobs.ledger.threads import in_thread
from orchestra.jobs.progress.progress import format_usd
from orchestra.policies.batch_failure import is_meant
from orchestra.providers.batches import BatchLine, BatchOrder, BatchState

__all__ = ["HandIn", "TooDear", "is_outage", "told_of"]

T = TypeVar("T")

_log = logging.getLogger("orchestra.jobs")

_PAGE_LINES = 1000
_PAGE_BYTES = 4 << 20
_PIECE = 256 << 10
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_LOOKS = (0.0, 3.0, 10.0)
"""After how many seconds each a batch is looked for that may have been created."""
_UNCLEAR = 60.0
"""After how many seconds it is looked for again where it may be another one."""
_ROOM_IN = 2.0
"""Seconds after which a batch that has no room under a cap in dollars is said to wait for it."""
_LONGEST_REASON = 200


class TooDear(BudgetExceeded):
    """A cap in dollars never has room for the batch. ``is_divisible``: it may have for smaller ones."""

    def __init__(self, message: str, *, is_divisible: bool) -> None:
        super().__init__(message)
        self.is_divisible = is_divisible


def is_outage(error: Exception) -> bool:
    """Return whether a request failed for what would have met any other."""
    return isinstance(error, ConnectionFailed) or (isinstance(error, BatchBusy) and error.status >= 500)


def told_of(error: Exception) -> str:
    """Return what is told of an outage, in one line."""
    return shorten(str(error), _LONGEST_REASON, placeholder=" ...")


class HandIn:
    """Hands in the batch ``record`` along ``route``."""

    def __init__(
        self,
        store: JobStore,
        job: JobRecord,
        record: BatchRecord,
        route: BatchRoute,
        desk: BatchDesk,
        errand: Errand | None = None,
    ) -> None:
        self._store = store
        self._ledger = store.batches
        self._job = job
        self._record = record
        self._route = route
        self._desk = desk
        self._errand = errand
        self._client = desk.client(route)
        self._order = BatchOrder(record.key, f"/v1{route.endpoint}", route.model, record.window, route.headers)
        self._file_id = record.file_id
        self._numbers: set[int] | None = None
        self._is_unclear = False
        self._forbidden, self._forbidden_at = 0, 0.0  # how often in a row, and since when
        self._asked_at = desk.wall()
        """When the provider was asked to create it, at the latest."""
        self.is_asked = record.state == "creating"
        """Whether the provider was asked to create the batch, and nobody knows what came of it."""
        self._give_back: Callable[[], None] | None = None

    async def run(self) -> str:
        """Return the provider's name of the batch, which is in the ledger.

        Broken off, it gives back what it took of a cap in dollars, unless the batch may have been created. Raises
        BatchRefused, and TooDear where a cap in dollars never has room for it.
        """
        try:
            state = await self._found() if self.is_asked else None
            if state is None:
                async with self._desk.uploading(self._route):
                    await self._desk.until_open(self._route)
                    state = await self._create()
            return await self._submitted(state)
        except BaseException:
            if not self.is_asked:
                self.give_back()
            raise

    async def find(self, *, at_once: bool = False) -> str | None:
        """Look once more for a batch that `run` may have created before it was broken off.

        Where this is known only when others have ended, wait for that, or raise BatchUnclear ``at_once``.
        """
        state = await self._found(at_once=at_once) if self.is_asked else None
        return None if state is None else await self._submitted(state)

    def give_back(self) -> None:
        """Say that the batch has cost nothing: what it took of a cap in dollars is there again.

        Only what this very object took is known; what an earlier process did stays spent for its day.
        """
        if (give_back := self._give_back) is not None:
            self._give_back = None
            give_back()

    async def _submitted(self, state: BatchState) -> str:
        now = self._desk.wall()
        await in_thread(self._ledger.submitted, self._record.id, state.id, state.status, state.expires, now)
        self.is_asked = False
        self._desk.note_created(self._route)
        return state.id

    async def _create(self) -> BatchState:
        is_ours = self._file_id is None  # whether the file was uploaded by this very process
        with self._told(), tempfile.TemporaryFile(dir=self._store.path.parent) as spool:
            size, usd = await in_thread(self._spool, spool)
            if not self._route.form.is_call:
                await self._afford(usd)
            try:
                return await self._created(await self._content(spool, size), size)
            except AccountRefused:
                if self._file_id is not None and not self.is_asked:  # it is there, and nothing was made of it
                    await in_thread(self._ledger.uploaded, self._record.id, self._file_id)
                raise
            except BatchRefused:
                if is_ours or not self._route.form.takes_files:
                    raise
            self._file_id = None  # it may be gone by now
            return await self._created(await self._content(spool, size), size)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say what helps where the lines cannot be written to the disk."""
        try:
            yield
        except OSError as error:
            if error.errno is None:  # of no file
                raise
            raise JobError(
                f"{self._store.path.parent}: a batch cannot be written there before it is uploaded "
                f"({error.strerror}); make room on the disk and run the same command again"
            ) from error

    async def _afford(self, usd: float | None) -> None:
        """Wait until a cap in dollars has room for the batch."""
        route, lines = self._route, self._record.lines
        what = f"a batch of {lines} line{'s' * (lines > 1)}, up to {format_usd(usd or 0.0)},"
        taking = asyncio.ensure_future(self._desk.afford(route, usd, job=self._job.name))
        try:
            await asyncio.wait({taking}, timeout=_ROOM_IN)
            if not taking.done():
                self._tell(f"{what} waits for room under usd_per_day = {format_usd(route.cap)}", None)
            await taking
            self._works()
        except PriceUnknown:
            raise
        except BudgetExceeded as error:
            raise TooDear(
                f"{what} does not fit usd_per_day = {format_usd(route.cap)}: {error}",
                is_divisible=lines > 1 and (usd or 0.0) > route.cap_share,
            ) from None
        finally:
            if not taking.done():
                taking.cancel()
                await asyncio.wait({taking})
            if not taking.cancelled() and taking.exception() is None:  # also where we are cancelled just then
                self._give_back = taking.result()

    async def _created(self, content: str | Lines, size: int) -> BatchState:
        await in_thread(self._ledger.creating, self._record.id, self._desk.wall())
        pause = _Pause(self._desk.sleep)
        while True:
            fault: Exception | None = None
            try:
                state = await self._ask(content, size)
                self._works()
                return state
            except QueueFull:
                wait = 0.0
            except BatchBusy as error:
                self.is_asked, wait, fault = error.status >= 500 or error.status == 408, error.retry_after, error
            except ConnectionFailed as error:
                self.is_asked, wait, fault = error.sent, 0.0, error
            except BatchRefused as error:
                self.is_asked, wait = False, 0.0
                if self._is_meant(error):
                    raise
            if self.is_asked and (found := await self._found()) is not None:
                return found
            self._fails(fault, pause.seconds(wait))
            await pause(wait)

    async def _ask(self, content: str | Lines, size: int) -> BatchState:
        if not self._route.form.is_call:
            self.is_asked, self._asked_at = True, self._desk.wall()
            return await self._client.create(self._order, content, size)
        if not self._desk.is_open(self._route):
            raise BatchRefused(f"{self._route.name} takes nothing just now", status=400)
        (line,) = await in_thread(lambda: self._ledger.lines(self._record.id, 0, max_lines=1, max_bytes=0))
        with await self._desk.admit(self._route, json.loads(line.body), job=self._job.name) as creation:
            self.is_asked = True
            return await self._client.create(self._order, content, size, heard=creation.heard)

    async def _content(self, spool: IO[bytes], size: int) -> str | Lines:
        """Return what the batch is created of: the id of its file, uploaded where it was not, or its lines."""
        if not self._route.form.takes_files:
            return lambda: _lines(spool)
        if self._file_id is None:
            upload = partial(self._client.upload, self._order, lambda: _pieces(spool), size)
            self._file_id = await self._persist(upload)
            await in_thread(self._ledger.uploaded, self._record.id, self._file_id)
        return self._file_id

    def _spool(self, spool: IO[bytes]) -> tuple[int, float | None]:
        """Write the batch's lines as the provider wants them. Returns their size, and what they are thought to
        cost, None where nobody knows, or wants to know. Blocks."""
        route, after = self._route, 0
        usd: float | None = 0.0 if route.is_capped else None
        while lines := self._ledger.lines(self._record.id, after, max_lines=_PAGE_LINES, max_bytes=_PAGE_BYTES):
            page = []
            for line in lines:
                custom_id = wire_id(self._job.tag, line.number)
                written = route.form.line(self._order, BatchLine(custom_id, route.body_for(line.body)))
                page.append(written if written.endswith(b"\n") else written + b"\n")
                if usd is not None:
                    expected = route.expected_usd(json.loads(line.body))
                    usd = None if expected is None else usd + expected
            spool.write(b"".join(page))  # at once: each write gives the interpreter's lock away
            after = lines[-1].number
        spool.flush()
        return spool.tell(), usd

    async def _found(self, *, at_once: bool = False) -> BatchState | None:
        """Look for a batch that may have been created. Returns None where there is none.

        One that only may be it can be somebody else's: it is not touched, and its results will tell.
        """
        record = self._record
        if self._numbers is None:  # kept: lines that were let go meanwhile are in the batch all the same
            self._numbers = set(await in_thread(self._ledger.numbers, record.id))
        numbers = self._numbers
        looks = iter(_LOOKS)
        while (wait := next(looks, None)) is not None:
            await self._desk.sleep(wait)
            claimed = await in_thread(self._ledger.claimed, record.provider)
            find = partial(
                self._client.find,
                self._order,
                since=record.opened,
                is_ours=lambda custom_id: number_of(self._job.tag, custom_id) in numbers,
                file_id=self._file_id,
                total=record.lines,
                claimed=claimed,
                until=self._asked_at,
            )
            if (state := await self._persist(find, at_once=at_once)) is None:
                continue
            if state.key == record.key:
                return state
            if at_once:
                raise BatchUnclear(f"{state.id}, which is under way, may be it or somebody else's", ids=[state.id])
            if not self._is_unclear:
                self._is_unclear = True
                told = "a batch of job %s for %s may be %s, or that is somebody else's: known when it has ended"
                _log.warning(told, self._job.name, self._route.name, state.id)
            looks = iter((_UNCLEAR, *_LOOKS))
        self.is_asked = False
        return None

    async def _persist(self, ask: Callable[[], Awaitable[T]], *, at_once: bool = False) -> T:
        """Ask until there is an answer, or a refusal that is meant.

        ``at_once``: the first refusal is, and what is not clear is not waited for.
        """
        pause = _Pause(self._desk.sleep)
        while True:
            try:
                answer = await ask()
                self._works()
                return answer
            except (BatchBusy, ConnectionFailed) as error:
                if isinstance(error, BatchUnclear) and at_once:
                    raise
                wait = error.retry_after if isinstance(error, BatchBusy) else 0.0
                self._fails(error, pause.seconds(wait))
                await pause(wait)
            except BatchRefused as error:
                if at_once or self._is_meant(error):
                    raise
                await pause(0.0)

    def _is_meant(self, error: BatchRefused) -> bool:
        """Return whether a refusal is believed, and count it."""
        if not isinstance(error, BatchForbidden) or self._route.form.is_call:
            return True
        if not self._desk.is_open(self._route):  # another batch has found it meant
            return True
        now = self._desk.wall()
        if not self._forbidden:
            self._forbidden_at = now
            told = "a batch of job %s for %s is forbidden (%s): tried again before that is believed"
            _log.warning(told, self._job.name, self._route.name, told_of(error))
        self._forbidden += 1
        return is_meant(self._forbidden, now - self._forbidden_at)

    def _fails(self, error: Exception | None, seconds: float) -> None:
        if error is not None and is_outage(error):
            self._tell(told_of(error), self._desk.wall() + seconds)

    def _tell(self, why: str, until: float | None) -> None:
        if self._errand is not None:
            self._errand.fails("handed in", why, until)

    def _works(self) -> None:
        self._forbidden = 0
        if self._errand is not None:
            self._errand.works("handed in")


class _Pause:
    """Pauses that grow, and are never shorter than what the provider asks for."""

    def __init__(self, sleep: Callable[[float], Awaitable[object]]) -> None:
        self._sleep = sleep
        self._next = _FIRST_PAUSE

    def seconds(self, at_least: float) -> float:
        """Return how long the next pause is."""
        return max(self._next, at_least)

    async def __call__(self, at_least: float) -> None:
        await self._sleep(self.seconds(at_least))
        self._next = min(2 * self._next, _LONGEST_PAUSE)


async def _pieces(spool: IO[bytes]) -> AsyncIterator[bytes]:
    at = 0
    while piece := await asyncio.to_thread(_read_at, spool, at):
        at += len(piece)
        yield piece


async def _lines(spool: IO[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines, one a piece and without their ends. They hold no newline: they are compact JSON."""
    rest = b""
    async for piece in _pieces(spool):
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


def _read_at(spool: IO[bytes], at: int) -> bytes:
    spool.seek(at)
    return spool.read(_PIECE)
