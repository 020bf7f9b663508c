"""Several processes that share an account, in virtual time, over a store in memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from orchestra.budget.admission import Admission
from orchestra.budget.limits import open_limit
from orchestra.budget.shared.account import Account, Reply, Request, Terms
from orchestra.budget.shared.share import Share
from orchestra.budget.shared.slice import SharedDimension
from orchestra.budget.ticket import State, Ticket
from orchestra.call import Charge
from orchestra.policies.traffic import TrafficClass

INTERACTIVE, BULK = TrafficClass.INTERACTIVE, TrafficClass.BULK


class Leaky:
    """The provider's limit by the book: what there is when it is looked at. Shares no code with ours."""

    def __init__(self, capacity: float, rate: float) -> None:
        self.capacity, self.rate, self.level, self.at = capacity, rate, capacity, 0.0

    def take(self, amount: float, now: float) -> float:
        """Take ``amount``, and return how much was missing."""
        self.level = min(self.capacity, self.level + (now - self.at) * self.rate)
        self.at = now
        missing = min(amount, self.capacity) - self.level
        self.level -= amount
        return missing

    def give(self, amount: float, now: float) -> None:
        self.take(0.0, now)
        self.level = min(self.capacity, self.level + amount)


class Host:
    """A machine with one account and some processes. ``latency`` is how long an exchange takes.

    ``limits`` are ``(capacity, rate)`` by name; ``(capacity, rate, seconds)`` of a window.
    """

    def __init__(self, *, latency: float = 0.001, reserve: object = "auto", **limits: tuple[float, ...]) -> None:
        self.now, self.boot, self.latency = 0.0, "boot", latency
        self.limits, self.reserve = limits, reserve
        self._text: str | None = None
        self.truth = {metric: Leaky(*limit) for metric, limit in limits.items() if limit[1] and len(limit) == 2}
        self.exceeded: list[tuple[float, str, float]] = []
        self.exchanges = 0
        self.processes: list[Process] = []
        self._calendar: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()

    def at(self, when: float, event: Callable[[], None]) -> None:
        heappush(self._calendar, (max(when, self.now), next(self._serial), event))

    def start(self, **settings: object) -> Process:
        process = Process(self, f"process {len(self.processes)}", **settings)
        self.processes.append(process)
        return process

    def run(self, until: float) -> None:
        steps = 0
        while self._calendar and self._calendar[0][0] <= until:
            when, _, event = heappop(self._calendar)
            steps = steps + 1 if when == self.now else 0
            assert steps < 100_000, "time stands still"
            self.now = when
            event()
        self.now = until

    @property
    def account(self) -> Account | None:
        return None if self._text is None else Account.loads(self._text)

    def exchange(self, request: Request) -> Reply:
        """As a store does it: every step through the text."""
        self.exchanges += 1
        account = self.account or Account(request.terms, boot=self.boot, now=self.now)
        reply = account.exchange(request, boot=self.boot, now=self.now)
        self._text = account.dumps()
        return reply

    def note(self, ticket: Ticket) -> None:
        for metric, truth in self.truth.items():
            if (missing := truth.take(getattr(ticket.charge, metric), self.now)) > 1e-6:
                self.exceeded.append((self.now, metric, missing))
        if "concurrency" in self.limits:
            busy = sum(process.busy for process in self.processes)
            if busy > self.limits["concurrency"][0]:
                self.exceeded.append((self.now, "concurrency", busy))


class Process:
    """An admission, a share, and a thread that exchanges when it is due."""

    def __init__(self, host: Host, name: str, *, limits: object = None, reserve: object = None) -> None:
        self.host, self.alive, self.frozen = host, True, False
        self.share = Share(name)
        buckets = [open_limit(name, limit, host.now) for name, limit in (limits or host.limits).items()]
        reserve = host.reserve if reserve is None else reserve
        self.admission = Admission(
            self.share.propose(buckets, reserve, host.now),
            reserve=reserve,
            dimension=SharedDimension,
            now=host.now,
        )
        self.granted: list[Ticket] = []
        self.failed: list[Ticket] = []
        self.busy = 0
        self._due = math.inf
        self._exchanging = False

    def ask(
        self,
        traffic: TrafficClass = INTERACTIVE,
        *,
        tokens: float = 0.0,
        hold: float = 1.0,
        spent: Charge | None = None,
        **bounds: object,
    ) -> Ticket:
        ticket = Ticket(Charge(tokens=tokens), traffic, owner=(hold, spent), **bounds)
        if self.alive:
            self.admission.enqueue(ticket, self.host.now)
            self.decide()
        return ticket

    def end(self, ticket: Ticket, spent: Charge | None = None) -> None:
        if not self.alive or ticket.state is not State.GRANTED:
            return
        self.busy -= 1
        spent = ticket.charge if spent is None else spent
        for metric, truth in self.host.truth.items():
            truth.give(getattr(ticket.charge, metric) - getattr(spent, metric), self.host.now)
        self.admission.end(ticket, spent, self.host.now)
        self.decide()

    def kill(self) -> None:
        self.alive, self.busy = False, 0

    def decide(self) -> None:
        if not self.alive:
            return
        if self.frozen:
            self.host.at(self.host.now + 0.1, self.decide)
            return
        now, decision = self.host.now, self.admission.decide(self.host.now)
        for ticket in decision.granted:
            hold, spent = ticket.owner
            self.busy += 1
            self.host.note(ticket)
            self.host.at(now + hold, lambda ticket=ticket, spent=spent: self.end(ticket, spent))
        self.granted += decision.granted
        self.failed += decision.failed
        if decision.next_at < math.inf:
            self.host.at(decision.next_at, self.decide)
        if self.share.hungry(self.admission):
            self.share.woken = True
            self._book(max(now, self.share.earliest))

    def _book(self, when: float) -> None:
        if not self._exchanging and when < self._due:
            self._due = when
            self.host.at(when, lambda: self._begin(when))

    def _begin(self, when: float) -> None:
        if not self.alive or self._exchanging or when != self._due:
            return
        if self.frozen:
            self._due = math.inf
            self._book(self.host.now + 0.1)
            return
        self._due = math.inf
        self._exchanging = True
        request = self.share.capture(self.admission, self.host.now)
        half = self.host.latency / 2
        self.host.at(self.host.now + half, lambda: self._reach(request, half))

    def _reach(self, request: Request, half: float) -> None:
        if self.alive:
            reply = self.host.exchange(request)
            self.host.at(self.host.now + half, lambda: self._finish(request, reply))

    def _finish(self, request: Request, reply: Reply) -> None:
        if not self.alive:
            return
        self._exchanging = False
        self.share.apply(request, reply, self.admission, self.host.now)
        if self.share.next_at < math.inf:
            self._book(self.share.next_at)
        self.decide()


def backlog(process: Process, *, tokens: float = 0.0, lead: int = 50, **settings: object) -> None:
    """Bulk without end: as calls go, others join the queue."""

    def feed() -> None:
        while process.alive and process.admission.bulk.waiting < lead:
            before = len(process.granted)
            process.ask(BULK, tokens=tokens, **settings)
            if len(process.granted) > before + 1000:
                break
        process.host.at(process.host.now + 0.5, feed)

    process.host.at(0.0, feed)


def terms(**limits: tuple[float, float]) -> Terms:
    return Terms(limits, "auto")
