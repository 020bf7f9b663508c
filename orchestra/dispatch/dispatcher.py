"""One call's way: route -> admit -> send -> settle -> retry, or the next route.

A call that names a model is metered: it takes from its account's budget before it is sent, and it is we who retry
it. Whatever else goes to a configured provider is forwarded with that account's key. A call to a host that nobody
here serves passes through untouched.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from orchestra.budget import Budget
from orchestra.call import Call, Outcome
from orchestra.clock import wall
from orchestra.config import LOCAL, Config
from orchestra.dispatch.answer_body import AnswerBody
from orchestra.dispatch.attempts import Attempts
from orchestra.dispatch.bounds import Bounds
from orchestra.dispatch.health import Outage, RouteHealth
from orchestra.dispatch.journey import Journey
from orchestra.dispatch.route_table import LocalAnswerer, RouteTable, Target
from orchestra.dispatch.tiers import cost_at_least
from orchestra.observe.events import EventBus, EventKind
from orchestra.policies.retry import RetryPolicy
from orchestra.providers.openai_stream import PlainStreamReader
from orchestra.wire import Wire

if TYPE_CHECKING:
    from orchestra.dispatch.hedge import Hedger

__all__ = ["Dispatcher"]

_log = logging.getLogger("orchestra.dispatch")


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
        wall: Callable[[], float] = wall,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        retry: RetryPolicy | None = None,
        events: EventBus | None = None,
    ) -> None:
        self._routes = RouteTable(config, local or {})
        self._wire = wire
        self._clock = clock
        self._sleep = sleep
        self._retry = retry or RetryPolicy()
        self.events = events or EventBus()
        self._health = health = RouteHealth(clock)
        self._attempts = attempts = Attempts(
            budget=budget, wire=wire, health=health, events=self.events, clock=clock, wall=wall
        )
        self._hedger: Hedger | None = None
        if share := config.traffic.hedge_share:
            from orchestra.dispatch.hedge import Hedger  # on use: few ask for it

            self._hedger = Hedger(share, attempts=attempts, health=health, clock=clock, sleep=sleep)

    def check(self, model: str) -> None:
        """Raise UnknownModelError where no route answers to ``model``, ConfigError where one lacks its key."""
        self._routes.check(model)

    def targets(self, call: Call) -> list[Target]:
        """Return the routes that serve a call, in order of preference. Raises as `RouteTable.targets` does."""
        return self._routes.targets(call)

    def tell(self, kind: EventKind, call: Call, route: str = "", **fields: Any) -> None:
        """Tell everybody of something that happened to ``call`` outside: `Event` has the ``fields``."""
        self._attempts.tell(kind, call, route, **fields)

    def price(self, outcome: Outcome) -> float | None:
        """Return what an answer cost, in USD: nothing where it came from this process; None where nobody knows."""
        name, _, model = outcome.route.partition("/")
        if name == LOCAL:
            return 0.0
        account = self._routes.account(name)
        price = None if account is None else account.price(model)
        return None if price is None else cost_at_least(price, outcome.usage, outcome.usage.tier)

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """Return how each route used so far is, by its name: see `RouteHealth.snapshot`."""
        return self._health.snapshot()

    def outage(self) -> Outage | None:
        """Return why no route answers just now: see `RouteHealth.outage`."""
        return self._health.outage()

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
        if first.account is not None and not first.metered:
            return await self._forward(call, first)
        return await Journey(
            call,
            targets,
            attempts=self._attempts,
            health=self._health,
            retry=self._retry,
            hedger=self._hedger,
            clock=self._clock,
            sleep=self._sleep,
        ).run()

    async def _forward(self, call: Call, target: Target | None) -> Outcome:
        """Send a call that is not metered, once, and hand on whatever comes."""
        bounds = Bounds(call, self._clock(), self._clock)
        method, url, headers, body = call.method, call.url, call.headers, call.body
        if target is not None and target.account is not None:
            path, payload = target.path, call.payload
            if target.model is not None:
                path = target.account.provider.path_for(path, target.model)
                payload = payload and target.account.payload_for(target.model, call, target.path, payload)
            request = target.account.request(call, path, payload)
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
            bounds=bounds,
        )
        return answer.outcome(response.status, response.headers)

    def _tell_passed_through(self, call: Call) -> None:
        near = self._routes.near_miss(call.model)
        if near is None:
            self._attempts.tell("passed_through", call)
            return
        host = urlsplit(call.url).hostname or "its host"
        reason = (
            f"model {call.model!r} is not one of [models] (did you mean {near!r}?); "
            f"passed through to {host} unmetered"
        )
        _log.warning("%s", reason)
        self._attempts.tell("passed_through", call, reason=reason)
