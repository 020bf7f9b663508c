"""Which route a call takes next.

Routes stand in order of preference. A call takes the first that may go now; after a fault it stays, or moves on
to the others; when none may go now it waits for the first to return. The instant before which a route may not go,
whether its breaker or the call's own backoff sets it, is one number, so that falling back, backing off and waiting
out a cooldown are the same decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestra.policies.fault import Fault, Recovery
from orchestra.policies.traffic import TrafficClass

__all__ = ["Itinerary", "Step", "moves_on"]

PATIENCE = 1.0
"""Seconds that an interactive call waits for its preferred route to take it again, where it has another."""


@dataclass(frozen=True, slots=True)
class Step:
    """Take route number ``route`` at the instant ``at``. ``again`` says that the call has been there before."""

    route: int
    at: float
    again: bool


def moves_on(fault: Fault, traffic: TrafficClass) -> bool:
    """Return whether a call should rather try another route than the same one again."""
    if fault.elsewhere or fault.recovery is Recovery.PAUSE:
        return True
    return traffic is TrafficClass.INTERACTIVE and (fault.retry_after or 0.0) > PATIENCE


class Itinerary:
    """One call's way over its ``routes`` routes, numbered from 0 in order of preference."""

    def __init__(self, routes: int) -> None:
        self._again_at: list[float | None] = [0.0] * routes
        self._tries = [0] * routes
        self._stay: int | None = None

    def next(self, ready_at: Sequence[float], now: float, *, fresh_only: bool = False) -> Step | None:
        """Return the next step, or None where no route is left.

        ``ready_at[i]`` is the instant from which route i's breaker lets calls through. ``fresh_only`` leaves out
        routes that the call has tried: a call that has used up its attempts may still fall back.
        """
        steps = [
            Step(route, max(again_at, ready_at[route], now), again=self._tries[route] > 0)
            for route, again_at in enumerate(self._again_at)
            if again_at is not None and (self._tries[route] == 0 or not fresh_only)
        ]
        for step in steps:
            if step.route == self._stay and step.at <= max(self._again_at[step.route] or 0.0, now):
                return step
        # A short backoff may be over at once: whoever moved on still tries the others first.
        return min(steps, key=lambda step: (step.at, self._tries[step.route], step.route), default=None)

    def failed(self, route: int, *, again_at: float | None, stay: bool) -> None:
        """Record a fault: the route may be tried again from ``again_at`` (None: never, by this call).

        ``stay`` keeps the call on it, unless its breaker has opened meanwhile.
        """
        self._tries[route] += 1
        self._again_at[route] = again_at
        self._stay = route if stay and again_at is not None else None
