"""One metered call from its first attempt to its answer, or to the end of all hope for one."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from orchestra.call import Call, Outcome
from orchestra.dispatch.attempts import Attempts
from orchestra.dispatch.bounds import Bounds
from orchestra.dispatch.exchange import Failed
from orchestra.dispatch.health import RouteHealth
from orchestra.dispatch.route_table import Target
from orchestra.dispatch.tiers import leaves_tier
from orchestra.errors import AllRoutesFailed, ConnectionFailed, DeadlineExceeded, InputError
from orchestra.observe.events import EventKind
from orchestra.policies.fault import Recovery
from orchestra.policies.retry import RetryPolicy
from orchestra.policies.routing import Itinerary, moves_on
from orchestra.policies.traffic import TrafficClass

if TYPE_CHECKING:
    from orchestra.dispatch.hedge import Hedger

__all__ = ["Journey"]

_log = logging.getLogger("orchestra.dispatch")


class Journey:
    """The way of ``call`` over ``targets``. `run` it once.

    ``hedger`` makes the first attempt where late calls are sent twice.
    """

    def __init__(
        self,
        call: Call,
        targets: Sequence[Target],
        *,
        attempts: Attempts,
        health: RouteHealth,
        retry: RetryPolicy,
        hedger: Hedger | None,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._call = call
        self._targets = targets
        self._attempts = attempts
        self._health = health
        self._retry = retry
        self._hedger = hedger
        self._clock = clock
        self._sleep = sleep
        self._started = clock()
        self._bounds = Bounds(call, self._started, clock)
        self._numbers = itertools.count(1)
        self._failures: list[tuple[str, Failed]] = []
        self._failed_at = 0.0  # the latest attempt
        self._full_tiers: Counter[str] = Counter()  # by route, how often its service tier had no room

    async def run(self) -> Outcome:
        """Return the answer; raise as `Dispatcher.send` does where there is none."""
        call, targets, failures = self._call, self._targets, self._failures
        limit = min(_or_inf(call.expires_at), self._started + _or_inf(call.queue_bound))
        itinerary = Itinerary(len(targets))
        missed, waited = 0, False  # turns at a cooling route that another call took as its probe
        claimed = False  # a retry, out of the retry budget
        interactive = call.traffic is TrafficClass.INTERACTIVE
        self._health.enter(call.traffic)
        while True:
            now = self._clock()
            spent = self._retry.exhausted(len(failures), call.traffic, has_deadline=call.expires_at is not None)
            ready_at = [self._health.ready_at(one, call, now) for one in targets]
            step = itinerary.next(ready_at, now, fresh_only=spent)
            if step is None:
                break
            target, at = targets[step.route], step.at
            if step.again and not claimed:
                wait = self._health.claim_retry(call.traffic)
                if wait is None:
                    break
                claimed, at = True, max(at, now + wait)
            if at > now:
                # Bulk waits for a spent account; a person is told.
                if at >= limit or (interactive and self._health.paused_until(target, call) > now):
                    break
                if ready_at[step.route] > now:
                    missed, waited = missed + waited, True
                    # What nothing bounds does not wait for ever: a missed turn counts as an attempt.
                    turns = len(failures) + missed
                    if limit == math.inf and self._retry.exhausted(turns, call.traffic, has_deadline=False):
                        break
                try:
                    await self._sleep(at - now)
                except asyncio.CancelledError:
                    self._tell_cancelled(target)
                    raise
                continue
            if not self._health.try_pass(target, now):
                continue
            claimed = waited = False
            target, result = await self._attempt(step.route)
            if isinstance(result, Outcome):
                if self._health.answered(target):
                    _log.info("%s answers again", target.name, extra={"route": target.name})
                return result
            self._note(target, result)
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
        return self._give_up()

    async def _attempt(self, chosen: int) -> tuple[Target, Outcome | Failed]:
        target = self._targets[chosen]
        hedger, numbers = self._hedger, self._numbers
        if not self._failures and hedger is not None and target.account is not None and _may_be_hedged(self._call):
            return await hedger.make(self._call, self._targets, chosen, self._bounds, numbers)
        number = next(numbers)  # after a hedge there have been more attempts than failures
        if self._failures:
            self._tell_next(target, number)
        return target, await self._attempts.make(
            self._call,
            target,
            self._bounds,
            number=number,
            default_tier=leaves_tier(self._full_tiers[target.name], self._call.traffic, self._bounds.time_left()),
        )

    def _note(self, target: Target, failed: Failed) -> None:
        self._failures.append((target.name, failed))
        self._failed_at = self._clock()
        self._full_tiers[target.name] += failed.fault.of_tier
        if failed.fault.unhealthy:
            self._health.failed(target, str(failed.error))
        elif failed.answer is not None:
            self._health.answered(target, well=False)
        if failed.paused_until is None:
            return
        until, reason = failed.paused_until, failed.fault.reason
        if self._health.pause(target, self._call, until, of_model=failed.fault.of_model):
            seconds = until - self._clock()
            _log.warning(
                "the account of %s is spent (%s): its calls wait, or take other routes, until it answers again; "
                "it is asked in %.0fs",
                target.name,
                reason,
                seconds,
                extra=self._extra("paused", target.name, reason=reason, status=failed.status, duration=seconds),
            )

    def _tell_cancelled(self, target: Target) -> None:
        """Tell of a call that was given up while no attempt was under way."""
        now = self._clock()
        self._attempts.tell(
            "interrupted",
            self._call,
            target.name,
            reason="cancelled",
            waited=now - self._failed_at if self._failures else None,
            duration=now - self._started,
        )

    def _tell_next(self, target: Target, number: int) -> None:
        route, failed = self._failures[-1]
        kind: EventKind = "retried" if route == target.name else "fell_back"
        told: dict[str, Any] = {
            "attempt": number,
            "from_route": route,
            "reason": failed.fault.reason,
            "status": failed.status,
            "waited": self._clock() - self._failed_at,
        }
        self._attempts.tell(kind, self._call, target.name, **told)
        if kind == "fell_back" and failed.fault.unhealthy and self._health.is_news(route):
            _log.warning(
                "%s fails (%s): calls take %s meanwhile",
                route,
                failed.fault.reason,
                target.name,
                extra=self._extra(kind, target.name, **told),
            )

    def _extra(self, kind: EventKind, route: str, **fields: Any) -> dict[str, Any]:
        return self._attempts.event(kind, self._call, route, **fields).as_extra()

    def _give_up(self) -> Outcome:
        """Return the last answer that a provider gave, or raise."""
        failures = self._failures
        self._attempts.tell(
            "failed",
            self._call,
            failures[-1][0] if failures else "",
            attempt=len(failures),
            reason=failures[-1][1].fault.reason if failures else "no route is ready",
            status=failures[-1][1].status if failures else None,
            duration=self._clock() - self._started,
        )
        for _, failed in reversed(failures):
            if failed.answer is not None:
                return failed.answer
        if not failures:
            told = ", ".join(self._health.describe_wait(target, self._call) for target in self._targets)
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


def _may_be_hedged(call: Call) -> bool:
    return call.traffic is TrafficClass.INTERACTIVE


def _tell(failures: Sequence[tuple[str, Failed]]) -> str:
    """Name each route's each reason once, in the order in which they came up."""
    counts = Counter((route, str(failed.error)) for route, failed in failures)
    return "; ".join(
        f"{route}: {reason}" + (f" ({count} times)" if count > 1 else "")
        for (route, reason), count in counts.items()
    )


def _or_inf(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds
