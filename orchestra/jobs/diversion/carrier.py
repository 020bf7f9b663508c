"""Carries one batch of a job, from its last line to its last result.

Every step is in the ledger before the next begins. So whoever finds a batch in the ledger goes on with it from
where it stood.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from orchestra.batches import (
    AccountRefused,
    BatchBusy,
    BatchDesk,
    BatchForbidden,
    BatchNotFound,
    BatchRefused,
    BatchRoute,
)
from orchestra.errors import BudgetExceeded, ConnectionFailed, JobError
from orchestra.jobs.diversion.batch_verdict import judge_result
from orchestra.jobs.diversion.errand import Errand
from orchestra.jobs.diversion.hand_in import HandIn, TooDear, is_outage, told_of
from orchestra.jobs.ledger.record import BatchRecord, End, JobRecord, LineError
from orchestra.jobs.ledger.store import JobStore
from orchestra.jobs.ledger.threads import in_thread
from orchestra.policies.batch_failure import Recourse, after_failure, after_refusal, given_up_at, is_gone
from orchestra.policies.batch_rhythm import PollPace
from orchestra.policies.escalation import Escalation
from orchestra.providers.batches import BatchState, LineResult

__all__ = ["Carrier", "OutOfSight"]

T = TypeVar("T")

_log = logging.getLogger("orchestra.jobs")

_PAGE_LINES = 1000
_PAGE_BYTES = 4 << 20
_READ_FOR = 3600.0
"""For how many seconds results are asked for that cannot be read; then the lines without are sent again."""
_NEVER = Escalation(math.inf, math.inf)
_LONGEST_NAP = 30.0
"""Seconds after which the bounds are looked at again: they move with what else rides."""
_SHORT_NAP = 1.0
"""The same for a batch whose lines have left it, since they may all be answered by now; and the least where they
have to go soon."""
_LONGEST_LOOK, _SHORTEST_LOOK = 60.0, 2.0
"""Seconds that a look at a batch may take: the longest, and what it gets at least when its lines have to go."""
_SERVED_ENOUGH = 0.5
"""The share of a batch's lines that must have been served for the others to be worth another batch."""
_REFUSALS = 3
"""How often in a row the account is refused, or what is asked of it, before that is believed: some refusals are a
provider's mistake, and some a gateway's that forbids one text."""


class OutOfSight(JobError):
    """A batch is out of reach of the present settings. That says nothing about other batches."""


class Carrier:
    """Carries the batch ``record`` along ``route``."""

    def __init__(
        self,
        store: JobStore,
        job: JobRecord,
        record: BatchRecord,
        route: BatchRoute,
        desk: BatchDesk,
        errand: Errand,
    ) -> None:
        self._store = store
        self._ledger = store.batches
        self._job = job
        self._record = record
        self._route = route
        self._desk = desk
        self._client = desk.client(route)
        self._errand = errand
        self._hand_in = HandIn(store, job, record, route, desk, errand)
        self._is_released = False
        self._is_cancelled = False
        self._over: BatchRecord | None = None  # as it is when it is over
        self._unread_since: float | None = None
        self.next_look: float | None = None
        """When the provider is asked about it next, in unix time; None until it has the batch."""
        self._said: set[str] = set()
        self.riding = record.riding
        """How many of its lines have no end, and wait for it."""
        self.unfinished = min(record.riding, record.lines - (record.finished or 0))
        """How many of these the provider is not known to have answered."""

    async def run(self) -> None:
        """Carry the batch to its end. Cancelled, it stays where the ledger says, to be taken up there again."""
        record = self._record
        if record.state == "sealed" and not await in_thread(self._ledger.pending, record.id):
            # who opened it did not live to deal to it
            await in_thread(self._ledger.abandon, record.id, "it holds no lines", self._desk.wall())
            return
        if record.state == "sealed" and not await in_thread(self._errand.is_awaited):
            await self._give_up("nobody waits for it", again=True, attempted=False)
            return
        if record.state in ("creating", "submitted") and record.origin not in (None, self._route.account.place):
            raise OutOfSight(
                f"a batch of {self._route.name} is at {record.origin}, and [providers.{record.provider}] is at "
                f"{self._route.account.place} now: set base_url back, or give its lines up by "
                f"`orchestra jobs cancel {self._job.name}`"
            )
        async with AsyncExitStack() as held:
            batch_id = record.batch_id or await self._handed_in(held)
            if batch_id is None:
                return
            if record.batch_id is not None:
                await held.enter_async_context(self._queued())
            await self._follow(batch_id)

    # handing it in

    async def _handed_in(self, held: AsyncExitStack) -> str | None:
        """Hand the batch in, in time. Returns the provider's name for it, or None where it was given up."""

        async def hand_in() -> str:
            await held.enter_async_context(self._queued())
            return await self._hand_in.run()

        try:
            if (batch_id := await self._attend(hand_in(), to_the_end=False)) is not None:
                return batch_id
            if not self._hand_in.is_asked:
                await self._give_up("no time was left to hand it in", attempted=False)
                return None
            await self._release()  # it may be on its way all the same, and paid for
            if (batch_id := await self._attend(self._hand_in.find(), to_the_end=True)) is not None:
                return batch_id
            await self._give_up("it was not created in time", free=not self._hand_in.is_asked)
        except TooDear as error:
            # filled under another cap: its lines go in smaller ones
            await self._give_up(str(error), again=error.is_divisible, attempted=False)
        except BudgetExceeded as error:
            # no queue will ever hold all of it; one line after the other may fit
            await self._give_up(str(error), attempted=False)
        except AccountRefused as error:
            self._errand.refused(str(error))
            await self._give_up(f"the provider refused the account: {error}", attempted=False)
        except BatchRefused as error:
            await self._take_refusal(error)
        return None

    async def _take_refusal(self, error: BatchRefused) -> None:
        """Give up a batch that the provider does not create.

        Raises JobError where it may have created it all the same, and forbids to look for it.
        """
        form, forbidden = self._route.form, isinstance(error, BatchForbidden)
        if forbidden and self._hand_in.is_asked and not self._is_released:
            self._errand.refused(f"{error}, so nobody knows whether a batch that was asked for is there")
        if forbidden and form.is_call:  # others may be allowed: a gateway forbids one text
            forbidden = self._desk.note_forbidden(self._route) >= _REFUSALS
        of_line = form.is_call and not forbidden and not form.is_unknown(str(error))
        after = after_refusal(forbidden=forbidden, of_line=of_line)
        if after.shut_for:
            self._desk.shut(self._route, after.shut_for)
        told = self._told_forbidden(error) if forbidden else f"the provider refused it: {error}"
        again = forbidden or (form.is_call and not of_line)  # another route may take them in a batch
        await self._give_up(told, again=again, attempted=after.counts)

    def _told_forbidden(self, error: BatchRefused) -> str:
        provider = self._record.provider
        return (
            f"its key may have no batches: {error}; the lines go by themselves, at the full price. Give the key "
            f"of [providers.{provider}] the right to files and batches, or set [providers.{provider}.batch] "
            "enabled = false"
        )

    def _queued(self) -> Any:
        """Return what holds the batch's room in the account's queue."""
        there = self._record.state in ("creating", "submitted")
        return self._desk.queued(self._route, self._record.tokens, job=self._job.name, already=there)

    async def _attend(self, work: Coroutine[Any, Any, T], *, to_the_end: bool) -> T | None:
        """Return what work returns.

        When the lines have to go meanwhile, return None at once; or, ``to_the_end``, let them, and return None
        when nobody has a use any more for what it brings.
        """
        task = asyncio.ensure_future(work)
        least = self._desk.wall() + (_SHORTEST_LOOK if to_the_end else 0.0)
        try:
            while not task.done():
                now = self._desk.wall()
                until = now if self._is_released else max(least, (await self._bounds()).release_at)
                if task.done():  # meanwhile
                    break
                left = until - now
                if left <= 0 and not to_the_end:
                    return None
                if left <= 0:
                    await self._release()
                    if not await in_thread(self._errand.is_wanted):
                        return None
                await asyncio.wait({task}, timeout=_nap(left))
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    # following it

    async def _follow(self, batch_id: str) -> None:
        """Look at the batch until it has ended, and take in what it brought."""
        config, record = self._route.config, self._record
        pace = PollPace(first=config.poll_seconds, most=config.poll_max_seconds)
        given_up = given_up_at(record.submitted_at or self._desk.wall(), record.window, self._route.outlet())
        misses, missed_at = 0, 0.0
        refusals: Counter[type[BatchRefused]] = Counter()
        while True:
            looked = self._desk.wall()
            try:
                state = await self._look(batch_id)
                misses = 0
                refusals.clear()
                self._errand.works("looked at")
                await in_thread(self._ledger.seen, record.id, state.status, state.finished)
                await self._count(state)
                if state.ended and await self._attend(self._conclude(state), to_the_end=True):
                    return
                self._note_unknown(state)
                next_look = pace.looked(looked, state.status)
            except BatchNotFound:
                missed_at = missed_at if misses else looked
                misses += 1
                if is_gone(misses, looked - missed_at):
                    await self._lose()
                    return
                next_look = pace.failed(looked)
            except (BatchBusy, BatchRefused, ConnectionFailed) as error:
                next_look = pace.failed(looked, getattr(error, "retry_after", None))
                if is_outage(error) or isinstance(error, BatchForbidden):
                    self._errand.fails("looked at", told_of(error), next_look)
                else:
                    self._say(f"cannot be looked at: {error}")
                if isinstance(error, BatchRefused):
                    refusals[type(error)] += 1
                if refusals[AccountRefused] >= _REFUSALS:
                    self._errand.refused(str(error))
                if refusals[BatchForbidden] >= _REFUSALS:  # what cannot be looked at is not to be paid for
                    self._desk.shut(self._route, next_look - looked + after_refusal(forbidden=False).shut_for)
            if looked >= given_up:
                await self._give_up("it has not ended in all its time")
                return
            if not await self._wait(batch_id, looked, next_look):
                await self._give_up("its lines were answered otherwise, or it was too late for them")
                return

    async def _count(self, state: BatchState) -> None:
        """Count what is not finished: by the provider while it is at work, and then by what it has told."""
        if self._is_released:
            return
        if state.ended:
            self.unfinished = self.riding = await in_thread(self._ledger.pending, self._record.id)
        else:
            self.unfinished = min(self.riding, self._record.lines - (state.finished or 0))

    async def _look(self, batch_id: str) -> BatchState:
        """Ask the provider for the batch, without waiting for long where its lines have to go soon."""
        left = (await self._bounds()).release_at - self._desk.wall()
        traits = self._route.form.traits
        turn = (traits.max_open or 0) / traits.looks_per_second  # thousands may come before it
        try:
            async with asyncio.timeout(min(_LONGEST_LOOK + turn, max(_SHORTEST_LOOK, left))):
                return await self._client.poll(batch_id)
        except TimeoutError:
            raise ConnectionFailed("no answer in time", sent=True) from None

    async def _wait(self, batch_id: str, looked: float, next_look: float) -> bool:
        """Wait until the batch is to be looked at again, and let its lines go when it is time for that.

        Returns False where nobody has a use for it any more.
        """
        self.next_look, tries_again = next_look, looked
        while True:
            now, bounds = self._desk.wall(), await self._bounds()
            lately = now - self._route.config.poll_seconds
            if now >= bounds.release_at and not self._is_released:
                if looked < min(lately, bounds.release_at):
                    return True  # it may have ended meanwhile; a look may take longer than the pause between two
                await self._release()
            if self._is_released and not await in_thread(self._errand.is_wanted):
                return False
            presses = [next_look, now + _nap(0.0 if self._is_released else bounds.release_at - now)]
            is_over = self._is_released or now >= bounds.cancel_at
            if is_over and not self._is_cancelled and now >= tries_again:
                if looked < min(lately, bounds.cancel_at):
                    return True
                self._is_cancelled = bool(await self._attend(self._cancel(batch_id), to_the_end=True))
                if self._is_cancelled:
                    return True
                tries_again = now + self._route.config.poll_seconds
                presses.append(tries_again)
            if now >= next_look:
                return True
            presses += [at for at in bounds if at > now]
            await self._desk.sleep(max(0.0, min(presses) - self._desk.wall()))

    async def _bounds(self) -> Escalation:
        return await in_thread(self._errand.bounds) or _NEVER

    async def _lose(self) -> None:
        """Forget a batch that the provider does not know any more."""
        if self._record.batch_id is not None and self._record.account != self._route.fingerprint:
            raise OutOfSight(
                f"a batch of {self._route.name} was made with another key ({self._record.account}), and the "
                f"present one does not see it: configure that key again, or give its lines up by "
                f"`orchestra jobs cancel {self._job.name}`"
            )
        await self._give_up("the provider does not know it any more")

    async def _cancel(self, batch_id: str) -> bool:
        """Ask the provider to end the batch. Returns whether it was heard, or cannot be."""
        try:
            await self._client.cancel(batch_id)
        except (BatchBusy, ConnectionFailed):
            return False
        except (BatchNotFound, BatchRefused):
            pass  # it has ended, or this provider does not do so: the next look tells
        return True

    async def _conclude(self, state: BatchState) -> bool:
        """Take in the results of a batch that has ended. Returns False where they cannot be read yet."""
        if state.failed is not None and not state.files:
            await self._fail(*state.failed, queue_full=state.queue_full, free=not state.finished)
            return True
        self._desk.note_served(self._route)
        record = self._record
        if not await self._read(state):
            return False
        rest = await in_thread(self._ledger.pending, record.id)
        if rest:
            is_worth_another = rest <= (1 - _SERVED_ENOUGH) * record.lines and not self._is_cancelled
            outlet = None if is_worth_another else 0
            await in_thread(lambda: self._ledger.release(record.id, outlet=outlet, attempted=True))
        counts = not self._is_cancelled
        await self._close(lambda: self._ledger.end(record.id, state.status, self._desk.wall(), count=counts))
        if rest:
            self._errand.released()
        return True

    async def _read(self, state: BatchState) -> bool:
        """Take in what results there are. Returns False where they are not there yet: they are paid for."""
        now = self._desk.wall()
        page: list[LineResult] = []
        size = 0
        try:
            async for results in self._client.results(state):
                page += results
                size += sum(result.size for result in results)
                if len(page) >= _PAGE_LINES or size >= _PAGE_BYTES:
                    await self._take_in(page)
                    page, size = [], 0
        except (BatchRefused, BatchBusy, ConnectionFailed) as error:
            if self._unread_since is None:
                self._unread_since = now
            self._say(f"has results that cannot be read: {error}")
            return now - self._unread_since >= _READ_FOR
        finally:
            await self._take_in(page)
        return True

    async def _take_in(self, results: Sequence[LineResult]) -> None:
        verdicts = (judge_result(self._job.tag, self._route, result) for result in results)
        ends = [end for end in verdicts if end is not None]
        if ends:
            await self._finish(ends)

    async def _finish(self, ends: Sequence[End]) -> None:
        count = await in_thread(self._store.finish, self._job.id, ends)
        self._errand.ended([end.number for end in ends], count, late=self._is_released)

    # letting go of its lines

    async def _release(self) -> None:
        """Let the lines that have no end go by themselves. What the batch still brings counts if it is first."""
        if not self._is_released:
            self._is_released, self.unfinished, self.riding = True, 0, 0
            if await in_thread(lambda: self._ledger.release(self._record.id, outlet=0, attempted=True)):
                self._errand.released()

    async def _fail(self, code: str, message: str, *, queue_full: bool, free: bool) -> None:
        """Do with the lines what the failure of the whole batch says of them. ``free``: it failed before its first
        line, and no provider bills that."""
        times = self._desk.note_failed(self._route)
        answers = await in_thread(self._answers)
        after = after_failure(code, queue_full=queue_full, times=times, answers=answers)
        if after.recourse is Recourse.REFUSE:
            await self._refuse(LineError(code, message))
        if after.recourse is Recourse.WAIT:
            self._desk.note_full(self._route, after.shut_for)
        else:
            self._desk.shut(self._route, after.shut_for)
        again = after.recourse is Recourse.WAIT
        await self._give_up(f"{code}: {message}", again=again, attempted=after.counts, free=free)

    def _answers(self) -> bool:
        """Return whether its model is known to answer lines that go by themselves. Blocks."""
        ways = [way for way in self._store.outlets(self._job.id) if way.route == self._route.name]
        return any(way.via == "sync" and way.lines > way.failed for way in ways)

    async def _refuse(self, error: LineError) -> None:
        """End every line with the error of the batch."""
        route, via = self._route.name, self._route.form.via
        while lines := await in_thread(
            self._ledger.lines, self._record.id, 0, max_lines=_PAGE_LINES, max_bytes=_PAGE_BYTES
        ):
            await self._finish([End(line.number, error, route=route, via=via) for line in lines])

    async def _give_up(
        self, note: str, *, again: bool = False, attempted: bool = True, free: bool = False
    ) -> None:
        """Forget the batch, which cost nothing where it is ``free``. Its lines go by themselves, or in another one
        (``again``)."""
        if free:
            self._hand_in.give_back()
        level = logging.INFO if self._route.form.is_call else logging.WARNING  # there may be thousands
        _log.log(level, "a batch of job %s for %s was given up: %s", self._job.name, self._route.name, note)
        outlet = None if again else 0
        await in_thread(lambda: self._ledger.release(self._record.id, outlet=outlet, attempted=attempted))
        await self._close(lambda: self._ledger.abandon(self._record.id, note, self._desk.wall()))
        self._errand.released()

    async def _close(self, record: Callable[[], object]) -> None:
        """Record that the batch is over, once, and tell of it, though its results may be late for everybody."""

        def close() -> None:
            record()
            self._over = self._ledger.get(self._record.id)

        if self._over is not None:
            return
        try:
            await in_thread(close)
        finally:
            if self._over is not None:
                self._errand.over(self._over)

    # saying what is strange about it

    def _note_unknown(self, state: BatchState) -> None:
        known = self._route.form.endings()
        if known and state.status not in known:
            self._say(f"has the status {state.status!r}, which is not known: it is taken to be under way")

    def _say(self, what: str) -> None:
        """Log something about the batch, once."""
        if what not in self._said:
            self._said.add(what)
            _log.warning("a batch of job %s for %s %s", self._job.name, self._route.name, what)


def _nap(left: float) -> float:
    """Return for how long not to look at the bounds of a batch whose lines go in ``left`` seconds: for less and
    less, since they may go sooner than was thought."""
    return min(left, _LONGEST_NAP, max(_SHORT_NAP, left / 2)) if left > 0 else _SHORT_NAP
