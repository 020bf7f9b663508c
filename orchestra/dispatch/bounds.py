"""How long one call may take, and what its caller is told when that was not enough."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from orchestra.call import Call
from orchestra.durations import format_duration
from orchestra.errors import CallTimeout, DeadlineExceeded
from orchestra.policies.traffic import TrafficClass

__all__ = ["Bounds"]

_TICK = 0.02
"""Seconds by which a timer may fire before its instant on another clock."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of ``call``, which began at ``started`` on ``clock``. All times are in seconds."""

    call: Call
    started: float
    clock: Callable[[], float]

    def time_left(self) -> float | None:
        """Return what is left of the whole call, or None where nothing bounds it."""
        return None if self.call.expires_at is None else max(0.0, self.call.expires_at - self.clock())

    def wait_left(self) -> float | None:
        """Return how long to wait for the next bytes of an answer that is made in this process.

        The caller's read timeout bounds that as it does on the wire. Bulk waits for its turn in the engine as it
        does for admission: as long as it takes, or until its deadline.
        """
        bounds = [self.time_left(), self._read_timeout]
        return min((one for one in bounds if one is not None), default=None)

    def queue_left(self) -> float | None:
        """Return what is left of the call's bound on waiting for admission, over all its attempts."""
        bound = self.call.queue_bound
        return None if bound is None else max(0.0, self.started + bound - self.clock())

    def admission_left(self) -> float | None:
        """Return in how many seconds the call must have been let go, or None where nothing bounds that."""
        bounds = [self.time_left(), self.queue_left()]
        return min((one for one in bounds if one is not None), default=None)

    def whole(self) -> str:
        """Return the bound of the whole call in words: ``the call's timeout of 2.0s``."""
        seconds = math.inf if self.call.expires_at is None else max(0.0, self.call.expires_at - self.started)
        seconds = round(
            seconds, 2
        )  # what passed between the caller's saying so and our beginning is no part of it
        if self.call.traffic is TrafficClass.INTERACTIVE:
            return f"the call's timeout of {format_duration(seconds)}"
        return f"the {format_duration(seconds)} that the call's deadline left it"

    def wait(self) -> str:
        """Return in words which of the bounds of `wait_left` is over."""
        return self.whole() if self._is_over else f"the caller's timeout of {self._read_timeout:g}s"

    def expired(self) -> DeadlineExceeded:
        """Return the error of a call whose `time_left` is over."""
        return DeadlineExceeded(f"no answer within {self.whole()}")

    def wait_expired(self, note: str = "") -> CallTimeout:
        """Return the error of a call whose `wait_left` is over."""
        error = DeadlineExceeded if self._is_over else CallTimeout
        return error(f"no answer within {self.wait()}{note}")

    @property
    def _is_over(self) -> bool:
        left = self.time_left()
        return self._read_timeout is None or (left is not None and left < _TICK)

    @property
    def _read_timeout(self) -> float | None:
        return self.call.read_timeout if self.call.traffic is TrafficClass.INTERACTIVE else None
