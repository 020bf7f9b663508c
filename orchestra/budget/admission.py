"""Who is next, and when: the whole decision and nothing else, without clock, lock or loop.

Interactive goes before bulk, always; bulk goes when the buckets hold its charge above the interactive reserve. The
order is strict: whoever is next and has to wait makes the others wait, so no stream of small calls keeps a large
one out. With a `BulkMinShare`, bulk that is owed a call precedes interactive and may use the reserve.

Every method takes the instant ``now`` (float seconds, not decreasing), so that the same code runs behind the live
pool, in tests, and in simulations of virtual time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from orchestra.budget.bucket import Bucket
from orchestra.budget.dimension import Dimension
from orchestra.budget.learning import Learning
from orchestra.budget.line import Line
from orchestra.budget.refusals import budget_exceeded, price_unknown, queue_full, timed_out
from orchestra.budget.ticket import UNRAISED, State, Ticket
from orchestra.call import Charge, RateLimit
from orchestra.errors import AdmissionError
from orchestra.policies.calibration import Calibration
from orchestra.policies.heap import Heap
from orchestra.policies.reserve import BulkMinShare
from orchestra.policies.traffic import TrafficClass

__all__ = ["NOBODY", "NOTHING", "Admission", "Decision", "Wait"]

NOTHING = Charge(requests=0.0, usd=0.0)
"""What a call that never left us spent."""

_INTERACTIVE, _BULK = TrafficClass.INTERACTIVE, TrafficClass.BULK
_WAITING, _GRANTED, _OVER = State.WAITING, State.GRANTED, State.OVER

_INTERACTIVE_LATENESS = 10.0
_BULK_LATENESS = 600.0
"""By how many seconds at most an urgent call may overtake another of its class and job."""
_BULK_YIELDS = 30.0
"""For how many seconds at most a dear bulk call lets cheaper ones of its job pass that come after it."""

_DOUBT_USD = 1e-3
"""Dollars that the first costs are set against: see `Calibration`."""

_LONGEST_PAUSE = 86_400.0
"""Seconds for which an account is left alone at most, whatever its provider says; then a call asks again."""
_LEAST_COST, _MOST_COST = 1e-3, 1e15
"""Seconds of refill that any call costs in the order among jobs: one that takes nothing, and one for which a limit
that some header tells is no limit that anybody means."""


@dataclass(slots=True)
class Wait:
    """Why the call whose turn it is waits. ``until`` is None where only the end of another call can tell."""

    traffic: TrafficClass
    job: str | None
    reason: str
    until: float | None


@dataclass(slots=True)
class Decision:
    """What `Admission.decide` decided. ``next_at`` is when to decide again if nothing happens before."""

    granted: list[Ticket]
    failed: list[Ticket]
    next_at: float


NOBODY = Decision([], [], math.inf)
"""The decision where nobody waits and nobody has come."""


class Admission:
    """The gate of one pool.

    ``reserve`` is ``"auto"`` or a share; ``max_waiting`` bounds the queue of each class (retries are exempt);
    ``careful`` feels its way, because nothing is known of the account; ``dimension`` is the kind of dimension to
    make of the buckets. What the answers teach stands beside the given limits, in `learning`.
    """

    def __init__(
        self,
        buckets: Iterable[Bucket] = (),
        *,
        reserve: Literal["auto"] | float = "auto",
        bulk_min_share: float = 0.0,
        max_waiting: int | None = None,
        careful: bool = False,
        dimension: type[Dimension] = Dimension,
        now: float = 0.0,
    ) -> None:
        if max_waiting is not None and (isinstance(max_waiting, bool) or not max_waiting >= 0):
            raise ValueError(f"max_waiting must be a number of calls, zero or above, not {max_waiting!r}")
        self.paused_until = -math.inf
        self.pause_reason = ""
        self.wait: Wait | None = None
        self.dimensions: tuple[Dimension, ...] = ()
        self._spent = [0.0, 0.0, 0.0, 0.0, 0.0]
        self.interactive = Line(TrafficClass.INTERACTIVE, lateness=_INTERACTIVE_LATENESS)
        self.bulk = Line(TrafficClass.BULK, lateness=_BULK_LATENESS, yields=_BULK_YIELDS)
        self._reserve: Literal["auto"] | float = reserve
        self._dimension = dimension
        self._min_share = BulkMinShare(bulk_min_share, now=now)
        self._max_waiting = math.inf if max_waiting is None else max_waiting
        self._expiries: Heap[Ticket] = Heap()
        self._fresh: list[Ticket] = []
        self._failed: list[Ticket] = []
        self._usual_hold: float | None = None
        self._prompts = Calibration()
        self._costs = Calibration(_DOUBT_USD)
        self._factors = UNRAISED
        self._untried = True
        self.learning = Learning(reserve=reserve, careful=careful, now=now)
        self.set_limits(buckets, now)

    @property
    def spent(self) -> dict[str, float]:
        """What calls have spent since the start, by metric."""
        return dict(zip(("requests", "tokens", "input_tokens", "output_tokens", "usd"), self._spent, strict=True))

    def waits_for_slot(self) -> bool:
        """Return whether the call whose turn it is can only go when another ends."""
        return self.wait is not None and self.wait.until is None

    def in_flight(self) -> int:
        """Return how many calls are under way."""
        return self.interactive.in_use + self.bulk.in_use

    def line(self, traffic: TrafficClass) -> Line:
        """Return where the calls of that class wait."""
        return self.interactive if traffic is TrafficClass.INTERACTIVE else self.bulk

    # What happens to it

    def set_limits(self, buckets: Iterable[Bucket], now: float) -> None:
        """Replace the limits, one bucket a name. What is used of a limit that was there already stays used.

        Of a new one nothing is used, but a slot by each call under way.
        """
        wanted = {bucket.name: bucket for bucket in buckets}
        present = {dimension.name: dimension for dimension in self.dimensions}
        for name, bucket in wanted.items():
            if name in present:
                present[name].change(bucket, now)
            else:
                present[name] = self._dimension(bucket, self._reserve, now)
                if bucket.metric == "concurrency":
                    bucket.reserve(self.in_flight(), now)
        if [*wanted] != [dimension.name for dimension in self.dimensions]:
            self.dimensions = tuple(present[name] for name in wanted)
        self._priced = any(dimension.metric == "usd" for dimension in self.dimensions)
        self._in_force = (*self.dimensions, *self.learning.dimensions)

    def answered(self, ticket: Ticket, told: Iterable[RateLimit], now: float, *, ok: bool) -> None:
        """Learn from the answer to a call. ``ok``: it is a success, no error of the server's or the caller's."""
        if ticket.stamp is not None:
            self.learning.answered(ticket.stamp, told, self.in_flight(), now, ok=ok)
            self._in_force = (*self.dimensions, *self.learning.dimensions)

    def throttled(self, ticket: Ticket, told: Iterable[RateLimit], pause: float | None, now: float) -> None:
        """Learn that a call was turned away for want of room, and pause for as long as the provider asked for."""
        if pause:
            self.pause(now + min(pause, _LONGEST_PAUSE), "Retry-After")
        if ticket.stamp is not None:
            flying, hinted = self.in_flight(), pause is not None
            self.learning.throttled(ticket.stamp, told, flying, now, hinted=hinted)
            if not flying:
                self.learning.idle(now)
            self._in_force = (*self.dimensions, *self.learning.dimensions)

    def pause(self, until: float, reason: str) -> None:
        """Grant nothing before ``until`` (infinity: before `resume`). The longest of several pauses counts.

        A waiting call whose bound lies before that instant fails at once.
        """
        if until > self.paused_until:
            self.paused_until, self.pause_reason = until, reason

    def resume(self) -> None:
        """End the pause."""
        self.paused_until, self.pause_reason = -math.inf, ""

    def enqueue(self, ticket: Ticket, now: float) -> None:
        """Let a new ticket in; the next decision grants it, fails it, or gives it its place."""
        ticket.entered_at = now
        if now + ticket.queue_bound < ticket.bound:
            ticket.bound = now + ticket.queue_bound
        ticket.state = _WAITING
        if self._priced and ticket.charge.usd is None:
            self._fail(ticket, price_unknown())
        else:
            self._fresh.append(ticket)

    def withdraw(self, ticket: Ticket, now: float) -> None:
        """Take a ticket back, whatever became of it: out of the queue, or its grant returned unspent."""
        if ticket.state is _GRANTED:
            self.end(ticket, NOTHING, now)
        else:
            self._drop(ticket)
            ticket.state = _OVER

    def end(self, ticket: Ticket, spent: Charge, now: float) -> None:
        """End a grant: ``spent`` is what the provider counted. Only the first end of a ticket counts.

        Where it does not know the dollars, all that were reserved are spent.
        """
        if ticket.state is not _GRANTED:
            return
        ticket.state = _OVER
        charge = ticket.charge
        self.learning.ended(charge, spent, ticket.held_in, now)
        if spent is not charge:
            self._calibrate(ticket.estimate, spent)
        if spent.usd is None and charge.usd is not None:
            spent = replace(spent, usd=charge.usd)
        for dimension in ticket.held_in:
            dimension.settle(charge, spent, now)
        if ticket.held_in != self._in_force:
            for dimension in self.dimensions:
                if dimension.metric == "concurrency" and dimension not in ticket.held_in:
                    dimension.bucket.settle(1.0, 0.0, now)  # its slot, of a limit newer than it
        (self.interactive if ticket.traffic is _INTERACTIVE else self.bulk).in_use -= 1
        if not (self.interactive.in_use or self.bulk.in_use):
            self.learning.idle(now)
        if spent is NOTHING:
            return
        self._untried = False
        held, usual = now - ticket.granted_at, self._usual_hold
        self._usual_hold = held if usual is None else usual + 0.1 * (held - usual)
        total = self._spent
        total[0] += spent.requests
        total[1] += spent.tokens
        total[2] += spent.input_tokens
        total[3] += spent.output_tokens
        if spent.usd:
            total[4] += spent.usd

    def give_back(self, ticket: Ticket, now: float) -> None:
        """Take back those dollars of a kept grant, which has cost nothing, that have not left their window."""
        usd = ticket.charge.usd or 0.0
        for dimension in ticket.held_in:
            if dimension.metric == "usd" and now - ticket.granted_at < dimension.bucket.window:
                dimension.bucket.give_back(usd, now)
        self._spent[4] = max(0.0, self._spent[4] - usd)

    def _calibrate(self, estimate: Charge, spent: Charge) -> None:
        """Learn how far estimates are off. Waiting calls are raised anew where it makes a hundredth."""
        if spent.input_tokens and estimate.input_tokens:
            self._prompts.observe(estimate.input_tokens, spent.input_tokens)
        if spent.usd and estimate.usd:
            self._costs.observe(estimate.usd, spent.usd)
        prompts, costs = self._factors
        if abs(self._prompts.factor - prompts) > 0.01 or abs(self._costs.factor - costs) > 0.01:
            self._factors = self._prompts.factor, self._costs.factor

    # What it decides

    def decide(self, now: float, limit: int = 512) -> Decision:
        """Grant, in order, whatever can go at ``now`` (at most ``limit``), and fail what has waited too long."""
        fresh = self._fresh
        self.wait = None
        if not self.interactive.waiting and not self.bulk.waiting and not self._failed:
            if not fresh:
                return NOBODY
            if len(fresh) == 1 and self._passes(fresh[0], now):  # no queue, no place in it
                self._fresh = []
                if fresh[0].traffic is _INTERACTIVE:
                    self._note_demand(fresh[0], now)
                self._grant(fresh[0], False, now)
                return Decision(fresh, [], math.inf)
        self._fresh = []
        for ticket in fresh:
            if ticket.state is _WAITING and ticket.place is None:
                self._place(ticket, now)
        self._expire(max(now, self.paused_until), now)
        granted, next_at = self._grant_in_order(now, limit)
        fresh = [ticket for ticket in fresh if ticket.state is _WAITING]
        if next_at > now:
            self._turn_away(fresh, now)
        else:
            self._fresh = fresh  # some of them can go at once, in the next decision
        self._expire(math.nextafter(now, math.inf), now)
        if (expiring := self._expiries.first()) is not None:
            next_at = min(next_at, expiring.bound)
        failed, self._failed = self._failed, []
        return Decision(granted, failed, next_at)

    def _grant_in_order(self, now: float, limit: int) -> tuple[list[Ticket], float]:
        granted: list[Ticket] = []
        while (turn := self._next(now)) is not None:
            if len(granted) >= limit:
                return granted, now
            ticket, owed = turn
            reason, until = self._earliest(ticket, owed, now)
            if until <= now:
                granted.append(self.line(ticket.traffic).pop())
                self._grant(ticket, owed, now)
            elif (until <= ticket.bound and until < math.inf) or not self._fail_if_hopeless(ticket, now, until):
                self.wait = Wait(ticket.traffic, ticket.job, reason, until if until < math.inf else None)
                return granted, until if owed else min(until, self._owed_at(now))
        return granted, math.inf

    def _passes(self, ticket: Ticket, now: float) -> bool:
        return ticket.state is _WAITING and ticket.bound >= now and self._earliest(ticket, False, now)[1] <= now

    def _next(self, now: float) -> tuple[Ticket, bool] | None:
        """Return whose turn it is, and whether it is bulk that is owed its turn."""
        interactive, bulk = self.interactive.queue.peek(), self.bulk.queue.peek()
        if bulk is not None and self._owed_at(now) <= now:
            return bulk, True
        ticket = interactive if interactive is not None else bulk
        return (ticket, False) if ticket is not None else None

    def _owed_at(self, now: float) -> float:
        """Return from when on bulk is owed a call; infinity where that is not a matter of time."""
        if not self._min_share or (bulk := self.bulk.queue.peek()) is None:
            return math.inf
        slots = next((d.bucket.capacity for d in self.dimensions if d.metric == "concurrency"), math.inf)
        if self.bulk.in_use >= max(1.0, self._min_share.share * slots):
            return math.inf
        return now + self._min_share.time_until(self._cost(bulk), now)

    def _earliest(self, ticket: Ticket, owed: bool, now: float) -> tuple[str, float]:
        """Return what holds a call back, and until when: until ``now`` if nothing does."""
        if now < self.paused_until:
            return self.pause_reason, self.paused_until
        if ticket.raised_by is not self._factors:
            self._raise(ticket, self._factors)
        reason, delay = "", 0.0
        charge = ticket.charge
        spares = ticket.traffic is _BULK and not owed
        for dimension in self._in_force:
            bucket = dimension.bucket
            if bucket.capacity < math.inf and (spares or not dimension.for_bulk):
                floor = dimension.floor(now, self._untried) if spares else 0.0
                wait = bucket.time_until(dimension.amount(charge), floor, now)
                if wait > delay:
                    reason, delay = dimension.name, wait
        return reason, now + delay

    def _cost(self, ticket: Ticket) -> float:
        """Return the seconds of refill that a call takes, of the limit of which it takes most."""
        cost = most = _LEAST_COST
        refills = False
        for dimension in self._in_force:
            bucket = dimension.bucket
            if bucket.hard:  # what is left of a day says little about how soon the next call can go
                most = max(most, dimension.amount(ticket.charge) / bucket.rate)
            elif bucket.rate:
                refills = True
                cost = max(cost, dimension.amount(ticket.charge) / bucket.rate)
        return min(cost if refills else most, _MOST_COST)

    def _raise(self, ticket: Ticket, factors: tuple[float, float]) -> None:
        """Raise the estimates of a prompt and of a cost as far as those before them were too low.

        A call that fits a limit by its own estimate is never raised beyond it: it would be refused for ever, and
        so nothing would be learned that lowers the factor again.
        """
        ticket.raised_by = factors
        estimate, usd = ticket.estimate, ticket.estimate.usd
        more = (factors[0] - 1.0) * estimate.input_tokens
        more_usd = (factors[1] - 1.0) * (usd or 0.0)
        for dimension in self.dimensions:
            if dimension.bucket.hard and (room := dimension.bucket.capacity - dimension.amount(estimate)) >= 0:
                if dimension.metric == "usd":
                    more_usd = min(more_usd, room)
                elif dimension.metric in ("tokens", "input_tokens"):
                    more = min(more, room)
        ticket.charge = replace(
            estimate,
            tokens=estimate.tokens + more,
            input_tokens=estimate.input_tokens + more,
            usd=None if usd is None else usd + more_usd,
        )

    # What becomes of a ticket

    def _place(self, ticket: Ticket, now: float) -> None:
        if ticket.traffic is _INTERACTIVE:
            self._note_demand(ticket, now)
        self.line(ticket.traffic).enter(ticket, self._cost(ticket), now)
        if ticket.bound < math.inf:
            ticket.expiry = self._expiries.push(ticket.bound, ticket)

    def _note_demand(self, ticket: Ticket, now: float) -> None:
        """Note that an interactive call wants to go."""
        busy = self.interactive.in_use + self.interactive.waiting + 1
        for dimension in self._in_force:
            dimension.ask(ticket.charge, busy, now)

    def _grant(self, ticket: Ticket, owed: bool, now: float) -> None:
        if ticket.expiry is not None:
            self._forget_expiry(ticket)
        ticket.granted_at = now
        ticket.held_in = self._in_force
        charge, is_bulk = ticket.charge, ticket.traffic is _BULK
        for dimension in self._in_force:
            dimension.bucket.reserve(dimension.amount(charge), now)
        line = self.bulk if is_bulk else self.interactive
        line.in_use += 1
        line.granted += 1
        flying = self.interactive.in_use + self.bulk.in_use
        ticket.stamp = self.learning.departed(charge, flying, is_bulk and not owed, now)
        if is_bulk and self._min_share:
            self._min_share.spend(self._cost(ticket), now, owed=owed)
        ticket.state = _GRANTED  # last: from now on its owner may see it

    def _fail(self, ticket: Ticket, error: AdmissionError) -> None:
        self._drop(ticket)
        ticket.error = error
        ticket.state = _OVER  # last: from now on its owner may see it
        self._failed.append(ticket)

    def _turn_away(self, fresh: list[Ticket], now: float) -> None:
        """Of those who came just now and have to wait, fail whoever waits in vain, or one too many."""
        for ticket in reversed(fresh):
            line = self.line(ticket.traffic)
            if not self._fail_if_hopeless(ticket, now) and line.waiting > self._max_waiting and not ticket.front:
                self._fail(ticket, queue_full(line, self._expected_wait(line.traffic, now)))

    def _fail_if_hopeless(self, ticket: Ticket, now: float, until: float = math.inf) -> bool:
        """Fail a call that cannot go within its bound whatever comes back. Return whether it was so.

        ``until``: the instant at which it is thought to go. What a refill brings may still come sooner.
        """
        for dimension in self._in_force:
            hard = dimension.bucket.hard
            if until < math.inf and not hard:
                continue
            least = dimension.bucket.least_wait(dimension.amount(ticket.charge), now)
            if least == math.inf or now + least > ticket.bound:
                exceeded = hard or least == math.inf
                self._fail(
                    ticket,
                    budget_exceeded(dimension, ticket, least, now)
                    if exceeded
                    else timed_out(ticket, least, now, paused=self._paused_by(now)),
                )
                return True
        return False

    def _expire(self, horizon: float, now: float) -> None:
        """Fail every call whose bound lies before ``horizon``."""
        while (ticket := self._expiries.first()) is not None and ticket.bound < horizon:
            self._fail(ticket, self._too_late(ticket, now))

    def _drop(self, ticket: Ticket) -> None:
        self.line(ticket.traffic).remove(ticket)
        self._forget_expiry(ticket)

    def _forget_expiry(self, ticket: Ticket) -> None:
        if ticket.expiry is not None:
            self._expiries.discard(ticket.expiry)
            ticket.expiry = None

    # What it says

    def _expected_wait(self, traffic: TrafficClass, now: float) -> float | None:
        """Estimate how long a call of that class waits that comes last. None where nobody knows."""
        lines = [self.interactive] if traffic is _INTERACTIVE else [self.interactive, self.bulk]
        cost = sum(line.backlog for line in lines)
        calls = sum(line.waiting for line in lines)
        wait = 0.0
        for dimension in self._in_force:
            bucket = dimension.bucket
            if bucket.capacity < math.inf and not bucket.is_known(now):
                return None
            available = bucket.available(now)
            if bucket.hard:
                continue  # the backlog is not counted in its units; the head's wait tells
            if bucket.rate:
                floor = dimension.floor(now) if traffic is _BULK else 0.0
                wait = max(wait, cost - (available - floor) / bucket.rate)
            elif bucket.capacity < math.inf:
                turns = (calls + 1 - available) / bucket.capacity
                if turns > 0 and self._usual_hold is None:
                    return None  # no call has ended yet that could tell how long they take
                wait = max(wait, turns * (self._usual_hold or 0.0))
        if (head := self.wait) is not None and head.until is not None and head.traffic in (_INTERACTIVE, traffic):
            wait = max(wait, head.until - now)
        wait += max(0.0, self.paused_until - now)
        return wait if wait < math.inf else None

    def _too_late(self, ticket: Ticket, now: float) -> AdmissionError:
        """Return why a call has waited in vain."""
        for dimension in self._in_force if now >= self.paused_until else ():
            if wait := dimension.bucket.used_up_for(dimension.amount(ticket.charge), now):
                return budget_exceeded(dimension, ticket, wait, now)
        expected = self._expected_wait(ticket.traffic, now)
        return timed_out(ticket, expected, now, paused=self._paused_by(now))

    def _paused_by(self, now: float) -> str:
        """Return what the account is paused for at ``now``; empty where it is not."""
        return self.pause_reason if now < self.paused_until else ""
