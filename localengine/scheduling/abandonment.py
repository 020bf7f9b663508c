"""When a step of bulk work is given up for an interactive request that arrives while it runs."""

from __future__ import annotations

from collections.abc import Callable

from orchestra.localengine.scheduling.state import SchedulerState
from orchestra.localengine.scheduling.step_plan import StepPlan
from orchestra.policies.traffic import TrafficClass

__all__ = ["Abandonment"]

_LEAST_LEFT = 0.1  # of a step: for less, what it has computed is not thrown away


class Abandonment:
    """Decides between the layers of a step whether it goes on. What it has computed is lost if it does not.

    ``arrived`` tells whether an interactive request has come that the step was planned without; ``clock`` counts
    seconds. A step is given up only while some of its predicted time is still to go, and only if nobody
    interactive has a row in it. It is never given up where bulk is owed its share, nor right after another of
    bulk's own: at least every second of those counts, however often somebody arrives.
    """

    def __init__(self, arrived: Callable[[], bool], clock: Callable[[], float]) -> None:
        self._arrived = arrived
        self._clock = clock
        self._next_counts = False

    def watch(self, state: SchedulerState, plan: StepPlan) -> Callable[[], bool] | None:
        """What to ask between the layers of the step that begins now. None: it runs to its end, whoever comes."""
        if any(row.request_id in state.running[TrafficClass.INTERACTIVE] for row in plan.rows):
            return None
        if self._next_counts or state.bulk_owed >= 1:
            self._next_counts = False
            return None
        latest = self._clock() + (1 - _LEAST_LEFT) * plan.seconds
        return lambda: self._arrived() and self._clock() < latest

    def abandoned(self) -> None:
        """The step that was watched has been given up."""
        self._next_counts = True
