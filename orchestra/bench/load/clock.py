"""The clock of a load: real, or a test's."""

from __future__ import annotations

from typing import Protocol

import anyio

__all__ = ["Clock", "LoopClock"]


class Clock(Protocol):
    """Seconds from whatever zero, that only ever go on."""

    def __call__(self) -> float: ...

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds, which may be 0: others run meanwhile."""
        ...


class LoopClock:
    """The clock of the event loop that runs."""

    def __call__(self) -> float:
        return anyio.current_time()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)
