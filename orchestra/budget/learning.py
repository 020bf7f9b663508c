"""What a pool learns about its account from the answers.

Headers tell a limit and how much of it was left, some time between when their call was let go and when they came.
So they bound what is left now: from below as if the call had arrived before all that were under way with it (new
connections take their time), from above as if it had arrived in its turn, or the headers had been written at the
last moment. Whatever lies between may be true, and is left alone. Above it, somebody else takes from the account,
or a call cost more than we thought: what is left is corrected down at once. Below it, a call cost less, or a limit
was raised: it is corrected up by half the gap, so that a single odd answer does little. Nothing is counted twice:
all answers bound the same "now".

A learned limit stands beside a configured one of the same metric, and a call needs room in both. So headers can
lower what is configured, and never raise it.

Where answers tell nothing, two controllers find out by trying: `ConcurrencyLimit` and `SendRate`.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from typing import Literal, NamedTuple

from orchestra.budget.bucket import Bucket
from orchestra.budget.dimension import Dimension
from orchestra.call import Charge, RateLimit
from orchestra.policies.concurrency import ConcurrencyLimit
from orchestra.policies.send_rate import SendRate

__all__ = ["LearnedLimit", "Learning", "Stamp"]

CAREFUL_CONCURRENCY = 8.0
"""How many calls go at once, at first, to an account of which nothing is known."""

_METRICS = ("requests", "tokens", "input_tokens", "output_tokens")
_FIXED_WINDOW_BURST = 0.25
"""The share of a window that resets all at once, instead of refilling, which may go at once."""
_SEND_BURST_SECONDS = 1.0
_WATCH_SECONDS = 1.0
_WATCH_UNITS = 10.0
"""Others are watched for so long at a time, and while so many units refill: what is left is told in whole ones."""
_LEAST_SHARE = 0.05
"""The share of the refill that we believe in whatever others seem to take."""

Totals = tuple[float, float, float, float]
"""Sums since the start, by metric."""


class Stamp(NamedTuple):
    """How things stood when a call was let go: what calls that were over had taken, and what all had."""

    at: float
    charge: Charge
    over: Totals
    sent: Totals
    round: int
    at_limit: bool
    rate_cuts: int


class LearnedLimit:
    """One limit as headers tell it, and the dimension that keeps to it.

    Its bucket refills at what the others on the account leave of the refill: an answer that took long tells what
    was left long ago, and what they have taken since is only known from what they usually take.
    """

    __slots__ = ("_as_of", "_is_fixed", "_last", "_most", "_open", "_others", "dimension", "limit", "window")

    def __init__(self, told: RateLimit, limit: float, reserve: Literal["auto"] | float, now: float) -> None:
        bucket = Bucket(told.metric, capacity=limit, rate=limit / told.window, now=now)
        bucket.set_available(0.0, now)
        self.dimension = Dimension(bucket, reserve, now, name=f"{_name(told)} (learned)")
        self.limit = limit
        self.window = told.window
        self._most = 0.0
        self._is_fixed = False
        self._others = 0.0
        self._as_of = -math.inf
        self._last: tuple[float, float, float] | None = None
        self._open: tuple[float, float, float, float] | None = None

    def hear(self, told: RateLimit, stamp: Stamp, sent: Totals, now: float, *, refused: bool) -> None:
        """Correct the limit, and what is left of it, by an answer to the call of ``stamp``."""
        bucket, index = self.dimension.bucket, _METRICS.index(told.metric)
        first = self._as_of == -math.inf
        if stamp.at >= self._as_of:
            self._as_of = stamp.at
            if told.limit is not None and told.limit != self.limit:
                self.limit, self._most, self._is_fixed = told.limit, 0.0, False
                self._others, self._last = 0.0, None
        if told.limit is None or told.limit == self.limit:
            self._fill(told, refused=refused)
            if not refused:
                self._watch(told, stamp.at, stamp.sent[index])
            self._resize(now)
        if told.remaining is None:
            if first:
                bucket.set_available(bucket.capacity, now)
            return
        refilled = bucket.rate * (now - stamp.at)
        rounded_up = told.resolution - 1.0  # whole units are rounded down
        over = stamp.over[index] + self.dimension.amount(stamp.charge)
        beside = max(0.0, sent[index] - over - refilled)
        self._remember(told.remaining - rounded_up, stamp, index, now, alone=not beside)
        least = told.remaining - rounded_up - beside
        most = told.remaining + max(0.0, refilled - (sent[index] - stamp.sent[index]))
        if not refused:
            most += told.resolution
        available = bucket.available(now)
        if first:
            bucket.set_available(least, now)
        elif available > most:
            bucket.set_available(most, now)
        elif available < least and not self._is_fixed:
            bucket.set_available((available + least) / 2, now)

    def _remember(self, left: float, stamp: Stamp, index: int, now: float, *, alone: bool) -> None:
        """Keep the least that was left by what those tell that went last, if others were under way beside them."""
        at = self._open[0] if self._open else -math.inf
        if stamp.at > at:
            self._open = None if alone else (stamp.at, left, now, stamp.sent[index])
        elif self._open and stamp.at == at:
            _, least, _, before = self._open
            self._open = at, min(left, least), now, max(stamp.sent[index], before)

    def conclude(self, sent: Totals, now: float) -> None:
        """Nothing is under way, so nothing is uncertain: what those told that went last is how it stands."""
        told, self._open = self._open, None
        if told is None or self._is_fixed:
            return
        _, left, heard_at, before = told
        bucket = self.dimension.bucket
        left += bucket.rate * (now - heard_at) - (sent[_METRICS.index(bucket.metric)] - before)
        if bucket.available(now) < left:
            bucket.set_available(min(left, bucket.capacity), now)

    def give_back(self, amount: float, now: float) -> None:
        """Note that a call took so much less than was taken off for it."""
        bucket = self.dimension.bucket
        bucket.set_available(min(bucket.capacity, bucket.available(now) + amount), now)

    def _fill(self, told: RateLimit, *, refused: bool) -> None:
        """Find out how much may go at once: what is left, and what comes until it is full."""
        limit, rate = self.limit, self.limit / self.window
        if told.remaining is None:
            most = self._most or limit
        elif told.reset is None or refused:  # in refusals some tell when that one call would fit
            most = told.remaining
        else:
            most = told.remaining + told.reset * rate
            # What refills is never more than full; what is left of a window and its time are independent.
            if 1.2 * limit + told.resolution < most <= 2.1 * limit + told.resolution:
                self._is_fixed = True
        self._most = min(limit, max(self._most, most, rate, 1.0))

    def _watch(self, told: RateLimit, at: float, ours: float) -> None:
        """Find out what the others take, from what is left and what we took since last time."""
        left, rate = told.remaining, self.limit / self.window
        if left is None or self._is_fixed:
            self._others = 0.0
            return
        if self._last is None:
            self._last = at, ours, left
            return
        seconds, taken = at - self._last[0], ours - self._last[1]
        # Refusals are not watched: they come at once, and long answers would always be older than the latest one.
        if seconds < _WATCH_SECONDS or rate * seconds < _WATCH_UNITS * told.resolution:
            return
        expected = self._last[2] + rate * seconds - taken
        theirs = 0.0 if expected >= self._most else (expected - left) / seconds
        theirs = min(rate, max(0.0, theirs))
        # Calls of ours that arrived late look like theirs, for once.
        self._others += (0.25 if theirs > self._others else 0.5) * (theirs - self._others)
        self._last = at, ours, left

    def _resize(self, now: float) -> None:
        rate = self.limit / self.window
        capacity = min(self._most, _FIXED_WINDOW_BURST * self.limit) if self._is_fixed else self._most
        rate = max(rate - self._others, _LEAST_SHARE * rate)
        bucket = self.dimension.bucket
        if (capacity, rate) != (bucket.capacity, bucket.rate):
            bucket.resize(capacity, rate, now)


class Learning:
    """All that one pool has learned. Pure: every method takes the instant ``now``.

    ``careful`` starts with few calls at once, because nothing is known about the account.
    """

    def __init__(self, *, reserve: Literal["auto"] | float, careful: bool, now: float) -> None:
        self.limits: dict[str, LearnedLimit] = {}
        self.dimensions: tuple[Dimension, ...] = ()
        self.concurrency = ConcurrencyLimit(CAREFUL_CONCURRENCY if careful else math.inf)
        self.send_rate = SendRate(now)
        self._reserve: Literal["auto"] | float = reserve
        self._slots: Dimension | None = None
        self._paced: Dimension | None = None
        self._sent: Totals = (0.0, 0.0, 0.0, 0.0)
        self._over = self._sent
        if careful:
            slots = Bucket("concurrency", capacity=CAREFUL_CONCURRENCY, now=now)
            # Nobody waits for a guess who has someone waiting for him.
            self._slots = Dimension(slots, reserve, now, name="concurrency (learned)", for_bulk=True)
            self._list()

    def departed(self, charge: Charge, in_flight: int, spares: bool, now: float) -> Stamp:
        """Note that a call is let go, as the ``in_flight``-th under way. ``spares``: it left the reserve alone."""
        self._sent = _plus(self._sent, charge)
        self.send_rate.sent(now)
        kept_free = 0.0 if self._slots is None or not spares else self._slots.floor(now)
        round, at_limit = self.concurrency.round, self.concurrency.departed(in_flight + kept_free)
        stamp = (now, charge, self._over, self._sent, round, at_limit, self.send_rate.cuts)
        return _new_tuple(Stamp, stamp)

    def ended(self, charge: Charge, spent: Charge, held_in: Container[Dimension], now: float) -> None:
        """Note that a call that was let go is over: it was charged so and spent so, and was ``held_in`` these.

        A limit that was learned while it was under way has taken off its charge without holding it.
        """
        self._over = _plus(self._over, charge)
        for limit in self.limits.values() if self.limits else ():
            if limit.dimension not in held_in:
                limit.give_back(limit.dimension.amount(charge) - limit.dimension.amount(spent), now)

    def idle(self, now: float) -> None:
        """Note that no call is under way."""
        for limit in self.limits.values():
            limit.conclude(self._sent, now)

    def answered(self, stamp: Stamp, told: Iterable[RateLimit], in_flight: int, now: float, *, ok: bool) -> None:
        """Learn from an answer that is no refusal for want of room. ``ok``: it is a success."""
        self._hear(stamp, told, now, refused=False)
        if ok:
            if self.concurrency.answered(stamp.round, in_flight):
                self._widen(now)
            self.send_rate.answered(now)
            if self.send_rate.awake:
                self._pace(now)

    def throttled(
        self,
        stamp: Stamp,
        told: Iterable[RateLimit],
        in_flight: int,
        now: float,
        *,
        hinted: bool,
    ) -> None:
        """Learn from a refusal for want of room. ``hinted``: it said when to come back.

        Where a limit that we know explains it, that was all. Else it is a rate that we do not know, or, without a
        hint, a number of calls at once: whichever of the two let this call go at its limit is cut.
        """
        told, charge = list(told), stamp.charge
        for known in self.limits.values():
            if known.dimension.metric == "requests":  # whether it counts what it refuses, it tells below
                known.give_back(charge.requests, now)
        self._hear(stamp, told, now, refused=True)
        for limit in told:
            left = limit.remaining
            if left is not None and _name(limit) in self.limits and left < max(1.0, getattr(charge, limit.metric)):
                return
        rate, crowded = self.send_rate, stamp.at_limit and not hinted
        if crowded and not (rate.awake and rate.is_used(now)):
            if self.concurrency.throttled(stamp.round, in_flight):
                self._widen(now)
            if rate.awake:
                return
        if rate.throttled(stamp.rate_cuts, now):
            self._pace(now, anew=rate.is_used(now))

    def _hear(self, stamp: Stamp, told: Iterable[RateLimit], now: float, *, refused: bool) -> None:
        for one in told:
            known = self.limits.get(_name(one))
            if known is None:
                if one.limit is None:
                    continue
                known = self.limits[_name(one)] = LearnedLimit(one, one.limit, self._reserve, now)
                self.concurrency.lift()
                self._slots = None
                self._list()
            known.hear(one, stamp, self._sent, now, refused=refused)

    def _widen(self, now: float) -> None:
        """Let the controller's number of calls go at once."""
        if self._slots is not None:
            self._slots.bucket.resize(math.floor(self.concurrency.limit), 0.0, now)
            self._slots.for_bulk = self.concurrency.guessing

    def _pace(self, now: float, *, anew: bool = False) -> None:
        """Let calls go at the controller's rate. ``anew``: nothing is saved up."""
        rate = self.send_rate.rate
        capacity = max(1.0, rate * _SEND_BURST_SECONDS)
        if self._paced is None:
            bucket = Bucket("requests", capacity=capacity, rate=rate, now=now)
            self._paced = Dimension(bucket, self._reserve, now, name="send rate (learned)")
            self._list()
        bucket = self._paced.bucket
        bucket.resize(capacity, rate, now)
        if anew:
            bucket.set_available(min(0.0, bucket.available(now)), now)

    def _list(self) -> None:
        found = (self._slots, *(limit.dimension for limit in self.limits.values()), self._paced)
        self.dimensions = tuple(dimension for dimension in found if dimension is not None)


_new_tuple = tuple.__new__  # a named tuple's own constructor takes twice as long, and this is done for every call


def _plus(totals: Totals, charge: Charge) -> Totals:
    requests, tokens, input_tokens, output_tokens = totals
    return (
        requests + charge.requests,
        tokens + charge.tokens,
        input_tokens + charge.input_tokens,
        output_tokens + charge.output_tokens,
    )


def _name(told: RateLimit) -> str:
    return told.name or told.metric
