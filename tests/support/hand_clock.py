"""Clocks in the test's hand, for a pool and a dispatcher on one loop: how slow the machine is changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

__all__ = ["HandClock", "LeapingClock"]


class HandClock:
    """Seconds that pass when told so. `call_at` and `sleep` go by them."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._alarms: list[tuple[float, int, Callable[[], object]]] = []
        self._serial = count()

    def __call__(self) -> float:
        return self.now

    def call_at(self, when: float, ring: Callable[[], object]) -> None:
        heappush(self._alarms, (when, next(self._serial), ring))

    async def sleep(self, seconds: float) -> None:
        over = asyncio.Event()
        self.call_at(self.now + seconds, over.set)
        await over.wait()

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass. Who is woken goes on when the loop does."""
        until = self.now + max(0.0, seconds)
        while self._alarms and self._alarms[0][0] <= until:
            when, _, ring = heappop(self._alarms)
            self.now = max(self.now, when)
            ring()
        self.now = until


class LeapingClock(HandClock):
    """Goes on to the next instant that somebody waits for at once, and stands still else."""

    def call_at(self, when: float, ring: Callable[[], object]) -> None:
        super().call_at(when, ring)
        asyncio.get_running_loop().call_soon(self._leap)

    def _leap(self) -> None:
        if self._alarms:
            self.advance(self._alarms[0][0] - self.now)
