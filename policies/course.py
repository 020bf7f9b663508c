"""The retry policy as tenacity's strategies. Only who retries by tenacity loads it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tenacity import AsyncRetrying, RetryCallState, Retrying
from tenacity.wait import wait_base

from orchestra.policies.fault import Fault
from orchestra.policies.jitter import full_jitter
from orchestra.policies.retry_budget import RetryBudget
from orchestra.policies.traffic import TrafficClass

__all__ = ["AsyncRetrying", "Course", "Policy", "Retrying", "wait_full_jitter"]


class wait_full_jitter(wait_base):  # noqa: N801 - named as tenacity names its strategies
    """Wait a uniformly random share of an exponentially growing ceiling: ``base``, twice that, ... up to ``cap``.

    A tenacity wait strategy: it composes with the others by ``+``.
    """

    def __init__(self, base: float, cap: float, rand: Callable[[], float] = random.random) -> None:
        self._base = base
        self._cap = cap
        self._random = rand

    def __call__(self, retry_state: RetryCallState) -> float:
        return full_jitter(self._base, self._cap, retry_state.attempt_number, self._random)


class Policy(Protocol):
    """How often, and how patiently: see `orchestra.policies.RetryPolicy`."""

    def exhausted(self, attempts: int, traffic: TrafficClass, *, has_deadline: bool) -> bool: ...

    def delay(self, fault: Fault, attempts: int, *, time_left: float | None) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Course:
    """One way of following a policy, as tenacity's strategies. It keeps no state of any one call."""

    policy: Policy
    traffic: TrafficClass
    timeout: float | None
    budget: RetryBudget | None
    fault_of: Callable[[BaseException], Fault]

    def strategies(self) -> dict[str, Any]:
        """Return what tenacity's retryings take."""
        return {
            "before": self.begin,
            "retry": self.is_worth_it,
            "wait": self.wait,
            "stop": self.is_over,
            "reraise": True,
        }

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
