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
from typing import TYPE_CHECKING, Any

from orchestra.policies.fault import Fault, Recovery, fault_of
from orchestra.policies.jitter import full_jitter
from orchestra.policies.retry_budget import RetryBudget
from orchestra.policies.traffic import TrafficClass

if TYPE_CHECKING:
    from tenacity import AsyncRetrying, Retrying

__all__ = ["RetryPolicy"]


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
        jitter = full_jitter(self.base, self.cap, attempts, self.rand)
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
        from orchestra.policies.course import AsyncRetrying, Course

        strategies = Course(self, TrafficClass(traffic), timeout, budget, fault_of).strategies()
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
        from orchestra.policies.course import Course, Retrying

        strategies = Course(self, TrafficClass(traffic), timeout, budget, fault_of).strategies()
        return Retrying(**{**strategies, "sleep": sleep, **options})
