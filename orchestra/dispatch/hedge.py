"""A second attempt beside a late first one: the first good answer is handed on, the other attempt is given up."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

from orchestra.call import Call, Outcome
from orchestra.dispatch.attempts import Attempts
from orchestra.dispatch.bounds import Bounds
from orchestra.dispatch.exchange import Failed, Stopwatch
from orchestra.dispatch.health import RouteHealth
from orchestra.dispatch.route_table import Target
from orchestra.errors import AdmissionError
from orchestra.policies.fault import Recovery
from orchestra.policies.hedging import Hedging

__all__ = ["Hedger"]

_log = logging.getLogger(__name__)

_Result = Outcome | Failed
_Second = tuple[Target, _Result]
"""What became of a second attempt, and where it was made."""


class Hedger:
    """Makes the first attempt of an interactive call, and where that is late one more.

    The second goes to the same route; to the next ones in order where that has no room for it now, or is not well.
    It is sent only where the budget lets it go at once, and only before content was shown: that ends the race.
    Both are charged: of the one that is given up nobody knows what it used, so all that was set aside is kept. A
    second attempt that fails changes nothing, and is not tried again. May be used from several loops and threads.
    """

    def __init__(
        self,
        share: float,
        *,
        attempts: Attempts,
        health: RouteHealth,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]],
    ) -> None:
        self._hedging = Hedging(share)
        self._lock = threading.Lock()  # over the hedging, which is a plain object
        self._attempts = attempts
        self._health = health
        self._clock = clock
        self._sleep = sleep
        self._losers: set[asyncio.Future[Any]] = set()

    async def make(
        self, call: Call, targets: Sequence[Target], chosen: int, bounds: Bounds, numbers: Iterator[int]
    ) -> tuple[Target, _Result]:
        """Make the call's first attempt, at ``targets[chosen]``. Returns its result, and the route that gave it.

        ``numbers`` numbers the call's attempts.
        """
        target = targets[chosen]
        watch = Stopwatch(self._clock)
        with self._lock:
            self._hedging.enter()
            delay = self._hedging.delay(_kind(target, call))
        answered = False
        try:
            if delay is None or not self._health.is_well(target, call):
                number = next(numbers)
                result: _Result = await self._attempts.make(call, target, bounds, number=number, watch=watch)
            else:
                target, result = await self._race(call, targets[chosen:], bounds, numbers, watch, delay)
            answered = isinstance(result, Outcome) and not watch.outrun
            return target, result
        finally:
            self._learn(targets[chosen], call, watch, answered=answered)

    async def _race(
        self,
        call: Call,
        targets: Sequence[Target],
        bounds: Bounds,
        numbers: Iterator[int],
        watch: Stopwatch,
        delay: float,
    ) -> _Second:
        sent = asyncio.Event()
        watch.on_sent = sent.set
        number = next(numbers)
        make = self._attempts.make(call, targets[0], bounds, number=number, watch=watch)
        first = asyncio.create_task(make)
        late = asyncio.create_task(self._after(sent, delay))
        other = Stopwatch(self._clock)
        second: asyncio.Task[_Second | None] | None = None
        won: _Second | None = None
        try:
            await asyncio.wait({first, late}, return_when=asyncio.FIRST_COMPLETED)
            if not first.done() and self._take():
                second = asyncio.create_task(self._second(call, targets, bounds, numbers, other, delay))
                won = await _first_good(first, second)
            else:
                await asyncio.wait({first})
        except asyncio.CancelledError:
            # Both end before their caller does, since nobody else sees to what they hold.
            self._give_up(first)
            if second is not None:
                self._give_up(second)
            await asyncio.wait({one for one in (first, second) if one is not None})
            if (failed := _failure(first)) is not None:
                self._lose(call, targets[0], failed, number, watch, "cancelled")
            raise
        finally:
            late.cancel()
        if won is not None:
            watch.outrun = True
            if (failed := _failure(first)) is not None:
                self._lose(call, targets[0], failed, number, watch)
            else:
                self._give_up(first)
            self._learn(won[0], call, other, answered=True)
            return won
        if second is not None:
            other.outrun = True
            self._give_up(second)
        return targets[0], first.result()

    async def _after(self, sent: asyncio.Event, delay: float) -> None:
        await sent.wait()
        await self._sleep(delay)

    async def _second(
        self,
        call: Call,
        targets: Sequence[Target],
        bounds: Bounds,
        numbers: Iterator[int],
        watch: Stopwatch,
        delay: float,
    ) -> _Second | None:
        """Make the second attempt at the first of ``targets`` that has room for it; None where none has."""
        number = next(numbers)
        try:
            for target in targets:
                if not target.metered or target.account is None or not self._health.is_well(target, call):
                    continue
                watch.on_sent = partial(
                    self._attempts.tell,
                    "hedged",
                    call,
                    target.name,
                    attempt=number,
                    from_route=targets[0].name,
                    duration=delay,
                )
                result = await self._attempts.make(call, target, bounds, number=number, watch=watch, at_once=True)
                if isinstance(result, Failed) and isinstance(result.error, AdmissionError):
                    continue
                if isinstance(result, Failed):
                    self._lose(call, target, result, number, watch)
                return target, result
            return None
        finally:
            if watch.sent_at is None:
                with self._lock:
                    self._hedging.give_back()

    def _lose(
        self, call: Call, target: Target, failed: Failed, number: int, watch: Stopwatch, reason: str = "outrun"
    ) -> None:
        """Tell of an attempt that failed beside the other one, and note what that says about its route."""
        if watch.sent_at is not None:
            self._attempts.tell(
                "interrupted",
                call,
                target.name,
                attempt=number,
                reason=reason,
                status=failed.status,
                duration=watch.elapsed(),
            )
        if failed.fault.unhealthy:
            self._health.failed(target, str(failed.error))
        if failed.paused_until is not None:
            self._health.pause(target, call, failed.paused_until, of_model=failed.fault.of_model)

    def _give_up(self, attempt: asyncio.Task[Any]) -> None:
        """End an attempt without waiting for it, whatever it has come to meanwhile."""
        attempt.cancel()
        self._losers.add(attempt)
        attempt.add_done_callback(self._ended)

    def _ended(self, attempt: asyncio.Future[Any]) -> None:
        self._losers.discard(attempt)
        if attempt.cancelled():
            return
        if (error := attempt.exception()) is not None:
            _log.error("an attempt that was given up failed", exc_info=error)
            return
        came_to = attempt.result()
        result = came_to[1] if isinstance(came_to, tuple) else came_to
        if isinstance(result, Outcome):
            closing = asyncio.ensure_future(result.aclose())
            self._losers.add(closing)
            closing.add_done_callback(self._losers.discard)

    def _take(self) -> bool:
        with self._lock:
            return self._hedging.take()

    def _learn(self, target: Target, call: Call, watch: Stopwatch, *, answered: bool) -> None:
        elapsed = watch.elapsed()
        if elapsed is not None:
            with self._lock:
                self._hedging.observe(_kind(target, call), elapsed, answered=answered)


async def _first_good(first: asyncio.Task[_Result], second: asyncio.Task[_Second | None]) -> _Second | None:
    """Wait for the first good answer. Returns the second attempt's where that is it, else None."""
    while True:
        pending: set[asyncio.Task[Any]] = {one for one in (first, second) if not one.done()}
        if first.done() and (first.exception() is not None or not _may_be_bettered(first.result())):
            return None
        if second.done():
            came_to = None if second.exception() is not None else second.result()
            if came_to is not None and isinstance(came_to[1], Outcome):
                return came_to
        if not pending:
            return None
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)


def _failure(attempt: asyncio.Task[_Result]) -> Failed | None:
    """Return why an attempt brought no answer; None where it did, or is not over, or was cancelled."""
    if not attempt.done() or attempt.cancelled() or attempt.exception() is not None:
        return None
    result = attempt.result()
    return result if isinstance(result, Failed) else None


def _may_be_bettered(result: _Result) -> bool:
    """Return whether the other attempt may still bring what this one did not."""
    return isinstance(result, Failed) and (result.fault.recovery is not Recovery.NONE or result.fault.elsewhere)


def _kind(target: Target, call: Call) -> tuple[str, bool]:
    """Calls of the same kind take about the same time to show their first content."""
    return target.name, call.streams
