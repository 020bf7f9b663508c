"""A circuit breaker: stop asking a route that keeps failing, and find out cheaply when it is back.

::

             threshold failures in a row            cooldown over: one caller may probe
    CLOSED ------------------------------> OPEN ----------------------------------------> HALF_OPEN
      ^                                     ^                                                 |
      |                                     +------- the probe failed: cooldown doubles ------+
      +---------------------------------------------- a probe succeeded ----------------------+

A probe that is never heard of again (its caller was cancelled) needs no clean-up: the next one may start a
cooldown later.

Source: M. Nygard, *Release It!*, "Circuit Breaker".
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

__all__ = ["BreakerState", "CircuitBreaker"]


class BreakerState(enum.StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(slots=True)
class CircuitBreaker:
    """The health of one route. Times are seconds on the caller's clock.

    ``threshold`` failures in a row open it; it cools for ``cooldown`` seconds, twice as long after each failed
    probe, ``max_cooldown`` at most: so late at the latest does a route that is back get its next call, and so
    seldom is one that is not asked in vain.
    """

    threshold: int = 5
    cooldown: float = 1.0
    max_cooldown: float = 10.0
    state: BreakerState = field(default=BreakerState.CLOSED, init=False)
    _failures: int = field(default=0, init=False)
    _current_cooldown: float = field(default=0.0, init=False)
    _ready_at: float = field(default=0.0, init=False)

    @property
    def unmarked(self) -> bool:
        """Whether it holds nothing that a new one would not."""
        return self.state is BreakerState.CLOSED and not self._failures

    def ready_at(self, now: float) -> float:
        """Return the instant from which a call may go, which is ``now`` while the route is healthy."""
        return now if self.state is BreakerState.CLOSED else max(now, self._ready_at)

    def try_pass(self, now: float) -> bool:
        """Return whether a call may go now. Past a cooldown the first one that asks becomes the probe."""
        if self.state is BreakerState.CLOSED:
            return True
        if now < self._ready_at:
            return False
        self.state = BreakerState.HALF_OPEN
        self._ready_at = now + self._current_cooldown
        return True

    def succeeded(self) -> None:
        """Record an answer, good or bad, that shows the route alive."""
        # An answer to a call from before the opening says nothing about now.
        if self.state is not BreakerState.OPEN:
            self.state = BreakerState.CLOSED
            self._failures = 0

    def failed(self, now: float) -> None:
        """Record a failure to answer."""
        match self.state:
            case BreakerState.CLOSED:
                self._failures += 1
                if self._failures >= self.threshold:
                    self._open(now, self.cooldown)
            case BreakerState.HALF_OPEN:
                self._open(now, min(2 * self._current_cooldown, self.max_cooldown))
            case BreakerState.OPEN:
                pass

    def _open(self, now: float, cooldown: float) -> None:
        self.state = BreakerState.OPEN
        self._current_cooldown = cooldown
        self._ready_at = now + cooldown
