"""Whether, and when, a failed call is tried again.

There is one owner of retries. What a provider says about an error becomes a `Fault`; `RetryPolicy` turns it into
a delay or a refusal; `RetryBudget` keeps retries a small share of all traffic, so that an outage is not made worse
by those who suffer from it.

Applications may use them for calls of their own::

    policy, budget = RetryPolicy(), RetryBudget()

    @policy.retrying(timeout=20, budget=budget).wraps
    async def ask(): ...

    async for attempt in policy.retrying(traffic="bulk", timeout=3600):
        with attempt:
            reply = await client.chat.completions.create(...)

`RetryPolicy.retrying` returns tenacity's own object, made of its own kinds of strategies, so all that tenacity has
(``before_sleep=``, ``retry_with=``, statistics, ``|`` and ``+`` of strategies) goes with it.

Sources: M. Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015) for the full jitter; the retry
budget of Twitter's Finagle (20 % of requests plus 10 a second) for the budget and its defaults.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tenacity import AsyncRetrying, RetryCallState, Retrying
from tenacity.wait import wait_base, wait_exponential

from orchestra.policies.fault import Fault, Recovery, fault_of
from orchestra.policies.traffic import TrafficClass

__all__ = ["Fault", "Recovery", "RetryBudget", "RetryPolicy", "fault_of", "wait_full_jitter"]


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

    def retrying(
        self,
        *,
        traffic: TrafficClass | str = TrafficClass.INTERACTIVE,
        timeout: float | None = None,
        budget: RetryBudget | None = None,
        fault_of: Callable[[BaseException], Fault] = fault_of,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        **options: Any,
    ) -> AsyncRetrying:
        """Return a tenacity retrying that follows this policy, for asynchronous code.

        ``timeout`` bounds a call with all its tries, in seconds: no try begins after it, and no wait ends after
        it. ``budget`` is shared by all calls that should count together. ``fault_of`` reads an exception; a
        demanded wait that it finds is a floor under the wait. What is given up is raised as it was.
        ``options`` go to tenacity.
        """
        strategies = self._strategies(traffic, timeout, budget, fault_of)
        return AsyncRetrying(**{**strategies, "sleep": sleep, **options})

    def retrying_sync(
        self,
        *,
        traffic: TrafficClass | str = TrafficClass.INTERACTIVE,
        timeout: float | None = None,
        budget: RetryBudget | None = None,
        fault_of: Callable[[BaseException], Fault] = fault_of,
        sleep: Callable[[float], None] = time.sleep,
        **options: Any,
    ) -> Retrying:
        """As `retrying`, for synchronous code."""
        strategies = self._strategies(traffic, timeout, budget, fault_of)
        return Retrying(**{**strategies, "sleep": sleep, **options})

    def _strategies(
        self,
        traffic: TrafficClass | str,
        timeout: float | None,
        budget: RetryBudget | None,
        fault_of: Callable[[BaseException], Fault],
    ) -> dict[str, Any]:
        course = _Course(self, TrafficClass(traffic), timeout, budget, fault_of)
        return {
            "before": course.begin,
            "retry": course.is_worth_it,
            "wait": course.wait,
            "stop": course.is_over,
            "reraise": True,
        }


@dataclass(frozen=True, slots=True)
class _Course:
    """One way of following a policy, as tenacity's strategies. It keeps no state of any one call."""

    policy: RetryPolicy
    traffic: TrafficClass
    timeout: float | None
    budget: RetryBudget | None
    fault_of: Callable[[BaseException], Fault]

    def begin(self, state: RetryCallState) -> None:
        if self.budget is not None and state.attempt_number == 1:
            self.budget.deposit(time.monotonic())

    def is_worth_it(self, state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome is not None else None
        # What is no Exception (a cancellation, an interrupt) is meant to end the call.
        return isinstance(error, Exception) and self._delay(state) is not None

    def wait(self, state: RetryCallState) -> float:
        return self._delay(state) or 0.0

    def is_over(self, state: RetryCallState) -> bool:
        """Return whether this was the last try. Asked last, with the wait known: only then is a retry claimed."""
        if self.policy.exhausted(state.attempt_number, self.traffic, has_deadline=self.timeout is not None):
            return True
        if self.budget is not None:
            now = time.monotonic()
            if self.traffic is TrafficClass.INTERACTIVE:
                return not self.budget.take(now)
            state.upcoming_sleep = max(state.upcoming_sleep, self.budget.reserve(now))
        left = self._time_left(state)
        return left is not None and state.upcoming_sleep >= left

    def _delay(self, state: RetryCallState) -> float | None:
        error = state.outcome.exception() if state.outcome is not None else None
        if error is None:
            return None
        return self.policy.delay(self.fault_of(error), state.attempt_number, time_left=self._time_left(state))

    def _time_left(self, state: RetryCallState) -> float | None:
        if self.timeout is None:
            return None
        # A sleep that a test puts in tenacity's place takes no time, and counts all the same.
        return self.timeout - max(state.seconds_since_start or 0.0, state.idle_for)


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
