"""One account's limit group, shared by every loop and thread of the process."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from orchestra.budget.admission import NOBODY, Admission, Decision, Wait
from orchestra.budget.alarm import CallAt, call_at
from orchestra.budget.bucket import Bucket
from orchestra.budget.dimension import Dimension
from orchestra.budget.lease import Lease
from orchestra.budget.limits import describe_limit, online_limits
from orchestra.budget.ticket import State, Ticket
from orchestra.budget.unread import Unread
from orchestra.call import Charge, RateLimit
from orchestra.config import LimitsConfig, TrafficConfig
from orchestra.policies.traffic import TrafficClass

if TYPE_CHECKING:
    from orchestra.budget.shared import Loan

__all__ = ["Pool"]

T = TypeVar("T")

_GRANTED = State.GRANTED

LimitsOf = Callable[[LimitsConfig | None, float], list[Bucket]]


class Pool:
    """The thread-safe shell around one `Admission`.

    Whatever happens (a call asks, gives up, ends) is posted to an inbox, a deque; then *one* pump empties it and
    decides. Whoever posts pumps, but only one at a time does: the pump is guarded by a lock that is never waited
    for. Who cannot have it leaves, because who has it looks into the inbox again after letting go. So nothing
    here blocks an event loop, and everything may be called from finalizers, even in the midst of the pump itself.

    A call that asks on a loop lets the loop go round once before it pumps. So all who ask in the same step, two
    thousand gathered calls or one interactive call behind them, are in the queue before anyone is let in.

    When the call whose turn it is has to wait, an alarm is set to the instant when it can go: nothing polls. The
    alarm rings in a thread of its own (see `orchestra.budget.alarm`); waiters are woken on their own loops by
    ``call_soon_threadsafe``, one call a loop and pump. A waiter whose loop is closed is dropped.
    """

    def __init__(
        self,
        limits: LimitsConfig | None = None,
        traffic: TrafficConfig | None = None,
        *,
        limits_of: LimitsOf = online_limits,
        loan: Loan | None = None,
        clock: Callable[[], float] = time.monotonic,
        call_at: CallAt = call_at,
    ) -> None:
        """``clock`` and ``call_at`` belong together: the instants of one are those of the other.

        ``limits_of`` says which of the settings hold here: those of calls, or those of open batches.
        ``loan``: the limits are an account's that other processes share, and what may be spent is borrowed.
        """
        traffic = traffic if traffic is not None else TrafficConfig()
        now = clock()
        self._limits = limits
        self._limits_of = limits_of
        self._reserve = traffic.interactive_reserve
        self._loan = loan
        self._admission = Admission(
            self._buckets(limits, now),
            reserve=self._reserve,
            bulk_min_share=traffic.bulk_min_share,
            max_waiting=traffic.max_waiting,
            careful=limits_of is online_limits and not online_limits(limits, now),
            dimension=Dimension if loan is None else loan.dimension,
            now=now,
        )
        self._clock = clock
        self._call_at = call_at
        self._lock = threading.Lock()
        self._inbox: deque[Callable[[float], object]] = deque()
        self._unread = Unread()
        if loan is not None:
            loan.bind(self._inspect, self._ring)

    async def acquire(
        self,
        charge: Charge,
        *,
        traffic: TrafficClass,
        job: str | None = None,
        expires_at: float | None = None,
        queue_bound: float | None = None,
        front: bool = False,
    ) -> Lease:
        """Wait until the call may be sent, and return its lease.

        ``expires_at`` bounds the wait by an instant of the pool's clock, ``queue_bound`` by a duration in seconds;
        ``front`` puts a retry before all others of its class. A cancelled caller holds nothing.

        Raises AdmissionTimeout when the bound passes, or at once where it is certain to; QueueFull where a bounded
        queue is; BudgetExceeded where the charge can never fit; ValueError for a charge or bound that is none.
        """
        ticket = Ticket(charge, traffic, job, expires_at, queue_bound, front)
        self._inbox.append(partial(self._admission.enqueue, ticket))
        try:
            await _once_round()
            self._pump()
            if ticket.state is not _GRANTED and not ticket.decided:
                ticket.owner = future = asyncio.get_running_loop().create_future()
                if not ticket.decided:  # else another thread decided before it could see the future
                    await future
        except BaseException:
            self._post(partial(self._admission.withdraw, ticket))
            raise
        return self._admit(ticket)

    def acquire_sync(
        self,
        charge: Charge,
        *,
        traffic: TrafficClass,
        job: str | None = None,
        expires_at: float | None = None,
        queue_bound: float | None = None,
        front: bool = False,
    ) -> Lease:
        """As `acquire`, for synchronous callers: it blocks the thread, so do not call it where a loop runs."""
        woken = threading.Lock()
        woken.acquire()
        ticket = Ticket(charge, traffic, job, expires_at, queue_bound, front, owner=woken)
        self._inbox.append(partial(self._admission.enqueue, ticket))
        try:
            self._pump()
            woken.acquire()
        except BaseException:
            self._post(partial(self._admission.withdraw, ticket))
            raise
        return self._admit(ticket)

    def give_back(self, lease: Lease) -> None:
        """Take back the dollars of a lease that was kept: what it was for has cost nothing. Call it once."""
        self._post(partial(self._admission.give_back, lease.ticket))

    def note_reader(self, lease: Lease, *, handed: bool) -> None:
        """Note whose turn it is at a stream under ``lease``: its reader was ``handed`` something, or asks on.

        While calls wait for a slot, readers that stay away for a second are looked for: see `Unread`.
        """
        if handed:
            self._unread.handed(id(lease), self._clock())
        else:
            self._unread.asked(id(lease))

    def forget_reader(self, lease: Lease) -> None:
        """Note that the stream under ``lease`` has ended."""
        self._unread.ended(id(lease))

    def observe(self, lease: Lease, told: Sequence[RateLimit], *, ok: bool = True) -> None:
        """Learn from the answer to the call of ``lease``: what its headers ``told``, and whether it is a success.

        Only what the provider answers counts: an answer of somebody else's, or none, teaches nothing.
        """
        self._post(lambda now: self._admission.answered(lease.ticket, told, now, ok=ok))

    def throttled(self, lease: Lease, told: Sequence[RateLimit], *, pause: float | None = None) -> None:
        """Learn that the provider turned a call away because the account asked for too much (429).

        ``pause``: for how many seconds it said to ask for nothing; nobody is let in meanwhile. End the lease
        first: what is left by the headers does not count what was refused.
        """
        self._post(lambda now: self._admission.throttled(lease.ticket, told, pause, now))

    def pause(self, until: float, reason: str) -> None:
        """Let nobody in before ``until``, an instant of the pool's clock: Retry-After, or a quota that is used up.

        Infinity means until `resume`. The longest of several pauses counts. A call that waits with a bound before
        ``until`` fails at once.
        """
        if math.isnan(until):
            raise ValueError("until must be an instant, not NaN")
        self._post(lambda _: self._admission.pause(until, reason))

    def resume(self) -> None:
        """End a pause before its time."""
        self._post(lambda _: self._admission.resume())

    def set_limits(self, limits: LimitsConfig | None) -> None:
        """Change the limits while running. What is used stays used, calls under way and waiting stay so."""
        if limits is not self._limits and limits != self._limits:
            self._limits = limits
            self._post(lambda now: self._admission.set_limits(self._buckets(limits, now), now))

    def snapshot(self) -> dict[str, Any]:
        """Return the pool's state as a plain dict. Instants are given as seconds from now."""
        loan = self._loan
        if loan is None:
            return self._inspect(_describe)
        return loan.describe(
            self._inspect(lambda admission, now: loan.explain(_describe(admission, now), admission, now))
        )

    def is_idle(self) -> bool:
        """Return whether the pool holds nothing that a new one would not."""
        return self._inspect(_is_idle)

    def _buckets(self, limits: LimitsConfig | None, now: float) -> Sequence[Bucket]:
        buckets = self._limits_of(limits, now)
        return buckets if self._loan is None else self._loan.propose(buckets, self._reserve, now)

    def _admit(self, ticket: Ticket) -> Lease:
        ticket.owner = None
        if ticket.error is not None:
            try:
                raise ticket.error
            finally:
                ticket.error = None  # or error, traceback, frame and ticket would hold each other
        return Lease(ticket, self._end)

    def _end(self, ticket: Ticket, spent: Charge) -> None:
        self._inbox.append(partial(self._admission.end, ticket, spent))
        self._pump()

    def _post(self, event: Callable[[float], object]) -> None:
        self._inbox.append(event)
        self._pump()

    def _ring(self) -> None:
        self._post(_look)

    def _look_for_readers(self) -> None:
        """Free the slots of streams that nobody can read any more. Runs on the alarm's thread."""
        if self._inspect(lambda admission, now: admission.waits_for_slot() and self._unread.look(now)):
            gc.collect()
        self._post(_look)

    def _inspect(self, read: Callable[[Admission, float], T]) -> T:
        with self._lock:
            if self._inbox:
                self._turn()
            seen = read(self._admission, self._clock())
        self._pump()
        return seen

    def _pump(self) -> None:
        inbox, lock = self._inbox, self._lock
        while inbox and lock.acquire(False):
            try:
                self._turn()
            finally:
                lock.release()

    def _turn(self) -> None:
        """Empty the inbox, decide, and carry that out. Who calls it has the lock."""
        inbox, now = self._inbox, self._clock()
        while inbox:
            inbox.popleft()(now)
        decision = self._admission.decide(now)
        if decision is not NOBODY:
            self._carry_out(decision)
        if self._loan is not None:
            self._loan.after_decision(self._admission)

    def _carry_out(self, decision: Decision) -> None:
        for ticket in decision.granted:
            if ticket.owner is not None:  # else its task is about to look by itself
                self._wake(decision.granted + decision.failed)
                break
        else:
            if decision.failed:
                self._wake(decision.failed)
        if decision.next_at < math.inf:
            self._call_at(decision.next_at, self._ring)
        if self._admission.waits_for_slot() and (look_at := self._unread.next_look()) < math.inf:
            self._call_at(look_at, self._look_for_readers)

    def _wake(self, tickets: list[Ticket]) -> None:
        elsewhere: dict[asyncio.AbstractEventLoop, list[Ticket]] = {}
        for ticket in tickets:
            owner = ticket.owner
            if owner is None:
                continue  # its task is about to look by itself
            if not asyncio.isfuture(owner):
                owner.release()
            elif (loop := owner.get_loop()) is asyncio._get_running_loop():
                _set_result(owner)
            else:
                elsewhere.setdefault(loop, []).append(ticket)
        for loop, theirs in elsewhere.items():
            try:
                loop.call_soon_threadsafe(_set_results, [ticket.owner for ticket in theirs])
            except RuntimeError:  # the loop is closed: nobody will ever take these
                self._inbox.extend(partial(self._admission.withdraw, ticket) for ticket in theirs)


@types.coroutine
def _once_round() -> Generator[None, None, None]:
    """Let the loop go round once: as ``asyncio.sleep(0)``, without a coroutine and a generator of its own."""
    yield


def _look(now: float) -> None:
    """Nothing happened but time."""


def _set_result(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _set_results(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        _set_result(future)


def _is_idle(admission: Admission, now: float) -> bool:
    return (
        now >= admission.paused_until
        and not any(line.in_use or line.waiting for line in (admission.interactive, admission.bulk))
        and not any(dimension.bucket.used(now) for dimension in admission.dimensions)
    )


def _describe(admission: Admission, now: float) -> dict[str, Any]:
    dimensions = {}
    given, learned = [*admission.dimensions], admission.learning.dimensions
    if all(dimension.name != "concurrency" for dimension in given):
        slots = Bucket("concurrency", capacity=math.inf, now=now)
        slots.reserve(admission.in_flight(), now)
        given.append(Dimension(slots, 0.0, now))
    for dimension in (*given, *learned):
        bucket = dimension.bucket
        finite = bucket.capacity < math.inf
        dimensions[dimension.name] = {
            "source": "learned" if dimension in learned else "configured" if finite else None,
            **describe_limit(bucket),
            "capacity": bucket.capacity if finite else None,
            "available": bucket.available(now) if finite else None,
            "used": bucket.used(now),
            "reserved": bucket.reserved,
            "interactive_reserve": dimension.floor(now),
            "room_in": _room_in(admission.wait, dimension.name, now),
        }
    head = admission.wait
    lines = (admission.interactive, admission.bulk)
    return {
        "dimensions": dimensions,
        "in_use": {line.traffic.value: line.in_use for line in lines},
        "waiting": {line.traffic.value: line.waiting for line in lines},
        "granted": {line.traffic.value: line.granted for line in lines},
        "spent": admission.spent,
        "head": None
        if head is None
        else {
            "traffic": head.traffic.value,
            "job": head.job,
            "waits_for": head.reason,
            "seconds": _room_in(head, head.reason, now),
        },
        "paused": None
        if now >= admission.paused_until
        else {
            "reason": admission.pause_reason,
            "seconds": admission.paused_until - now if admission.paused_until < math.inf else None,
        },
    }


def _room_in(wait: Wait | None, reason: str, now: float) -> float | None:
    """Return the seconds until the call whose turn it is can go, where it is ``reason`` that keeps it."""
    if wait is None or wait.until is None or wait.reason != reason:
        return None
    return max(0.0, wait.until - now)
