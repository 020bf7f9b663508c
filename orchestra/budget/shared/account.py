"""One account as the processes that share it see it: its limits, who holds how much of them, who is next.

The whole decision and nothing else, without clock, file or network: a store reads an `Account`, calls
`Account.exchange`, and writes it back, in one transaction.

Each process takes what it needs for a moment in advance, its slice, and spends it without asking. The account is
used by what the processes hold and by what they have spent and has not refilled yet; both together stay within
the capacity. So whatever they do between two exchanges, together they take no more than one process alone would.

Who is next is decided as it is inside a process: urgent (interactive) before bulk, bulk only from what stays above
the interactive reserve, and in each class whoever has waited longest. What an earlier one waits for is set aside,
so that a large call is not overtaken for ever.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from orchestra.budget.dimension import Dimension
from orchestra.budget.limits import describe_limit, open_limit, terms_of
from orchestra.budget.window import Past, Window

__all__ = ["LEASE_SECONDS", "Account", "Amounts", "Holder", "Reply", "Request", "Terms"]

LEASE_SECONDS = 3.0
"""How long a process holds its slice after its last exchange. One that died has lost it after that."""

Amounts = dict[str, float]
"""How much of each dimension, by its name."""

State = tuple[float, float, float | None, Past | None]
"""Of a dimension: what is used of it, what its reserve had come to (two numbers), and a window's past."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The limits of an account by name, each ``(capacity, rate)`` or, of a window, ``(capacity, rate, seconds)``,
    and its interactive reserve."""

    limits: Mapping[str, tuple[float, ...]]
    reserve: Literal["auto"] | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a process tells and asks in one exchange. Amounts left out are zero.

    ``kept`` is what it holds and goes on holding, of stocks and windows what calls under way hold (``pinned``)
    included; ``believed`` is what it held after the exchange before. ``spent`` and ``refunded`` are since then.
    ``want`` is what the call whose turn it is lacks, all or nothing, and ``has`` what of ``kept`` is for it;
    ``next_turn`` if it is another call than before. ``more`` and ``more_bulk`` are what else it could use, for
    interactive and for bulk calls. ``asked`` is what interactive calls have asked for since the exchange before,
    and ``interactive`` is how many wait or are under way.

    ``assert_terms``: these terms are new and replace the account's.
    """

    holder: str
    terms: Terms
    assert_terms: bool = False
    believed: Amounts = field(default_factory=dict)
    kept: Amounts = field(default_factory=dict)
    spent: Amounts = field(default_factory=dict)
    refunded: Amounts = field(default_factory=dict)
    pinned: Amounts = field(default_factory=dict)
    want: Amounts = field(default_factory=dict)
    has: Amounts = field(default_factory=dict)
    urgent: bool = False
    next_turn: bool = False
    more: Amounts = field(default_factory=dict)
    more_bulk: Amounts = field(default_factory=dict)
    asked: Amounts = field(default_factory=dict)
    interactive: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What became of a request.

    ``held`` is what the process now holds, until ``expires_at``. ``retry_in`` says in how many seconds what it
    wants will be there if nothing else happens: zero if it got it, infinity where only others can tell. ``waits``
    says so of each limit that it waits for. ``never_in``: in how many it cannot be there whatever happens, by the
    limit that says so.
    ``yield_bulk``: calls of another process wait whose turn it is, so bulk goes no further on what is held.
    ``cramped``: one waits for so much that everybody must give back what is not in use.
    """

    held: Amounts
    expires_at: float
    retry_in: float
    terms: Terms
    processes: int
    yield_bulk: bool = False
    cramped: bool = False
    never_in: Amounts = field(default_factory=dict)
    waits: Amounts = field(default_factory=dict)


@dataclass(slots=True)
class Holder:
    """A process: what it holds, what it waits for and since when."""

    expires_at: float
    held: Amounts = field(default_factory=dict)
    want: Amounts = field(default_factory=dict)
    has: Amounts = field(default_factory=dict)
    urgent: bool = False
    since: float = 0.0
    interactive: int = 0


_HOLDER = tuple(one.name for one in fields(Holder))


class Account:
    """The shared state of one account. ``boot`` names the time base of its instants.

    Instants count from the machine's start. After another start they mean nothing, so then nobody holds anything,
    and all that was held counts as spent.
    """

    def __init__(self, terms: Terms, *, boot: str, now: float) -> None:
        self.terms = terms
        self.boot = boot
        self.at = now
        self.holders: dict[str, Holder] = {}
        self.dimensions: dict[str, Dimension] = {}
        self._aside: dict[str, Dimension] = {}
        self._set_terms(terms, now)

    def exchange(self, request: Request, *, boot: str, now: float) -> Reply:
        """Note what a process did, and give it what it may have."""
        now = self.advance(boot, now)
        if request.assert_terms and request.terms != self.terms:
            self._set_terms(request.terms, now)
        holder = self._note(request, now)
        waits = self._grant_want(request.holder, now)
        if not holder.want:
            self._grant_more(request, now)
        reply = Reply(
            held=dict(holder.held),
            expires_at=holder.expires_at,
            retry_in=max(waits.values(), default=0.0),
            terms=self.terms,
            processes=len(self.holders),
            yield_bulk=not (request.want and not holder.want) and self._others_press(request.holder, now),
            cramped=self._is_cramped(request.holder, now),
            never_in=self._never_in(holder, now),
            waits=waits,
        )
        if not holder.want and not any(holder.held.values()):
            del self.holders[request.holder]
        return reply

    def advance(self, boot: str, now: float) -> float:
        """Let time pass until ``now`` of the time base ``boot``, and return the instant that it is then."""
        if boot != self.boot:
            terms, holders = self.terms, self.holders
            states = {name: _state(one, self.at) for name, one in self.dimensions.items()}
            aside = {name: (terms_of(one.bucket), _state(one, self.at)) for name, one in self._aside.items()}
            self.boot, self.at, self.holders = boot, now, {}
            self._restore(terms, states, now)
            self._aside = {name: self._open(name, *past, now) for name, past in aside.items()}
            for holder in holders.values():
                self._write_off(holder, now)
        self.at = now = max(now, self.at)
        for name, holder in list(self.holders.items()):
            if holder.expires_at < now:
                del self.holders[name]
                self._write_off(holder, now)
        return now

    def available(self, metric: str, now: float) -> float:
        """Return how much is neither held nor spent; below zero in debt."""
        return self.dimensions[metric].bucket.available(now) - self.held(metric)

    def held(self, metric: str) -> float:
        """Return how much all processes hold together."""
        return sum(holder.held.get(metric, 0.0) for holder in self.holders.values())

    def describe(self, now: float) -> dict[str, Any]:
        """Return its numbers at ``now`` as a plain dict."""
        return {
            "processes": len(self.holders),
            "dimensions": {
                metric: {
                    **describe_limit(dimension.bucket),
                    "capacity": dimension.bucket.capacity,
                    "available": self.available(metric, now),
                    "used": dimension.bucket.used(now) + self.held(metric),
                    "interactive_reserve": dimension.floor(now),
                }
                for metric, dimension in self.dimensions.items()
            },
        }

    # What a process tells

    def _note(self, request: Request, now: float) -> Holder:
        holder = self.holders.get(request.holder)
        lost = holder is None
        if holder is None:
            holder = self.holders[request.holder] = Holder(0.0)
        for metric, dimension in self.dimensions.items():
            bucket, spent = dimension.bucket, request.spent.get(metric, 0.0)
            kept = request.kept.get(metric, 0.0)
            if lost:  # what it held has been written off as spent already
                spent = max(0.0, spent - request.believed.get(metric, 0.0))
                kept = 0.0 if bucket.rate else request.pinned.get(metric, 0.0)
            refunded = request.refunded.get(metric, 0.0)
            # In this order: a refund of what has refilled meanwhile is worth nothing, and one of a day, in which
            # nothing refills, may be of what is told only now.
            if not bucket.hard:
                bucket.settle(refunded, 0.0, now)
            bucket.settle(0.0, spent, now)
            if bucket.hard:
                bucket.give_back(refunded, now)
            bucket.reserved = 0.0
            holder.held[metric] = kept
        holder.held = {metric: holder.held[metric] for metric in self.dimensions}
        holder.expires_at = now + LEASE_SECONDS
        holder.interactive = request.interactive
        if not holder.want or request.next_turn:
            holder.since = now
        holder.want = {metric: amount for metric, amount in request.want.items() if metric in self.dimensions}
        holder.has, holder.urgent = request.has, request.urgent
        for metric, dimension in self.dimensions.items():
            if not dimension.bucket.rate:
                dimension.draw(sum(one.interactive for one in self.holders.values()), now)
            elif asked := request.asked.get(metric):
                dimension.draw(asked, now)
        return holder

    def _write_off(self, holder: Holder, now: float) -> None:
        """Count what a process held as spent: nobody knows. Its slots are free."""
        for metric, held in holder.held.items():
            dimension = self.dimensions.get(metric)
            if dimension is not None and dimension.bucket.rate:
                dimension.bucket.settle(0.0, held, now)

    # What it gets

    def _grant_want(self, name: str, now: float) -> Amounts:
        """Give a process what it wants where all of it is there; else return how long it waits for which limit."""
        holder = self.holders[name]
        waits = {}
        for metric in holder.want:
            bucket = self.dimensions[metric].bucket
            needed = self._needed(metric, holder, now) + self._wanted(metric, before=name)
            if wait := bucket.time_to_fill(needed - self.available(metric, now), now):
                waits[metric] = wait
        if not waits:
            for metric, amount in holder.want.items():
                holder.held[metric] += amount
            holder.want, holder.has = {}, {}
        return waits

    def _never_in(self, holder: Holder, now: float) -> Amounts:
        """Return for how long a window keeps out what is urgently wanted, even if all gave back what they hold."""
        waits = {}
        for metric, want in holder.want.items() if holder.urgent else ():
            bucket = self.dimensions[metric].bucket
            if bucket.window:
                waits[metric] = bucket.least_wait(want + holder.has.get(metric, 0.0), now)
        return {metric: wait for metric, wait in waits.items() if 0 < wait < math.inf}

    def _grant_more(self, request: Request, now: float) -> None:
        """Give of what is left over, up to an equal share of it for each process."""
        holder, processes = self.holders[request.holder], len(self.holders)
        for metric, dimension in self.dimensions.items():
            for wanted, urgent in ((request.more, True), (request.more_bulk, False)):
                amount = wanted.get(metric, 0.0)
                if amount <= 0:
                    continue
                spare = self.available(metric, now) - self._wanted(metric, urgent=urgent)
                if not urgent:
                    spare -= dimension.floor(now)
                amount = min(amount, spare / processes)
                if not dimension.bucket.rate:
                    amount = float(math.floor(amount + 1e-9)) if amount >= 1 else min(1.0, math.floor(spare))
                if amount > 0:
                    holder.held[metric] += amount

    def _needed(self, metric: str, holder: Holder, now: float) -> float:
        """Return how much must be available for a process to get what it wants.

        A call of more than there can be waits until all is there, and goes into debt.
        """
        amount, bucket = holder.want[metric], self.dimensions[metric].bucket
        floor = 0.0 if holder.urgent else self.dimensions[metric].floor(now)
        most = bucket.capacity - holder.has.get(metric, 0.0)
        return min(amount + floor, most) if bucket.rate or amount <= most else amount + floor

    def _wanted(self, metric: str, *, before: str | None = None, urgent: bool = False) -> float:
        """Return what processes wait for: all, the ``urgent``, or those whose turn comes ``before`` one's."""
        turn = _turn(before, self.holders[before]) if before is not None else (not urgent, math.inf, "")
        return sum(
            holder.want.get(metric, 0.0)
            for name, holder in self.holders.items()
            if holder.want and _turn(name, holder) < turn
        )

    def _others_press(self, name: str, now: float) -> bool:
        """Return whether another process waits, before this one's bulk, for what this one could let go.

        What refills comes to bulk in turn anyhow, but slots come only from who has them.
        """
        turn = self._bulk_turn(name)
        return any(
            (holder.urgent or not self.dimensions[metric].bucket.rate)
            and self.available(metric, now) < self._needed(metric, holder, now)
            for other, holder in self.holders.items()
            if other != name and _turn(other, holder) < turn
            for metric in holder.want
        )

    def _is_cramped(self, name: str, now: float) -> bool:
        """Return whether a process whose turn is earlier can only go once others give back what they do not use.

        Two that each hold what the other waits for would else wait for ever.
        """
        turn = self._bulk_turn(name)
        for other, holder in self.holders.items():
            if other == name or not _turn(other, holder) < turn:
                continue
            for metric in holder.want:
                bucket, needed = self.dimensions[metric].bucket, self._needed(metric, holder, now)
                if bucket.rate and needed > bucket.capacity - self.held(metric):
                    return True
                if (bucket.window or not bucket.rate) and holder.urgent and needed > self.available(metric, now):
                    return True
        return False

    def _bulk_turn(self, name: str) -> tuple[bool, float, str]:
        mine = self.holders[name]
        return _turn(name, mine) if mine.want else (True, math.inf, "")

    # Its limits

    def _set_terms(self, terms: Terms, now: float) -> None:
        """Change the limits. What was used of a day is kept in mind, even while no process has that limit."""
        states = {}
        known = {**self._aside, **self.dimensions}
        for name, limit in terms.limits.items():
            if name in known:
                dimension = known.pop(name)
                dimension.change(open_limit(name, limit, now), now)
                states[name] = _state(dimension, now)
        self._aside = {name: dimension for name, dimension in known.items() if dimension.bucket.hard}
        for name, dimension in self._aside.items():
            dimension.bucket.settle(0.0, self.held(name), now)
        self._restore(terms, states, now)
        for holder in self.holders.values():
            holder.held = {name: holder.held.get(name, 0.0) for name in terms.limits}
            holder.want = {name: amount for name, amount in holder.want.items() if name in terms.limits}

    def _restore(self, terms: Terms, states: Mapping[str, State], now: float) -> None:
        self.terms = terms
        fresh: State = (0.0, 0.0, None, None)
        self.dimensions = {
            name: self._open(name, limit, states.get(name, fresh), now) for name, limit in terms.limits.items()
        }

    def _open(self, name: str, limit: tuple[float, ...], state: State, now: float) -> Dimension:
        used, depth, level, past = state
        bucket = open_limit(name, limit, now)
        if isinstance(bucket, Window) and past is not None:
            bucket.restore(past, now)
        else:
            bucket.settle(0.0, used, now)
        return Dimension(bucket, self.terms.reserve, now, depth=depth, level=level)

    # As text

    def dumps(self) -> str:
        """Return it as JSON."""
        return json.dumps(
            {
                "boot": self.boot,
                "at": self.at,
                "reserve": self.terms.reserve,
                "limits": self.terms.limits,
                "states": {name: _state(one, self.at) for name, one in self.dimensions.items()},
                "aside": {name: (terms_of(one.bucket), _state(one, self.at)) for name, one in self._aside.items()},
                # what `asdict` would say, without its copies: each call of each process waits for this
                "holders": {
                    name: {key: getattr(holder, key) for key in _HOLDER} for name, holder in self.holders.items()
                },
            },
            separators=(",", ":"),
        )

    @classmethod
    def loads(cls, text: str) -> Account:
        """Return the account that `dumps` wrote. Raises ValueError where the text is none."""
        try:
            data: dict[str, Any] = json.loads(text)
            limits = {name: tuple(map(float, limit)) for name, limit in data["limits"].items()}
            terms = Terms(limits, data["reserve"])
            account = cls(terms, boot=data["boot"], now=float(data["at"]))
            states = {name: _read_state(*state) for name, state in data["states"].items()}
            account._restore(terms, states, account.at)
            for name, (limit, state) in data.get("aside", {}).items():
                account._aside[name] = account._open(name, tuple(limit), _read_state(*state), account.at)
            account.holders = {name: Holder(**holder) for name, holder in data["holders"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not the state of an account: {error!r}") from None
        return account


def _state(dimension: Dimension, now: float) -> State:
    bucket = dimension.bucket
    past = bucket.past(now) if isinstance(bucket, Window) else None
    return bucket.used(now), dimension.depth(now), dimension.reserve.share(now), past


def _read_state(used: float, depth: float, level: float | None, past: Past | None = None) -> State:
    return used, depth, level, past  # the last is missing in files of the first form


def _turn(name: str, holder: Holder) -> tuple[bool, float, str]:
    return not holder.urgent, holder.since, name
