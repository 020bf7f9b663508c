"""One call's way: route -> admit -> send -> settle -> retry, or the next route.

A call that names a model is metered: it takes from its account's budget before it is sent, and it is we who retry
it. Whatever else goes to a configured provider is forwarded with that account's key. A call to a host that nobody
here serves passes through untouched.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from urllib.parse import urlsplit

from orchestra.budget import Budget
from orchestra.call import Call, Outcome
from orchestra.config import Config
from orchestra.dispatch.answer_body import AnswerBody, bounded
from orchestra.dispatch.bounds import Bounds
from orchestra.dispatch.exchange import Exchange, Failed
from orchestra.dispatch.route_table import LocalAnswerer, RouteTable, Target
from orchestra.durations import format_duration
from orchestra.errors import (
    AdmissionError,
    AllRoutesFailed,
    CallTimeout,
    ConnectionFailed,
    DeadlineExceeded,
    InputError,
    LocalEngineError,
)
from orchestra.observe.events import Event, EventBus, EventKind
from orchestra.policies.breaker import CircuitBreaker
from orchestra.policies.retry import Fault, Recovery, RetryBudget, RetryPolicy
from orchestra.policies.routing import Itinerary, moves_on
from orchestra.policies.traffic import TrafficClass
from orchestra.providers.openai_stream import PlainStreamReader
from orchestra.wire import Wire

__all__ = ["Dispatcher"]

_MANY = 1024
_STARTING = frozenset({"unused", "loading"})
_log = logging.getLogger(__name__)


class Dispatcher:
    """Sends calls. May be used from several event loops and threads at once.

    ``local`` holds the in-process answerers by name. ``clock`` is that of `Call.expires_at`, ``wall`` unix time.
    """

    def __init__(
        self,
        config: Config,
        *,
        budget: Budget,
        wire: Wire,
        local: Mapping[str, LocalAnswerer] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        retry: RetryPolicy | None = None,
        events: EventBus | None = None,
    ) -> None:
        self._routes = RouteTable(config, local or {})
        self._budget = budget
        self._wire = wire
        self._clock = clock
        self._wall = wall
        self._sleep = sleep
        self._retry = retry or RetryPolicy()
        self.events = events or EventBus()
        self._lock = threading.Lock()  # over breakers and retry budgets, which are plain objects
        self._breakers: dict[str, CircuitBreaker] = {}
        self._faults: dict[str, str] = {}  # what last spoke against a route, while its breaker counts
        self._paused: dict[tuple[str, str], float] = {}  # spent accounts, by name and key: until when
        self._retries = {traffic: RetryBudget() for traffic in TrafficClass}

    def check(self, model: str) -> None:
        """Raise UnknownModelError where no route answers to ``model``, ConfigError where one lacks its key."""
        self._routes.check(model)

    def snapshot(self) -> dict[str, str]:
        """Return the state of each route's breaker, by route, for the routes used so far."""
        with self._lock:
            return {route: breaker.state.value for route, breaker in self._breakers.items()}

    async def send(self, call: Call) -> Outcome:
        """Send ``call`` by the first of its routes that will have it, and return the answer.

        An outcome may be an error that a provider gave: one that the call itself is to blame for, or the last one
        when no route would do. A stream's outcome is returned with its first content at hand.

        Raises UnknownModelError and InputError where the call cannot be sent, AdmissionError where the budget
        would not let it go in time, CallTimeout where its time was up, AllRoutesFailed where no answer came;
        ConfigError where a key cannot be had. Reading a stream's body raises StreamInterrupted. A call that is
        not metered raises ConnectionFailed too.
        """
        targets = self._routes.targets(call)
        first = targets[0] if targets else None
        if first is None:
            self._tell_passed_through(call)
            return await self._forward(call, None)
        if first.account is not None and (first.model is None or call.method != "POST"):
            return await self._forward(call, first)
        return await self._send_metered(call, targets)

    async def _send_metered(self, call: Call, targets: list[Target]) -> Outcome:
        started = self._clock()
        limit = min(_or_inf(call.expires_at), started + _or_inf(call.queue_bound))
        itinerary = Itinerary(len(targets))
        bounds = Bounds(call, started, self._clock)
        failures: list[tuple[str, Failed]] = []
        missed, waited = 0, False  # turns at a cooling route that another call took as its probe
        claimed = False  # a retry, out of the retry budget
        interactive = call.traffic is TrafficClass.INTERACTIVE
        with self._lock:
            self._retries[call.traffic].deposit(started)
        while True:
            now = self._clock()
            spent = self._retry.exhausted(len(failures), call.traffic, has_deadline=call.expires_at is not None)
            ready_at = [self._ready_at(one, call, now) for one in targets]
            step = itinerary.next(ready_at, now, fresh_only=spent)
            if step is None:
                break
            target, at = targets[step.route], step.at
            if step.again and not claimed:
                wait = self._claim_retry(call.traffic, now)
                if wait is None:
                    break
                claimed, at = True, max(at, now + wait)
            if at > now:
                # Bulk waits for a spent account; a person is told.
                if at >= limit or (interactive and self._paused_until(target, call) > now):
                    break
                if ready_at[step.route] > now:
                    missed, waited = missed + waited, True
                    # What nothing bounds does not wait for ever: a missed turn counts as an attempt.
                    turns = len(failures) + missed
                    if limit == math.inf and self._retry.exhausted(turns, call.traffic, has_deadline=False):
                        break
                await self._sleep(at - now)
                continue
            if not self._try_pass(target, now):
                continue
            if failures:
                self._emit_next(call, target, failures)
            claimed = waited = False
            result = await self._attempt(call, target, bounds, front=bool(failures))
            if isinstance(result, Outcome):
                self._record(target)
                return result
            failures.append((target.name, result))
            if result.fault.unhealthy or result.answer is not None:
                self._record(target, fault=str(result.error) if result.fault.unhealthy else None)
            if result.paused_until is not None:
                self._pause(target, call, result.paused_until)
            if result.fault.recovery is Recovery.NONE and not result.fault.elsewhere:
                break
            now = self._clock()
            tries = sum(name == target.name for name, _ in failures)
            delay = self._retry.delay(result.fault, tries, time_left=None if limit == math.inf else limit - now)
            itinerary.failed(
                step.route,
                again_at=None if delay is None else now + delay,
                stay=not moves_on(result.fault, call.traffic),
            )
        return self._give_up(call, targets, failures)

    async def _attempt(self, call: Call, target: Target, bounds: Bounds, *, front: bool) -> Outcome | Failed:
        try:
            if target.local is not None:
                return await self._answer_locally(call, target, target.local, bounds)
            exchange = Exchange(
                call,
                target,
                budget=self._budget,
                wire=self._wire,
                bounds=bounds,
                clock=self._clock,
                wall=self._wall,
                emit=self._emit,
                on_broken=lambda: self._record(target, fault="a stream broke off"),
            )
            return await exchange.run(front=front)
        except AdmissionError as error:
            self._emit("refused", call, target.name, reason=type(error).__name__)
            return Failed(Fault(Recovery.NONE, type(error).__name__, elsewhere=True), error)
        except InputError as error:  # what one route cannot serve, another may
            return Failed(Fault(Recovery.NONE, "not served there", elsewhere=True), error)
        except RecursionError:
            nested = InputError("the request's body is nested too deeply")
            return Failed(Fault(Recovery.NONE, "nested too deeply"), nested)
        except LocalEngineError as error:
            return Failed(Fault(Recovery.NONE, "the engine failed", elsewhere=True, unhealthy=True), error)
        except CallTimeout as error:
            # A caller's haste says nothing about an engine; a provider that keeps calls to their end is ill.
            elsewhere = not isinstance(error, DeadlineExceeded)
            unhealthy = target.local is None
            return Failed(Fault(Recovery.NONE, "timed out", elsewhere=elsewhere, unhealthy=unhealthy), error)
        except ConnectionFailed as error:
            return Failed(Fault(Recovery.RETRY, "no usable answer", elsewhere=True, unhealthy=True), error)

    async def _answer_locally(self, call: Call, target: Target, local: LocalAnswerer, bounds: Bounds) -> Outcome:
        self._emit("sent", call, target.name)
        try:
            async with asyncio.timeout(bounds.wait_left()):
                outcome = await local.send(call)
        except TimeoutError:
            starting = local.snapshot().get("state") in _STARTING
            note = f": the engine of {target.name} was still starting" if starting else ""
            raise bounds.wait_expired(note) from None
        outcome.body = bounded(outcome.body, bounds)
        return outcome

    async def _forward(self, call: Call, target: Target | None) -> Outcome:
        """Send a call that is not metered, once, and hand on whatever comes."""
        bounds = Bounds(call, self._clock(), self._clock)
        method, url, headers, body = call.method, call.url, call.headers, call.body
        if target is not None and target.account is not None:
            request = target.account.request(call, target.path, None)
            method, url, headers, body = request.method, request.url, request.headers, request.body
        try:
            async with asyncio.timeout(bounds.time_left()):
                response = await self._wire.send(
                    method,
                    url,
                    headers,
                    body,
                    connect_timeout=call.connect_timeout,
                    read_timeout=call.read_timeout,
                )
        except TimeoutError:  # no ConnectionFailed: whose bound is over must not be tried again by its SDK
            raise bounds.expired() from None
        answer = AnswerBody(
            target.name if target else "",
            held=b"",
            source=response.body,
            close=response.aclose,
            reader=PlainStreamReader(),
            on_end=lambda end, usage: None,
            bounds=bounds,
        )
        return answer.outcome(response.status, response.headers)

    def _give_up(self, call: Call, targets: list[Target], failures: list[tuple[str, Failed]]) -> Outcome:
        """Return the last answer that a provider gave, or raise."""
        reason = failures[-1][1].fault.reason if failures else "no route is ready"
        self._emit("failed", call, failures[-1][0] if failures else "", attempts=len(failures), reason=reason)
        for _, failed in reversed(failures):
            if failed.answer is not None:
                return failed.answer
        if not failures:
            now = self._clock()
            told = ", ".join(self._tell_cooling(target, call, now) for target in targets)
            raise AllRoutesFailed(f"every route is cooling down or paused, and returns too late: {told}")
        error = failures[-1][1].error
        if len(failures) == 1 and not isinstance(error, ConnectionFailed):
            raise error
        if all(isinstance(failed.error, InputError) for _, failed in failures):
            raise failures[0][1].error
        told = _tell(failures)
        if isinstance(error, DeadlineExceeded):
            raise DeadlineExceeded(f"{error}; before that, {_tell(failures[:-1])}") from error
        attempts = [(route, failed.error) for route, failed in failures]
        raise AllRoutesFailed(f"no route answered: {told}", attempts=attempts) from error

    def _tell_cooling(self, target: Target, call: Call, now: float) -> str:
        told = f"{target.name} in {format_duration(max(0.0, self._ready_at(target, call, now) - now))}"
        with self._lock:
            fault = self._faults.get(target.name)
        return f"{told} ({fault})" if fault else told

    def _tell_passed_through(self, call: Call) -> None:
        near = self._routes.near_miss(call.model)
        if near is None:
            self._emit("passed_through", call)
            return
        host = urlsplit(call.url).hostname or "its host"
        reason = (
            f"model {call.model!r} is not one of [models] (did you mean {near!r}?); "
            f"passed through to {host} unmetered"
        )
        _log.warning("%s", reason)
        self._emit("passed_through", call, reason=reason)

    def _claim_retry(self, traffic: TrafficClass, now: float) -> float | None:
        """Take a retry out of the class's budget; return the seconds until it may be used, or None."""
        with self._lock:
            retries = self._retries[traffic]
            if traffic is TrafficClass.BULK:
                return retries.reserve(now)
            return 0.0 if retries.take(now) else None

    def _breaker(self, target: Target) -> CircuitBreaker:
        breaker = self._breakers.get(target.name)
        if breaker is None:
            if len(self._breakers) >= _MANY:  # callers may name any number of models
                self._breakers = {name: one for name, one in self._breakers.items() if not one.unmarked}
                self._faults = {name: told for name, told in self._faults.items() if name in self._breakers}
            breaker = self._breakers[target.name] = CircuitBreaker()
        return breaker

    def _ready_at(self, target: Target, call: Call, now: float) -> float:
        with self._lock:
            return max(self._breaker(target).ready_at(now), self._paused_until(target, call))

    def _paused_until(self, target: Target, call: Call) -> float:
        if target.account is None or not self._paused:
            return -math.inf
        return self._paused.get((target.account.name, target.account.fingerprint(call)), -math.inf)

    def _pause(self, target: Target, call: Call, until: float) -> None:
        if target.account is not None:
            now = self._clock()
            with self._lock:
                self._paused = {key: until for key, until in self._paused.items() if until > now}
                self._paused[target.account.name, target.account.fingerprint(call)] = until

    def _try_pass(self, target: Target, now: float) -> bool:
        with self._lock:
            return self._breaker(target).try_pass(now)

    def _record(self, target: Target, *, fault: str | None = None) -> None:
        """Tell the route's breaker of an answer, or of the fault that there was instead."""
        with self._lock:
            breaker = self._breaker(target)
            if fault is None:
                breaker.succeeded()
                if breaker.unmarked:
                    self._faults.pop(target.name, None)
            else:
                breaker.failed(self._clock())
                self._faults[target.name] = fault

    def _emit(self, kind: EventKind, call: Call, route: str = "", **detail: float | int | str) -> None:
        self.events.emit(Event(kind, call.id, call.traffic, self._clock(), route, detail))

    def _emit_next(self, call: Call, target: Target, failures: list[tuple[str, Failed]]) -> None:
        route, failed = failures[-1]
        kind: EventKind = "retried" if route == target.name else "fell_back"
        self._emit(kind, call, target.name, attempt=len(failures) + 1, reason=failed.fault.reason)


def _tell(failures: Sequence[tuple[str, Failed]]) -> str:
    """Name each route's each reason once, in the order in which they came up."""
    counts = Counter((route, str(failed.error)) for route, failed in failures)
    return "; ".join(
        f"{route}: {reason}" + (f" ({count} times)" if count > 1 else "")
        for (route, reason), count in counts.items()
    )


def _or_inf(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds
