"""Sends a job's lines, and records how they end.

At most ``window`` lines are under way at once, whatever the size of the job. A line is under way until its end is
recorded, so a slow disk slows the sending down and nothing piles up.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from textwrap import shorten
from typing import Literal

from orchestra.call import Call, Outcome
from orchestra.clock import REAL_TIME, Clock
from orchestra.dispatch import Outage
from orchestra.durations import format_duration
from orchestra.errors import JobError, OrchestraError
from orchestra.jobs.ledger.line import Line
from orchestra.jobs.ledger.record import End, JobRecord, LineError
from orchestra.jobs.ledger.store import JobStore
from orchestra.jobs.ledger.threads import in_thread
from orchestra.jobs.progress.pace import BusyMeter
from orchestra.jobs.progress.progress import RateMeter
from orchestra.jobs.sending.patience import Patience
from orchestra.jobs.sending.verdict import Blocked, judge_answer, judge_error
from orchestra.policies.traffic import TrafficClass

__all__ = ["Price", "Runner", "Send"]

Send = Callable[[Call], Awaitable[Outcome]]
"""Takes one call all its way: admission, sending, retries, further routes."""

Price = Callable[[Outcome], float | None]
"""Says what an answer cost, in USD; None where nobody knows."""


def _unpriced(outcome: Outcome) -> None:
    return None


SUSPICIONS = 3
"""How often a line may fail while others are answered, before it is held to blame."""

GRACE = 10.0
"""Seconds that calls under way may still take when the job stops by itself."""

FAULT_TOLD = 200
"""Characters of a fault that are told while the job waits."""

_PAGE_BYTES = 4 << 20


class Runner:
    """Sends a job's lines one by one, once. ``on_ended`` is told how many more have ended, each time some have.

    ``alone``: only those are sent that were dealt to go by themselves; otherwise all. ``last_chance`` is awaited
    when the job's deadline has passed, before what has no end is given up: it may bring answers from elsewhere.
    ``outage`` says why nobody answers just now: calls that try again and again have not told it yet.
    """

    def __init__(
        self,
        store: JobStore,
        job: JobRecord,
        send: Send,
        *,
        window: int,
        patience: Patience,
        on_ended: Callable[[int], None],
        price: Price = _unpriced,
        outage: Callable[[], Outage | None] = lambda: None,
        alone: bool = False,
        last_chance: Callable[[], Awaitable[object]] | None = None,
        clock: Clock = REAL_TIME,
    ) -> None:
        self._store = store
        self._job = job
        self._send = send
        self._window = window
        self._patience = patience
        self._on_ended = on_ended
        self._price = price
        self._outage = outage
        self._outlet: Literal["any", 0] = 0 if alone else "any"
        self._last_chance = last_chance
        self._taken: set[int] = set()  # lines whose end is not in the ledger yet
        self._page: deque[Line] = deque()
        self._again: deque[Line] = deque()
        self._last_number = 0
        self._rewinds = 0
        self._clock = clock
        self._meter = RateMeter(clock.monotonic())
        self._pace = BusyMeter()
        self._calls: dict[asyncio.Task[None], int] = {}  # and the numbers of their lines
        self._ends: list[End] = []
        self._recording = 0
        self._answers = 0
        self._stopped: str | None = None
        self._fault = ""
        self._fault_noted = False
        self._crash: BaseException | None = None
        self._stirred = asyncio.Event()
        self._ended = asyncio.Event()
        self._closing = False
        self.loaded = False
        """Whether the job's last line is in the ledger. Set it, then `stir`."""

    def stir(self) -> None:
        """Say that something has changed that the runner may be waiting for."""
        self._stirred.set()

    def rewind(self) -> None:
        """Say that there are lines again before the last one that was read."""
        self._page.clear()
        self._last_number = 0
        self._rewinds += 1
        self.stir()

    def forgo(self, numbers: Sequence[int]) -> None:
        """Say that these lines have ended in the ledger without us: those under way are given up."""
        ended = set(numbers)
        for call, number in list(self._calls.items()):
            if number in ended:
                call.cancel()
        for line in [line for line in self._again if line.number in ended]:
            self._again.remove(line)
            self._taken.discard(line.number)
        self.rewind()

    def seconds_for(self, lines: int) -> float | None:
        """Return how long so many lines take as fast as they ended lately; None where too few have."""
        return self._meter.seconds_for(lines, self._clock.monotonic())

    def pace(self) -> float | None:
        """Return how many lines a second are answered while there are any to send; None where none was."""
        return self._pace.rate(self._clock.monotonic())

    def waiting(self) -> str | None:
        """Return why nothing but a try is sent, until when, and what then; None where all goes well."""
        outage, trying = self._outage() if self._calls else None, self._patience.trying
        if outage is None and not trying:
            return None
        reason, wait = (self._fault, 0.0) if outage is None else outage
        wait = max(wait, self._patience.pause(self._clock.monotonic()))
        told = f"{_short(reason)}; {f'next try in {math.ceil(wait)}s' if wait else 'trying one line'}"
        if not trying:
            return told
        return f"{told}; gives up after {format_duration(self._patience.limit)} of no answer at all"

    async def run(self) -> None:
        """Send until every line has an end. Raises JobError where that cannot be.

        Cancelled, it cancels the calls under way, whose lines stay pending, and records the ends it knows.
        """
        recorder = asyncio.create_task(self._record())
        recorder.add_done_callback(lambda _: self.stir())
        deadline = self._job.deadline
        bound = asyncio.timeout(None if deadline is None else max(0.0, deadline - self._clock.wall()))
        try:
            async with bound:
                await self._send_all(recorder)
        except TimeoutError:
            if not bound.expired():
                raise
        finally:
            calls = list(self._calls)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            self._closing = True
            self._ended.set()
            await recorder
            if self._fault_noted:  # it stands still no more for that: it is over, or whoever ended it says why
                await in_thread(self._store.stop, self._job.id, None)
        if bound.expired():
            if self._last_chance is not None:
                await self._last_chance()
            await self._expire()

    async def _send_all(self, recorder: asyncio.Task[None]) -> None:
        while True:
            self._stirred.clear()
            # looked at before the ledger is: lines may come in after the ledger was, but none after the last
            loaded = self.loaded
            if recorder.done():
                recorder.result()
            if self._crash is not None:
                raise self._crash
            if self._stopped is not None:
                await self._drain()
                raise JobError(self._stopped)
            await self._note_fault()
            under_way = len(self._calls) + len(self._ends) + self._recording
            if under_way >= (1 if self._patience.trying else self._window):
                await self._stirred.wait()
            elif pause := self._patience.pause(self._clock.monotonic()):
                await _wait(self._stirred, pause)
            elif (line := await self._next_line()) is not None:
                self._start(line)
            elif loaded and not under_way:
                return
            else:
                await self._stirred.wait()

    async def _note_fault(self) -> None:
        """Let other processes know, once for each outage, why the job stands still."""
        if self._fault_noted != self._patience.trying:
            self._fault_noted = self._patience.trying
            outage = self._outage()
            fault = self._fault if outage is None else _short(outage.reason)
            reason = fault if self._fault_noted else None
            await asyncio.to_thread(self._store.stop, self._job.id, reason)

    async def _next_line(self) -> Line | None:
        if self._again:
            return self._again.popleft()
        while True:
            if not self._page:
                rewinds, taken = self._rewinds, set(self._taken)
                page = await asyncio.to_thread(
                    self._store.pending,
                    self._job.id,
                    self._last_number,
                    outlet=self._outlet,
                    max_lines=self._window,
                    max_bytes=_PAGE_BYTES,
                )
                if rewinds != self._rewinds:
                    continue
                if not page:
                    return None
                # after a rewind lines come again that are under way, or were when the ledger was read
                self._last_number = page[-1].number
                self._page.extend(line for line in page if line.number not in taken)
            if self._page:
                return self._page.popleft()

    def _start(self, line: Line) -> None:
        self._taken.add(line.number)
        self._pace.work(True, self._clock.monotonic())
        call = asyncio.create_task(self._ask(line))
        self._calls[call] = line.number
        call.add_done_callback(self._finished)

    def _finished(self, call: asyncio.Task[None]) -> None:
        number = self._calls.pop(call)
        if call.cancelled():
            self._taken.discard(number)
            self._pace.work(bool(self._taken), self._clock.monotonic())
        elif (error := call.exception()) is not None:
            self._crash = error
        self.stir()

    async def _ask(self, line: Line) -> None:
        answers = self._answers
        verdict = await self._answer(line)
        if isinstance(verdict, End):
            self._end(verdict)
            return
        if verdict.suspect and self._answers > answers:
            attempts = await asyncio.to_thread(self._store.count_attempt, self._job.id, line.number)
            if attempts < SUSPICIONS:
                self._again.append(line)
            else:
                self._end(End(line.number, verdict.error, status_code=verdict.status_code))
            return
        self._fault = _short(verdict.error.message)
        if verdict.hopeless or not self._patience.fault(self._clock.monotonic(), verdict.retry_after):
            self._stop(verdict)
        else:
            self._again.append(line)

    async def _answer(self, line: Line) -> End | Blocked:
        call = Call.originate(
            line.path,
            json.loads(line.body),
            traffic=TrafficClass.BULK,
            job=self._job.name,
            expires_at=self._expires_at(),
        )
        try:
            outcome = await self._send(call)
            verdict = judge_answer(line.number, outcome, await outcome.read())
            return verdict if isinstance(verdict, Blocked) else replace(verdict, usd=self._price(outcome))
        except OrchestraError as error:
            return judge_error(line.number, error)

    def _expires_at(self) -> float | None:
        if self._job.deadline is None:
            return None
        return self._clock.monotonic() + self._job.deadline - self._clock.wall()

    def _end(self, end: End) -> None:
        if end.status_code is not None:
            self._patience.success()
            self._answers += end.error is None
        self._ends.append(end)
        self._ended.set()

    def _stop(self, verdict: Blocked) -> None:
        if self._stopped is None:
            self._stopped = f"{verdict.error.message} [{verdict.error.code}]"

    async def _drain(self) -> None:
        """Let the calls under way end, for a while: they may be paid for already."""
        if self._calls:
            await asyncio.wait(set(self._calls), timeout=GRACE)

    async def _record(self) -> None:
        """Record ends as they come. What comes while the disk is busy goes into the next transaction together."""
        while self._ends or not self._closing:
            await self._ended.wait()
            self._ended.clear()
            ends, self._ends = self._ends, []
            if ends:
                self._recording = len(ends)
                count = await asyncio.to_thread(self._store.finish, self._job.id, ends)
                self._recording = 0
                self._taken.difference_update(end.number for end in ends)
                self._meter.add(self._clock.monotonic(), len(ends))
                self._pace.add(self._clock.monotonic(), len(ends))
                self._pace.work(bool(self._taken), self._clock.monotonic())
                self._on_ended(count)
                self.stir()

    async def _expire(self) -> None:
        error = LineError("expired", "the job's deadline passed before this line could be answered")
        while True:
            self._stirred.clear()
            loaded = self.loaded
            self._on_ended(await asyncio.to_thread(self._store.fail_rest, self._job.id, error))
            if loaded:
                return
            await self._stirred.wait()


def _short(fault: str) -> str:
    return shorten(fault, FAULT_TOLD, placeholder=" ...")


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
