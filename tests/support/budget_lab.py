"""Drive an `Admission` in virtual time, and check its invariants at every step."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from orchestra.budget.admission import Admission
from orchestra.budget.bucket import Bucket
from orchestra.budget.ticket import State, Ticket
from orchestra.budget.window import DAY, Window
from orchestra.call import Charge
from orchestra.policies.traffic import TrafficClass

INTERACTIVE, BULK = TrafficClass.INTERACTIVE, TrafficClass.BULK


def per_minute(metric: str, limit: float, *, burst_seconds: float = 60.0, now: float = 0.0) -> Bucket:
    return Bucket(metric, capacity=limit / 60.0 * burst_seconds, rate=limit / 60.0, now=now)


def per_day(metric: str, limit: float, *, now: float = 0.0) -> Window:
    return Window(metric, capacity=limit, window=DAY, now=now, name=f"{metric}_per_day")


def slots(number: int) -> Bucket:
    return Bucket("concurrency", capacity=number)


class Gate:
    """An admission with a clock and a calendar. `at` books events; `run` lets time pass."""

    def __init__(self, *buckets: Bucket, now: float = 0.0, **settings: object) -> None:
        self.now = now
        self.admission = Admission(buckets, now=now, **settings)
        self.granted: list[Ticket] = []
        self.failed: list[Ticket] = []
        self._calendar: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()
        self._next_at = math.inf

    def at(self, when: float, event: Callable[[], None]) -> None:
        heappush(self._calendar, (when, next(self._serial), event))

    def ask(
        self,
        traffic: TrafficClass = INTERACTIVE,
        *,
        requests: float = 1.0,
        tokens: float = 0.0,
        usd: float | None = None,
        hold: float | None = None,
        spent: Charge | None = None,
        decide: bool = True,
        **bounds: object,
    ) -> Ticket:
        """Let a call in. ``hold`` is how long it takes once granted, at the end of which it spent ``spent``."""
        ticket = Ticket(Charge(requests=requests, tokens=tokens, usd=usd), traffic, owner=(hold, spent), **bounds)
        self.admission.enqueue(ticket, self.now)
        if decide:
            self.decide()
        return ticket

    def decide(self) -> list[Ticket]:
        admission = self.admission
        decision = admission.decide(self.now)
        if any(ticket.traffic is BULK for ticket in decision.granted) and not admission._min_share:
            assert not admission.interactive.waiting, "bulk was granted while interactive waited"
        assert decision.next_at >= self.now
        for ticket in decision.granted:
            assert ticket.state is State.GRANTED
            assert ticket.bound >= self.now, "granted after its bound"
            hold, spent = ticket.owner
            if hold is not None:
                self.at(self.now + hold, lambda ticket=ticket, spent=spent: self.end(ticket, spent))
        for ticket in decision.failed:
            assert ticket.state is State.OVER
            assert ticket.error is not None
        self.granted += decision.granted
        self.failed += decision.failed
        self._next_at = decision.next_at
        return decision.granted

    def end(self, ticket: Ticket, spent: Charge | None = None) -> None:
        self.admission.end(ticket, ticket.charge if spent is None else spent, self.now)
        self.decide()

    def withdraw(self, ticket: Ticket) -> None:
        self.admission.withdraw(ticket, self.now)
        self.decide()

    def run(self, until: float) -> None:
        """Let time pass until ``until``, deciding exactly when asked to and when something happens."""
        rounds = 0
        while True:
            booked = self._calendar[0][0] if self._calendar else math.inf
            when = min(booked, self._next_at)
            if when > until:
                self.now = max(self.now, until)
                return
            rounds = rounds + 1 if when == self.now else 0
            assert rounds < 100_000, "time stands still"
            self.now = max(self.now, when)
            if booked <= self._next_at:
                heappop(self._calendar)[2]()
            else:
                self.decide()
