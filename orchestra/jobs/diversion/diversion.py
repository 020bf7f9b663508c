"""What of a job rides in batches: deals its lines, carries its batches, and brings the rest back in time.

Which lines ride, and when the others have to leave a batch, is decided in `orchestra.policies.diversion`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from orchestra.batches import BatchDesk, BatchRoute
from orchestra.errors import JobError
from orchestra.jobs.diversion.carrier import Carrier, OutOfSight
from orchestra.jobs.diversion.dealer import Dealer, Ride, Way
from orchestra.jobs.ledger.line import Line
from orchestra.jobs.ledger.record import BatchRecord, JobRecord
from orchestra.jobs.ledger.store import JobStore
from orchestra.jobs.ledger.threads import in_thread
from orchestra.policies.diversion import BatchOutlet, Choice, SyncPace, choose
from orchestra.policies.escalation import Escalation, escalate

__all__ = ["Diversion", "Riders"]

_log = logging.getLogger("orchestra.jobs")

_CHOICE_HOLDS = 5.0
"""Seconds for which a choice holds before it is made anew."""
_COUNT_HOLDS = 1.0
"""The same for how many lines ride."""


class Riders(Protocol):
    """What a job's lines are: who they are for, and by when they are wanted.

    `refused`, `ended` and `released` are called on the loop, all else in a thread.
    """

    def routes(self, line: Line, payload: Mapping[str, Any]) -> Sequence[BatchRoute]:
        """Return where a line could ride, in order of preference."""
        ...

    def waits(self, number: int) -> bool:
        """Return whether a line is to be dealt now. Where not, ``stir`` when it is."""
        ...

    def is_awaited(self, record: BatchRecord) -> bool:
        """Return whether anybody wants the lines of a batch."""
        ...

    def deadline(self, number: int) -> float | None:
        """Return the unix time by which a line is wanted."""
        ...

    def deadline_of(self, record: BatchRecord) -> float | None:
        """Return the unix time by which the first of a batch's lines is wanted."""
        ...

    def route(self, record: BatchRecord) -> BatchRoute | None:
        """Return the route of a batch that was made earlier; None while nobody has its key.

        Raises JobError where it cannot be had.
        """
        ...

    def pace(self) -> SyncPace:
        """Return how fast lines are answered that go by themselves."""
        ...

    def refused(self, route: BatchRoute, why: str) -> None:
        """Hear that the provider refuses the account of a batch, whatever it is asked for.

        Raises JobError where batches are to stay as they are until somebody has put that right; else the lines go
        by themselves.
        """
        ...

    def ended(self, numbers: Sequence[int], count: int, *, late: bool) -> None:
        """Hear that so many of these lines have ended. ``late``: they were let go, and may be under way."""
        ...

    def released(self) -> None:
        """Hear that there are lines that are to go by themselves."""
        ...


class Diversion:
    """The batches of one job, as long as it runs. ``stir`` it whenever lines have come, or none will any more.

    ``on_over`` is told of each batch that is over.
    """

    def __init__(
        self,
        store: JobStore,
        job: JobRecord,
        desk: BatchDesk,
        riders: Riders,
        *,
        on_over: Callable[[BatchRecord], object] = lambda record: None,
    ) -> None:
        self._store = store
        self._ledger = store.batches
        self._job = job
        self._desk = desk
        self.riders = self._riders = riders
        self.on_over = on_over
        self._dealer = Dealer(store, job, choose=self._choose, wall=desk.wall)
        self._carriers: dict[int, Carrier] = {}
        self._left: list[BatchRecord] = []  # those that nobody carries: whoever has their key is not there yet
        self.stuck: JobError | None = None
        """Why a batch was left where it is, until the settings are put right, if any was."""
        self._choices: dict[tuple[object, ...], _Chosen] = {}
        self._count = (0, 0.0, 0, 0)  # of carriers, until when that holds, and of their lines
        self._outages: dict[tuple[str, str], _Outage] = {}  # by route, and by what cannot be done
        self._noted: str | None = None
        self._stirred = asyncio.Event()
        self.complete = False
        """Whether no more lines will come, but for those that batches bring back. Set it, then `stir`."""

    def stir(self) -> None:
        """Say that something has changed."""
        self._stirred.set()

    def looks(self) -> dict[int, float]:
        """Return when each batch is looked at next (unix time), by its id, as far as that is known."""
        carriers = list(self._carriers.items())
        return {id: carrier.next_look for id, carrier in carriers if carrier.next_look is not None}

    def waiting(self) -> str | None:
        """Return what cannot be done with batches just now, why, and until when; None where all goes well."""
        outages = list(self._outages.values())
        return outages[0].told(self._desk.wall()) if outages else None

    async def run(self) -> None:
        """Deal and carry until every line that rides has an end, or goes by itself.

        Cancelled, it leaves the batches at their providers, and in the ledger: whoever runs the job again goes on
        with them. Raises JobError where that cannot be. One that cannot be followed stands in nobody's way: see
        `stuck`.
        """
        for record in await in_thread(self._ledger.unfinished, self._job.id):
            is_open = record.state == "open"  # whoever filled it is gone
            self._left.append(await in_thread(self._ledger.seal, record.id) if is_open else record)
        async with asyncio.TaskGroup() as group:
            while True:
                self._stirred.clear()
                complete = self.complete
                await self._note()
                await self._deal(group, complete=complete)
                if complete and not self._carriers and not self._stirred.is_set():
                    self._outages.clear()  # whoever met them has gone
                    await self._note()
                    return
                await self._wait()

    async def abandon(self, note: str) -> None:
        """Forget the batches that are not over, when nobody carries them any more."""
        for record in await in_thread(self._ledger.unfinished, self._job.id):
            await in_thread(self._ledger.abandon, record.id, note, self._desk.wall())
            self.on_over(await in_thread(self._ledger.get, record.id))
        self.stuck = None

    async def _deal(self, group: asyncio.TaskGroup, *, complete: bool) -> None:
        left, self._left = self._left, []
        for record in left:
            await self._carry(record, group)
        after = 0
        while (dealing := await in_thread(self._dealer.deal, after)) is not None:
            after = dealing.last
            for record in dealing.sealed:
                await self._carry(record, group)
            if dealing.alone:
                self._riders.released()
        due_by = None if complete else self._desk.wall()
        for record in await in_thread(lambda: self._dealer.seal(due_by=due_by)):
            await self._carry(record, group)

    async def _wait(self) -> None:
        due_at = self._dealer.due_at()
        if due_at is None:
            await self._stirred.wait()
            return
        try:
            async with asyncio.timeout(max(0.0, due_at - self._desk.wall())):
                await self._stirred.wait()
        except TimeoutError:
            pass

    async def _carry(self, record: BatchRecord, group: asyncio.TaskGroup) -> None:
        try:
            route = await in_thread(self._riders.route, record)
        except JobError as fault:
            self._leave(fault)
            return
        if route is None:
            self._left.append(record)
            return
        errand = _Errand(self, record, route)
        carrier = self._carriers[record.id] = Carrier(self._store, self._job, record, route, self._desk, errand)
        group.create_task(self._follow(carrier)).add_done_callback(lambda _: self._carried(record.id))

    async def _follow(self, carrier: Carrier) -> None:
        try:
            await carrier.run()
        except OutOfSight as fault:
            self._leave(fault)

    def _leave(self, fault: JobError) -> None:
        """Leave a batch that cannot be followed where it is, for whoever runs the job again."""
        _log.warning("job %s: %s", self._job.name, fault)
        self.stuck = fault

    def _carried(self, record_id: int) -> None:
        del self._carriers[record_id]
        self.stir()

    # what it decides by

    def _choose(self, line: Line, payload: Mapping[str, Any]) -> Ride | Way:
        if not self._riders.waits(line.number):
            return Way.LATER
        deadline = self._riders.deadline(line.number)
        if deadline is None:
            return Way.ALONE
        routes = [route for route in self._riders.routes(line, payload) if route.takes(payload)]
        routes = [route for route in routes if self._desk.is_open(route)]
        if not routes:
            return Way.ALONE
        key = (round(deadline), *(route.group for route in routes))
        chosen = self._choices.get(key)
        now = self._desk.wall()
        if chosen is None or now >= chosen.until or chosen.is_used_up:
            chosen = self._choices[key] = self._chosen(deadline, now, routes, chosen)
        outlet = chosen.choice.outlet
        if outlet is None or chosen.is_used_up:
            return Way.ALONE
        chosen.lines -= 1
        route = next(route for route in routes if route.name == outlet.name)
        return Ride(route, chosen.choice.window, deadline)

    def _chosen(self, deadline: float, now: float, routes: Sequence[BatchRoute], last: _Chosen | None) -> _Chosen:
        riding = self.unfinished()[0] + self._dealer.riding
        waiting = max(1, self._store.tally(self._job.id).pending - riding)
        choice = choose(
            deadline,
            now,
            [self.outlet(route) for route in routes],
            self._riders.pace(),
            waiting,
            riding=riding,
            last=None if last is None else last.choice,
        )
        if last is None:  # where every call has a deadline of its own, there is a choice for each
            self._choices = {key: one for key, one in self._choices.items() if now < one.until + _CHOICE_HOLDS}
        return _Chosen(choice, now + _CHOICE_HOLDS)

    def outlet(self, route: BatchRoute) -> BatchOutlet:
        return self._desk.outlet(route, self._ledger.p90(f"{route.name}|{route.path}"))

    def unfinished(self) -> tuple[int, int]:
        """Return how many lines of open batches nobody is known to have answered, and how many are said to be
        answered and have not been read."""
        carriers, now = list(self._carriers.values()), self._desk.wall()
        count, until, total, unread = self._count
        if count != len(carriers) or now >= until:  # with thousands of them it is not worth counting at every look
            total = sum(carrier.unfinished for carrier in carriers)
            unread = sum(carrier.riding for carrier in carriers) - total
            self._count = len(carriers), now + _COUNT_HOLDS, total, unread
        return total, unread

    def fails(self, route: str, what: str, why: str, until: float | None) -> None:
        """Note, and say once for each outage, what cannot be done."""
        is_new = (route, what) not in self._outages
        outage = self._outages[route, what] = _Outage(what, why, until)
        if is_new:
            _log.warning("job %s: %s: %s", self._job.name, route, outage)
            self.stir()

    def works(self, route: str, what: str) -> None:
        """Note the end of an outage."""
        if self._outages.pop((route, what), None) is not None:
            _log.info("job %s: %s: batches can be %s again", self._job.name, route, what)
            self.stir()

    async def _note(self) -> None:
        """Let other processes know, once for each outage, what cannot be done."""
        note = next((str(outage) for outage in self._outages.values()), None)
        if note != self._noted:
            self._noted = note
            await in_thread(self._store.stop, self._job.id, note)

    def is_wanted(self, deadline: float | None) -> bool:
        """Return whether any line may still take an answer that a batch brings late."""
        in_time = deadline is None or self._desk.wall() < deadline
        return in_time and self._store.tally(self._job.id).pending > 0


class _Errand:
    """What is decided about one batch."""

    def __init__(self, diversion: Diversion, record: BatchRecord, route: BatchRoute) -> None:
        self._diversion = diversion
        self._riders = diversion.riders
        self._record = record
        self._route = route

    def bounds(self) -> Escalation | None:
        deadline = self._riders.deadline_of(self._record)
        if deadline is None:
            return None
        since = self._record.submitted_at or self._record.opened
        (lines, finished), pace = self._diversion.unfinished(), self._riders.pace()
        return escalate(deadline, since, lines, pace, self._diversion.outlet(self._route), finished=finished)

    def is_awaited(self) -> bool:
        return self._riders.is_awaited(self._record)

    def is_wanted(self) -> bool:
        return self._diversion.is_wanted(self._riders.deadline_of(self._record))

    def refused(self, why: str) -> None:
        self._riders.refused(self._route, why)

    def fails(self, what: str, why: str, until: float | None) -> None:
        self._diversion.fails(self._route.name, what, why, until)

    def works(self, what: str) -> None:
        self._diversion.works(self._route.name, what)

    def ended(self, numbers: Sequence[int], count: int, *, late: bool) -> None:
        self._riders.ended(numbers, count, late=late)

    def released(self) -> None:
        self._riders.released()
        self._diversion.stir()

    def over(self, record: BatchRecord) -> None:
        self._diversion.on_over(record)


@dataclass(frozen=True, slots=True)
class _Outage:
    """What cannot be done with batches, and until when; None where that waits for something else than a try."""

    what: str
    why: str
    until: float | None

    def __str__(self) -> str:
        return f"batches cannot be {self.what}: {self.why}"

    def told(self, now: float) -> str:
        return (
            str(self) if self.until is None else f"{self}; tried again in {max(1, math.ceil(self.until - now))}s"
        )


class _Chosen:
    """A choice, until when it holds, and how many lines may still follow it."""

    __slots__ = ("choice", "lines", "until")

    def __init__(self, choice: Choice, until: float) -> None:
        self.choice = choice
        self.until = until
        self.lines = choice.lines

    @property
    def is_used_up(self) -> bool:
        """Whether as many lines have followed it as were to."""
        return self.choice.outlet is not None and not self.lines
