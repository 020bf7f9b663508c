"""An account at a provider in virtual time: real limits, one pool of ours, people, bulk, and other tenants.

The client does what the dispatch does: it asks the admission, sends, tells the admission what the answer taught,
and tries again what was turned away, by the real retry policy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from orchestra.budget.admission import Admission
from orchestra.budget.bucket import Bucket
from orchestra.budget.ticket import Ticket
from orchestra.call import Charge, RateLimit
from orchestra.policies.fault import Fault, Recovery
from orchestra.policies.retry import RetryPolicy
from orchestra.policies.traffic import TrafficClass
from orchestra.testing.limiter import Limiter, Limits, Tenant

INTERACTIVE, BULK = TrafficClass.INTERACTIVE, TrafficClass.BULK
ACCOUNT = Limits(requests_per_minute=600, tokens_per_minute=90_000, burst_seconds=10)
SILENT = Limits(requests_per_minute=600, tokens_per_minute=90_000, burst_seconds=10, headers="none")


@dataclass
class Request:
    traffic: TrafficClass
    charge: Charge
    asked_at: float
    waited: float = math.inf
    tries: int = 0


@dataclass
class Sent:
    """One arrival at the provider: when, and whether it was turned away."""

    at: float
    traffic: TrafficClass
    refused: bool


@dataclass
class Report:
    sent: list[Sent]
    people: list[Request]
    accepted: float
    offered: float

    @property
    def refused(self) -> float:
        """The share of calls that were turned away."""
        return sum(one.refused for one in self.sent) / len(self.sent)

    @property
    def used(self) -> float:
        """The share of the refill that was used, the tenant's included."""
        return self.accepted / self.offered

    def wait(self, quantile: float) -> float:
        """A quantile of the interactive calls' wait beyond their service time."""
        waits = sorted(one.waited for one in self.people)
        return waits[min(len(waits) - 1, int(quantile * len(waits)))]


@dataclass
class AccountLab:
    """``service`` is the seconds that an answer takes, ``wire`` those to the provider and back together.

    Half of a call's ``tokens`` are its prompt's. ``believed`` is the share of those that the client counts on.
    """

    limits: Limits = ACCOUNT
    buckets: Sequence[Bucket] = ()
    tenant: Tenant | None = None
    seed: int = 1
    service: float = 0.3
    wire: float = 0.004
    tokens: float = 140.0
    believed: float = 1.0
    stamped_late: bool = False
    now: float = 0.0
    requests: list[Request] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    taken: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.admission = Admission(self.buckets, careful=not self.buckets, now=0.0)
        self.limiter = Limiter(self.limits, self.tenant, clock=lambda: self.now)
        self.retry = RetryPolicy(rand=self.rng.random)
        self.in_flight = 0
        self._calendar: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()
        self._next_at = math.inf

    # The load

    def bulk(self, calls: int) -> None:
        self.at(0.0, lambda: [self.ask(BULK) for _ in range(calls)])

    def people(self, rate: float, until: float) -> None:
        when = 0.0
        while (when := when + self.rng.expovariate(rate)) < until:
            self.at(when, lambda: self.ask(INTERACTIVE))

    def change(self, when: float, limits: Limits) -> None:
        """The provider's limits change."""
        self.at(when, lambda: self.limiter.change(limits))

    # The way of a call

    def ask(self, traffic: TrafficClass) -> None:
        prompt = self.tokens / 2
        estimate = self.believed * prompt
        charge = Charge(tokens=estimate + self.tokens - prompt, input_tokens=estimate)
        request = Request(traffic, charge, self.now)
        self.requests.append(request)
        self.enter(request)

    def enter(self, request: Request) -> None:
        ticket = Ticket(request.charge, request.traffic, front=request.tries > 0, owner=request)
        self.admission.enqueue(ticket, self.now)
        self._next_at = self.now

    def decide(self) -> None:
        decision = self.admission.decide(self.now)
        assert not decision.failed
        self._next_at = decision.next_at
        for ticket in decision.granted:
            self.after(self.wire * self.rng.random(), lambda ticket=ticket: self.arrive(ticket))

    def arrive(self, ticket: Ticket) -> None:
        self.in_flight += 1
        prompt = self.tokens / 2
        wait = self.limiter.admit(prompt, self.tokens - prompt, self.in_flight)
        self.sent.append(Sent(self.now, ticket.traffic, wait is not None))
        told = self.told()
        if wait is None:
            self.taken.append((self.now, 1.0))
            service = self.service * self.rng.uniform(0.8, 1.2)
            self.after(service, lambda: self.answer(ticket, told, service))
        else:
            self.in_flight -= 1
            hint = self.limits.headers != "none" and self.limits.hint != "none"
            back = self.wire * self.rng.random()
            self.after(back, lambda: self.turn_away(ticket, told, wait if hint else None))

    def told(self) -> list[RateLimit]:
        if self.limits.headers != "limits":
            return []
        return [
            RateLimit(one.metric, one.limit, float(int(one.remaining)), round(one.full_in, 3), name=one.metric)
            for one in self.limiter.gauges()
        ]

    def answer(self, ticket: Ticket, told: list[RateLimit], service: float) -> None:
        self.in_flight -= 1
        told = self.told() if self.stamped_late else told
        self.admission.answered(ticket, told, self.now, ok=True)
        self.admission.end(ticket, Charge(tokens=self.tokens, input_tokens=self.tokens / 2), self.now)
        request = ticket.owner
        request.waited = self.now - request.asked_at - service
        self.decide()

    def turn_away(self, ticket: Ticket, told: list[RateLimit], pause: float | None) -> None:
        self.admission.end(ticket, Charge(), self.now)
        self.admission.throttled(ticket, told, pause, self.now)
        request = ticket.owner
        request.tries += 1
        fault = Fault(Recovery.RETRY, "429", retry_after=pause)
        delay = self.retry.delay(fault, request.tries, time_left=None)
        self.after(delay, lambda: self.enter(request))
        self.decide()

    # Time

    def at(self, when: float, event: Callable[[], object]) -> None:
        heappush(self._calendar, (max(when, self.now), next(self._serial), event))

    def after(self, delay: float, event: Callable[[], object]) -> None:
        self.at(self.now + delay, event)

    def run(self, until: float) -> None:
        while True:
            booked = self._calendar[0][0] if self._calendar else math.inf
            if min(booked, self._next_at) > until:
                break
            if booked <= self._next_at:
                self.now, _, event = heappop(self._calendar)
                event()
            else:
                self.now = max(self.now, self._next_at)
                self.decide()
        self.now = until

    def report(self, since: float, until: float, per_second: float = 10.0) -> Report:
        """What happened between two instants."""
        span = until - since
        theirs = 0.0
        if self.tenant is not None:
            theirs = self.tenant.share * self.tenant.busy(since, until) * per_second
        return Report(
            [one for one in self.sent if since <= one.at < until],
            [one for one in self.requests if one.traffic is INTERACTIVE and since <= one.asked_at < until],
            accepted=theirs + sum(n for when, n in self.taken if since <= when < until),
            offered=per_second * span,
        )
