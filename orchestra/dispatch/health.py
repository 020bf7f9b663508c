"""How the routes are: which may be asked now, which are paused, and how many retries there are left."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from orchestra.call import Call
from orchestra.dispatch.route_table import Target
from orchestra.durations import format_duration
from orchestra.policies.breaker import BreakerState, CircuitBreaker
from orchestra.policies.retry_budget import RetryBudget
from orchestra.policies.traffic import TrafficClass

__all__ = ["Outage", "RouteHealth"]

_MANY = 1024


class Outage(NamedTuple):
    """Why no route answers, in words, and in how many seconds the first of them is asked again."""

    reason: str
    next_try_in: float


_Spent = tuple[str, str, str | None]
"""A spent account: by name, key, and model where only that one is."""


class RouteHealth:
    """The breakers of all routes, the pauses of accounts, and the retry budget of each class. Thread-safe.

    ``clock`` gives the instants of all that is asked and told here.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._breakers: dict[str, CircuitBreaker] = {}
        self._faults: dict[str, str] = {}  # what last spoke against a route, while its breaker counts
        self._paused: dict[_Spent, float] = {}  # until when
        self._told: set[str | _Spent] = set()  # of which troubles someone has been told, until they are over
        self._retries = {traffic: RetryBudget() for traffic in TrafficClass}

    # May a call go?

    def ready_at(self, target: Target, call: Call, now: float) -> float:
        """Return the instant from which the call may take that route: ``now``, where nothing speaks against it."""
        with self._lock:
            return max(self._breaker(target).ready_at(now), self._paused_until(target, call))

    def paused_until(self, target: Target, call: Call) -> float:
        """Return until when the route's account is spent; minus infinity where it is not."""
        with self._lock:
            return self._paused_until(target, call)

    def try_pass(self, target: Target, now: float) -> bool:
        """Return whether a call may take that route now. At one that comes back, the first becomes its probe."""
        with self._lock:
            return self._breaker(target).try_pass(now)

    def is_well(self, target: Target, call: Call) -> bool:
        """Return whether nothing at all speaks against the route, so that it needs no probe."""
        with self._lock:
            well = self._breaker(target).state is BreakerState.CLOSED
            return well and self._paused_until(target, call) <= self._clock()

    def enter(self, traffic: TrafficClass) -> None:
        """Count a new call of that class."""
        with self._lock:
            self._retries[traffic].deposit(self._clock())

    def claim_retry(self, traffic: TrafficClass) -> float | None:
        """Take a retry out of the class's budget; return the seconds until it may be used, or None."""
        with self._lock:
            retries = self._retries[traffic]
            if traffic is TrafficClass.BULK:
                return retries.reserve(self._clock())
            return 0.0 if retries.take(self._clock()) else None

    # What became of it

    def answered(self, target: Target, *, well: bool = True) -> bool:
        """Record an answer, which shows the route alive. Returns whether a trouble is over: a good one ends it."""
        with self._lock:
            breaker = self._breaker(target)
            breaker.succeeded()
            if not breaker.unmarked:
                return False
            self._faults.pop(target.name, None)
            if not self._told or not well:
                return False
            over = {one for one in self._told if one == target.name or _is_of(one, target)}
            self._told -= over
            return bool(over)

    def failed(self, target: Target, fault: str) -> None:
        """Record that the route did not answer."""
        with self._lock:
            self._breaker(target).failed(self._clock())
            self._faults[target.name] = fault

    def pause(self, target: Target, call: Call, until: float, *, of_model: bool) -> bool:
        """Leave the route's account, or only this model of it, alone until then.

        Returns whether this is news: whether it has answered since it was last paused.
        """
        if target.account is None:
            return False
        spent: _Spent = (
            target.account.name,
            target.account.fingerprint(call),
            target.model if of_model else None,
        )
        with self._lock:
            now = self._clock()
            self._paused = {key: end for key, end in self._paused.items() if end > now}
            self._paused[spent] = until
            return self._is_news(spent)

    def is_news(self, route: str) -> bool:
        """Return, once until it answers again, that calls leave the route of that name."""
        with self._lock:
            return self._is_news(route)

    # What is told of it

    def describe_wait(self, target: Target, call: Call) -> str:
        """Return in words when the route may be asked again, and why not now."""
        now = self._clock()
        told = f"{target.name} in {format_duration(max(0.0, self.ready_at(target, call, now) - now))}"
        with self._lock:
            fault = self._faults.get(target.name)
        return f"{told} ({fault})" if fault else told

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """Return how each route used so far is, by its name, as plain dicts.

        ``state`` is its breaker's; ``next_try_in`` the seconds until it is asked again, None where it may be now;
        ``fault`` what last spoke against it; ``paused_for`` the seconds for which its account is spent, for some
        key at least.
        """
        with self._lock:
            now = self._clock()
            return {
                route: {
                    "state": breaker.state.value,
                    "next_try_in": wait if (wait := breaker.ready_at(now) - now) > 0 else None,
                    "fault": self._faults.get(route),
                    "paused_for": self._longest_pause(route, now),
                }
                for route, breaker in self._breakers.items()
            }

    def outage(self) -> Outage | None:
        """Return why no route answers, where all that have been used are left alone; None where one is not."""
        routes = self.snapshot()
        if not routes or any(one["state"] == "closed" and one["paused_for"] is None for one in routes.values()):
            return None
        reasons, waits = [], []
        for name, one in routes.items():
            if one["paused_for"] is not None:
                reasons.append(f"the account of {name} is spent")
            else:
                reasons.append(f"no answer from {name}" + (f" ({one['fault']})" if one["fault"] else ""))
            waits.append(max(one["next_try_in"] or 0.0, one["paused_for"] or 0.0))
        return Outage("; ".join(reasons), min(waits))

    def _longest_pause(self, route: str, now: float) -> float | None:
        account, _, model = route.partition("/")
        ends = [
            until
            for (name, _, of_model), until in self._paused.items()
            if name == account and of_model in (None, model) and until > now
        ]
        return max(ends) - now if ends else None

    def _breaker(self, target: Target) -> CircuitBreaker:
        breaker = self._breakers.get(target.name)
        if breaker is None:
            if len(self._breakers) >= _MANY:  # callers may name any number of models
                self._breakers = {name: one for name, one in self._breakers.items() if not one.unmarked}
                self._faults = {name: told for name, told in self._faults.items() if name in self._breakers}
            breaker = self._breakers[target.name] = CircuitBreaker()
        return breaker

    def _paused_until(self, target: Target, call: Call) -> float:
        if target.account is None or not self._paused:
            return -math.inf
        account = target.account.name, target.account.fingerprint(call)
        return max(self._paused.get((*account, model), -math.inf) for model in (None, target.model))

    def _is_news(self, trouble: str | _Spent) -> bool:
        if trouble in self._told:
            return False
        if len(self._told) >= _MANY:
            self._told.clear()
        self._told.add(trouble)
        return True


def _is_of(trouble: str | _Spent, target: Target) -> bool:
    """Return whether a pause is over when that route answers."""
    if isinstance(trouble, str) or target.account is None:
        return False
    name, _, model = trouble
    return name == target.account.name and model in (None, target.model)
