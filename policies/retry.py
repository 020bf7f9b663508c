"""Whether, and when, a failed call is tried again.

There is one owner of retries. What a provider says about an error becomes a `Fault`; `RetryPolicy` turns it into
a delay or a refusal; `RetryBudget` keeps retries a small share of all traffic, so that an outage is not made worse
by those who suffer from it.

Sources: M. Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015) for the full jitter; the retry
budget of Twitter's Finagle (20 % of requests plus 10 a second) for the budget and its defaults.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass

from tenacity import AsyncRetrying, RetryCallState
from tenacity.wait import wait_base, wait_exponential

from orchestra.policies.traffic import TrafficClass

__all__ = ["Fault", "Recovery", "RetryBudget", "RetryPolicy", "wait_full_jitter"]


class Recovery(enum.StrEnum):
    """What helps against a fault."""

    RETRY = "retry"
    """The same call may succeed later, on the same route."""
    PAUSE = "pause"
    """The account is spent: nothing of it succeeds until someone acts. Its calls wait, they are not retried."""
    NONE = "none"
    """The same call fails again on this route, however long one waits."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an attempt failed.

    ``retry_after`` is the wait that the provider demands, in seconds, a floor under any delay of ours; None where
    it demands none. ``elsewhere`` says that another route is the better bet. ``unhealthy`` counts against the
    route's breaker: a refusal to serve this caller just now does not, a failure to answer does. ``throttled`` says
    that the account asked for more than it may have; ``pause`` is then for how many seconds the provider said, in
    so many words, that it should ask for nothing.
    """

    recovery: Recovery
    reason: str
    retry_after: float | None = None
    elsewhere: bool = False
    unhealthy: bool = False
    throttled: bool = False
    pause: float | None = None


class wait_full_jitter(wait_base):  # noqa: N801 - named as tenacity names its strategies
    """Wait a uniformly random share of an exponentially growing ceiling: ``base``, twice that, ... up to ``cap``.

    A tenacity wait strategy: it composes with the others by ``+``.
    """

    def __init__(self, base: float, cap: float, rand: Callable[[], float] = random.random) -> None:
        self._ceiling = wait_exponential(multiplier=base, max=cap)
        self._random = rand

    def __call__(self, retry_state: RetryCallState) -> float:
        return self._random() * self._ceiling(retry_state)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently a call is tried.

    An interactive call is tried ``interactive_attempts`` times within its timeout. A bulk call is tried until its
    deadline; without one, ``bulk_attempts`` times. ``base`` and ``cap`` bound the jittered delay in seconds, to
    which a demanded wait is added. ``rand`` yields uniform numbers in [0, 1).
    """

    interactive_attempts: int = 3
    bulk_attempts: int = 8
    base: float = 0.5
    cap: float = 30.0
    rand: Callable[[], float] = random.random

    def exhausted(self, attempts: int, traffic: TrafficClass, *, has_deadline: bool) -> bool:
        """Return whether ``attempts`` tries of a call are all it gets."""
        if traffic is TrafficClass.INTERACTIVE:
            return attempts >= self.interactive_attempts
        return not has_deadline and attempts >= self.bulk_attempts

    def delay(self, fault: Fault, attempts: int, *, time_left: float | None) -> float | None:
        """Return the seconds until the next try after ``attempts`` tries, or None where another try cannot help.

        ``time_left`` is the seconds that the call has left, None where nothing bounds it.
        """
        if fault.recovery is not Recovery.RETRY:
            return None
        floor = fault.retry_after or 0.0
        if time_left is not None and floor >= time_left:
            return None
        jitter = wait_full_jitter(self.base, self.cap, self.rand)(_state(attempts))
        if time_left is not None:
            # Jitter spreads callers; it is no reason to give up a call that could still make it.
            jitter = min(jitter, self.rand() * (time_left - floor))
        return floor + jitter


def _state(attempts: int) -> RetryCallState:
    state = RetryCallState(retry_object=_NO_LOOP, fn=None, args=(), kwargs={})
    state.attempt_number = attempts
    return state


_NO_LOOP = AsyncRetrying()  # tenacity's strategies read the attempt from a call state, which wants an owner


class RetryBudget:
    """A bucket of retries: each new call puts in ``ratio``, time puts in ``per_second``, a retry takes one.

    Holds ``capacity`` at most, and starts full. Times are seconds on the caller's clock.
    """

    def __init__(self, *, ratio: float = 0.2, per_second: float = 10.0, capacity: float = 100.0) -> None:
        if not (ratio >= 0 and per_second > 0 and capacity >= 1):
            raise ValueError("a retry budget needs ratio >= 0, per_second > 0 and capacity >= 1")
        self._ratio = ratio
        self._per_second = per_second
        self._capacity = capacity
        self._tokens = capacity
        self._at: float | None = None

    def deposit(self, now: float) -> None:
        """Count one new call."""
        self._refill(now)
        self._tokens = min(self._capacity, self._tokens + self._ratio)

    def take(self, now: float) -> bool:
        """Take one retry if there is one, and return whether there was."""
        self._refill(now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def reserve(self, now: float) -> float:
        """Take one retry, if need be ahead of its time, and return the seconds to wait before using it."""
        self._refill(now)
        self._tokens -= 1
        return max(0.0, -self._tokens / self._per_second)

    def _refill(self, now: float) -> None:
        if self._at is not None and now > self._at:
            self._tokens = min(self._capacity, self._tokens + (now - self._at) * self._per_second)
        self._at = now if self._at is None else max(now, self._at)
