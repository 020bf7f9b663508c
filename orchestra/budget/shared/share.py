"""What one process borrows of an account and when: the whole plan, without clock, lock or I/O.

A `Share` stands between the process's `Admission` and the `Account`. Before an exchange it says what was spent,
what is needed and what can go back (`capture`); after it, it takes on what came (`apply`). In between the
admission runs on its slices alone.

Interactive calls get their slice before they need it: a second's demand and one call to spare, which bulk leaves
alone. Bulk gets a quarter of a second's, and otherwise waits for its turn at the account.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Literal

from orchestra.budget.admission import Admission
from orchestra.budget.bucket import Bucket
from orchestra.budget.limits import open_limit, terms_of
from orchestra.budget.shared.account import Amounts, Reply, Request, Terms
from orchestra.budget.shared.slice import Slice
from orchestra.budget.ticket import Ticket
from orchestra.policies.traffic import TrafficClass

__all__ = ["Share"]

BEAT = 0.25
"""Seconds between two exchanges of a process that holds something."""
POLL = 0.1
POLL_URGENT = 0.05
"""The same where bulk or interactive calls wait: others may give back early what they wait for."""
GAP = 0.02
GAP_URGENT = 0.002
"""Seconds at least between two exchanges."""

_MEMORY = 2.0
_QUIET = 5.0
_AHEAD = 1.0
_AHEAD_BULK = 0.25
_MOST_AHEAD = 0.125
_HYSTERESIS = 1.5
_EXPIRY_MARGIN = 0.5


@dataclass(slots=True)
class _Demand:
    """What calls of one class take of one metric: units a second, and a call; fading averages."""

    rate: float = 0.0
    call: float = 0.0

    def note(self, amount: float, calls: float, seconds: float) -> None:
        weight = 1.0 - math.exp(-seconds / _MEMORY)
        if seconds > 0:
            self.rate += weight * (amount / seconds - self.rate)
        if calls:
            self.call = amount / calls if not self.call else self.call + 0.2 * (amount / calls - self.call)


class Share:
    """A process's part of one account. ``holder`` names the process."""

    def __init__(self, holder: str) -> None:
        self.holder = holder
        self.slices: dict[str, Slice] = {}
        self.next_at = math.inf
        self.earliest = -math.inf
        self.processes = 0
        self.woken = False
        self._terms: Terms | None = None
        self._own_limits: Mapping[str, tuple[float, ...]] = {}
        self._assert_terms = False
        self._demand: dict[str, tuple[_Demand, _Demand]] = {}
        self._targets: dict[str, tuple[float, float]] = {}
        self._told: dict[str, tuple[float, float]] = {}
        self._given: Amounts = {}
        self._asked_for: Ticket | None = None
        self._waits: dict[str, float] = {}  # until when the call that was asked for waits for which limit
        self._yields = self._cramped = False
        self._at = -math.inf
        self._active_at = [-math.inf, -math.inf]

    def propose(self, buckets: Iterable[Bucket], reserve: Literal["auto"] | float, now: float) -> list[Slice]:
        """Take limits from the settings, for the account to take on. Return the slices of them."""
        limits = {bucket.name: terms_of(bucket) for bucket in buckets}
        self._terms = Terms(limits, reserve)
        self._own_limits = limits
        self._assert_terms = True
        self.next_at = now
        return self._cut(now)

    def hungry(self, admission: Admission) -> bool:
        """Return whether an exchange is due that nobody has been woken for yet."""
        if self.woken:
            return False
        if (wait := admission.wait) is not None:
            head = admission.line(wait.traffic).queue.peek()
            if head is not self._asked_for:
                return True
        idle = self.next_at == math.inf
        for slice in self.slices.values():
            if slice.held - slice.spent - slice.pinned < slice.low:
                return True
            if self._yields and not slice.rate and slice.stock >= 1:
                return True
            if (slice.refunded and wait is not None) or (idle and (slice.refunded or slice.spent)):
                return True
        return False

    def waits_for(self, admission: Admission) -> tuple[str, float] | None:
        """Return which of the account's limits keeps out the call whose turn it is, and until when.

        Infinity means that only others can tell; None that the account has not been asked for this call.
        """
        wait = admission.wait
        if wait is None or not self._waits or admission.line(wait.traffic).queue.peek() is not self._asked_for:
            return None
        return max(self._waits.items(), key=itemgetter(1))

    # An exchange

    def capture(self, admission: Admission, now: float, *, leaving: bool = False) -> Request:
        """Return what to tell and ask the account. What goes back is no longer here, even before it has arrived.

        ``leaving``: give back all that is not in use, and ask for nothing.
        """
        if self._terms is None:
            raise RuntimeError("no limits have been proposed")
        self.woken = False
        self._note_demand(admission, now)
        quiet = leaving or now < admission.paused_until
        wait = None if quiet else admission.wait
        head = None if wait is None else admission.line(wait.traffic).queue.peek()
        urgent = head is not None and head.traffic is TrafficClass.INTERACTIVE
        waiting = admission.interactive.waiting, admission.bulk.waiting
        amounts: dict[str, Amounts] = {
            name: {} for name in ("kept", "pinned", "believed", "want", "has", "more", "more_bulk")
        }
        for dimension in admission.dimensions:
            metric = dimension.name
            if (slice := self._limiting(metric)) is None:
                continue
            amount = 0.0 if head is None else dimension.amount(head.charge)
            need, need_bulk = (0.0, 0.0) if quiet else self._needs(metric, amount, waiting, urgent, now)
            kept_back = self._targets[metric][0]
            keep = 0.0 if leaving or self._cramped else need
            if not (leaving or self._cramped or self._yields):
                keep += need_bulk
            give = self._give(slice, keep)
            amounts["believed"][metric] = slice.held
            slice.held -= give
            self._given[metric] = give
            stock = max(0.0, slice.stock)  # a debt goes over to the account
            amounts["kept"][metric] = stock + slice.pinned
            amounts["pinned"][metric] = slice.pinned
            wanted = want = 0.0
            if amount > 0:
                wanted = amount + (0.0 if urgent else kept_back + self._quantum(slice, amount))
                want = max(0.0, wanted - stock)
            if want > 1e-9:
                amounts["want"][metric], amounts["has"][metric] = want, wanted - want
            rest = stock + want
            amounts["more"][metric] = max(0.0, need - rest)
            amounts["more_bulk"][metric] = max(0.0, need_bulk - max(0.0, rest - need))
        next_turn, self._asked_for = head is not self._asked_for, head
        return Request(
            holder=self.holder,
            terms=self._terms,
            assert_terms=self._assert_terms,
            spent={metric: slice.spent for metric, slice in self.slices.items() if slice.spent},
            refunded={metric: slice.refunded for metric, slice in self.slices.items() if slice.refunded},
            urgent=urgent,
            next_turn=next_turn,
            asked={metric: asked for metric, (asked, _) in self._told.items()},
            interactive=admission.interactive.in_use + waiting[0],
            **amounts,
        )

    def apply(self, request: Request, reply: Reply, admission: Admission, now: float) -> None:
        """Take on what the account answered."""
        for metric, slice in self.slices.items():
            slice.spent -= request.spent.get(metric, 0.0)
            slice.refunded -= request.refunded.get(metric, 0.0)
        self._assert_terms = self._assert_terms and request.terms != self._terms
        if reply.terms != self._terms and not self._assert_terms:
            self._terms = self._with_own_cap(reply.terms)
            self._assert_terms = self._terms != reply.terms
            admission.set_limits(self._cut(now), now)
        self._yields, self._cramped, self.processes = reply.yield_bulk, reply.cramped, reply.processes
        for metric, slice in self.slices.items():
            slice.held = reply.held.get(metric, 0.0)
            if slice.window and slice.held < request.kept.get(metric, 0.0) - 1e-9:
                slice.write_off()
            never_in = reply.never_in.get(metric)
            if never_in is None:
                slice.barred = (-math.inf, math.inf)
            else:
                slice.barred = (now + never_in, request.want[metric] + request.has[metric] - 1e-9)
            slice.valid_until = reply.expires_at - _EXPIRY_MARGIN
            target, target_bulk = self._targets.get(metric, (0.0, 0.0))
            slice.kept_back = math.inf if reply.yield_bulk else target
            slice.low = -math.inf
            if slice.capacity < math.inf:
                slice.low = min(0.5 * (target + target_bulk), slice.stock - 0.5 * max(0.0, slice.stock)) - 1e-6
        self._given = {}
        self._waits = {metric: now + wait for metric, wait in reply.waits.items()}
        self._plan_next(request, reply, now)

    def undo(self, now: float, retry_in: float) -> None:
        """The exchange failed: what was to go back is here still. Try again in so many seconds."""
        for metric, given in self._given.items():
            self.slices[metric].held += given
        self._given, self._waits = {}, {}
        self._asked_for = None
        self.woken = True
        self.next_at = self.earliest = now + retry_in

    def forget(self, holder: str) -> None:
        """Begin anew under another name: what is held belongs to the process that this one was forked from."""
        self.holder = holder
        self.next_at, self.woken, self._asked_for = math.inf, False, None
        self._given, self._waits = {}, {}
        for slice in self.slices.values():
            slice.empty()

    def _plan_next(self, request: Request, reply: Reply, now: float) -> None:
        gap = GAP_URGENT if request.urgent else GAP
        if reply.retry_in:
            wait = min(reply.retry_in, POLL_URGENT if request.urgent else POLL)
        elif self._yields or self._cramped:
            wait = POLL
        elif any(reply.held.values()) or any(slice.spent or slice.refunded for slice in self.slices.values()):
            wait = BEAT
        else:
            wait = math.inf
        self.earliest = now + gap
        self.next_at = now + max(gap, wait)

    # What it needs

    def _note_demand(self, admission: Admission, now: float) -> None:
        seconds = now - self._at if self._at > -math.inf else 1.0
        self._at = now
        calls, all_calls = self.slices["concurrency"].asked, self.slices["concurrency"].taken
        self._told = {}
        for metric, slice in self.slices.items():
            asked, taken = slice.asked, slice.taken
            slice.asked = slice.taken = 0.0
            self._told[metric] = asked, taken
            interactive, bulk = self._demand.setdefault(metric, (_Demand(), _Demand()))
            interactive.note(asked, calls, seconds)
            bulk.note(max(0.0, taken - asked), max(0.0, all_calls - calls), seconds)
        for index, line in enumerate((admission.interactive, admission.bulk)):
            if line.waiting or (calls if index == 0 else all_calls > calls):
                self._active_at[index] = now

    def _needs(
        self, metric: str, amount: float, waiting: tuple[int, int], urgent: bool, now: float
    ) -> tuple[float, float]:
        """Return what interactive and what bulk calls need of a metric, and note the standing part of it."""
        slice = self.slices[metric]
        interactive, bulk = self._demand[metric]
        most = _MOST_AHEAD * slice.capacity
        target = target_bulk = 0.0
        if now - self._active_at[0] < _QUIET:
            target = min(most, interactive.rate * _AHEAD + interactive.call)
        if now - self._active_at[1] < _QUIET:
            queue = waiting[1] * (bulk.call if urgent or not amount else amount)
            fair = slice.rate * _AHEAD_BULK / max(1, self.processes)
            target_bulk = min(most, max(bulk.rate * _AHEAD_BULK, min(queue, fair)))
        if not slice.rate:  # whole slots; of few slots none is kept idle
            target, target_bulk = (
                float(min(math.ceil(one - 1e-9), math.floor(most))) for one in (target, target_bulk)
            )
        self._targets[metric] = target, target_bulk
        need = target + waiting[0] * (amount if urgent else interactive.call)
        need_bulk = target_bulk + (0.0 if urgent else amount)
        return need, need_bulk

    def _quantum(self, slice: Slice, amount: float) -> float:
        """Return what bulk takes at its turn beyond one call: with equal quanta the processes get equal shares."""
        quantum = self._targets[slice.name][1] if slice.rate and self.processes > 1 else 0.0
        return quantum if amount + quantum <= 0.5 * slice.capacity else 0.0

    def _give(self, slice: Slice, keep: float) -> float:
        """Return how much of a slice goes back: clearly more than is needed, and whole slots."""
        spare = slice.stock - keep
        if spare <= 0 or (keep and slice.stock <= _HYSTERESIS * keep and slice.rate):
            return 0.0
        return spare if slice.rate else float(math.floor(spare + 1e-9))

    # Its slices

    def _limiting(self, metric: str) -> Slice | None:
        slice = self.slices.get(metric)
        return slice if slice is not None and slice.capacity < math.inf else None

    def _with_own_cap(self, terms: Terms) -> Terms:
        """Return the account's terms, and of limits in dollars the lower one: another process, which has other
        settings, does not lift the cap of this one."""
        caps = {
            name: limit
            for name, limit in self._own_limits.items()
            if name == "usd_per_day" and limit[0] < terms.limits.get(name, (math.inf,))[0]
        }
        return replace(terms, limits={**terms.limits, **caps}) if caps else terms

    def _cut(self, now: float) -> list[Slice]:
        """Return the slices of the limits that hold, those that are there already resized."""
        limits = dict(self._terms.limits) if self._terms is not None else {}
        limits.setdefault("concurrency", (math.inf, 0.0))
        slices = {}
        for name, limit in limits.items():
            slice = self.slices.get(name)
            whole = open_limit(name, limit, now)
            capacity, rate, window = whole.capacity, whole.rate, whole.window
            if slice is None:
                slice = Slice(whole.metric, capacity=capacity, rate=rate, window=window, now=now, name=name)
            else:
                slice.reshape(capacity, rate, window, now)
            slices[name] = slice
        self.slices = slices
        return [*slices.values()]
