"""One attempt at one route, whoever answers there, and what its failure means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from orchestra.budget import Budget
from orchestra.call import Call, Outcome, Usage
from orchestra.dispatch.answer_body import End, bounded
from orchestra.dispatch.bounds import Bounds
from orchestra.dispatch.exchange import Exchange, Failed, Stopwatch, Tell
from orchestra.dispatch.health import RouteHealth
from orchestra.dispatch.route_table import LocalAnswerer, Target
from orchestra.errors import (
    AdmissionError,
    CallTimeout,
    ConnectionFailed,
    DeadlineExceeded,
    InputError,
    LocalEngineError,
)
from orchestra.observe.events import Event, EventBus, EventKind
from orchestra.policies.fault import Fault, Recovery
from orchestra.providers import operation_at
from orchestra.wire import Wire

__all__ = ["Attempts"]

_STARTING = frozenset({"unused", "loading"})


class Attempts:
    """Makes attempts, tells of them, and leaves no error of theirs unread."""

    def __init__(
        self,
        *,
        budget: Budget,
        wire: Wire,
        health: RouteHealth,
        events: EventBus,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._budget = budget
        self._wire = wire
        self._health = health
        self._events = events
        self._clock = clock
        self._wall = wall

    def tell(self, kind: EventKind, call: Call, route: str = "", **fields: Any) -> None:
        """Tell everybody of something that happened to ``call``."""
        if self._events.listening:
            self._events.emit(self.event(kind, call, route, **fields))

    def event(self, kind: EventKind, call: Call, route: str = "", **fields: Any) -> Event:
        """Return the event that `tell` tells."""
        return Event(
            kind=kind,
            call=call.id,
            traffic=call.traffic,
            at=self._clock(),
            route=route,
            model=call.model,
            operation=operation_at(call.url.partition("?")[0]),
            job=call.job,
            **fields,
        )

    async def make(
        self,
        call: Call,
        target: Target,
        bounds: Bounds,
        *,
        number: int,
        watch: Stopwatch | None = None,
        at_once: bool = False,
        default_tier: bool = False,
    ) -> Outcome | Failed:
        """Make attempt ``number`` of a call, and return its answer or why there is none.

        A further attempt goes before the others of its class that wait. One that may go only ``at_once`` is no
        refusal to the call when it may not. ``default_tier`` asks for no service tier on the call's behalf.
        """
        watch = watch or Stopwatch(self._clock)

        def tell(kind: EventKind, **fields: Any) -> None:
            self.tell(kind, call, target.name, attempt=number, **fields)

        started = self._clock()
        try:
            if target.local is not None:
                return await self._answer_locally(call, target, target.local, bounds, watch, tell)
            exchange = Exchange(
                call,
                target,
                budget=self._budget,
                wire=self._wire,
                bounds=bounds,
                watch=watch,
                wall=self._wall,
                tell=tell,
                on_broken=lambda: self._health.failed(target, "a stream broke off"),
                default_tier=default_tier,
            )
            return await exchange.run(front=number > 1 and not at_once, at_once=at_once)
        except AdmissionError as error:
            reason = type(error).__name__
            if not at_once:
                tell("refused", reason=reason, waited=self._clock() - started)
            return Failed(Fault(Recovery.NONE, reason, elsewhere=True), error)
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

    async def _answer_locally(
        self,
        call: Call,
        target: Target,
        local: LocalAnswerer,
        bounds: Bounds,
        watch: Stopwatch,
        tell: Tell,
    ) -> Outcome:
        watch.start()
        tell("sent")
        try:
            async with asyncio.timeout(bounds.wait_left()):
                outcome = await local.send(call, tell if self._events.listening else None)
        except TimeoutError:
            starting = local.snapshot().get("state") in _STARTING
            note = f": the engine of {target.name} was still starting" if starting else ""
            raise bounds.wait_expired(note) from None
        except asyncio.CancelledError:
            tell("interrupted", reason="cancelled", duration=watch.elapsed())
            raise
        status = outcome.status

        def on_end(end: End, usage: Usage) -> Callable[[], None]:
            if end != "complete":
                return partial(tell, "interrupted", reason=end, duration=watch.elapsed())
            return partial(
                tell,
                "settled",
                status=status,
                certainty=usage.certainty,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cached_tokens=usage.cached_tokens,
                ttft=watch.ttft,
                duration=watch.elapsed(),
            )

        if call.streams:
            tell("first_byte", ttft=watch.first_byte())
            return bounded(outcome, bounds, on_end)
        on_end("complete", outcome.usage)()
        return outcome
