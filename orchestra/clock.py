"""The clocks that deadlines are kept by, and the pair of them that a simulation or a test puts in their place."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["REAL_TIME", "Clock", "wall"]

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


def _ticks() -> float:
    """Return seconds that only ever go on, also, where the system counts it, while it is suspended."""
    return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)


_START = time.time() - _ticks()


def wall() -> float:
    """Return unix time, as it was when the process began, and what has passed since.

    A clock that is set meanwhile, by hand or by a server, must not make deadlines pass, nor waits last for hours.
    """
    return _START + _ticks()


@dataclass(frozen=True, slots=True)
class Clock:
    """Two clocks that go at the same pace, in seconds: ``monotonic`` from whatever zero, ``wall`` in unix time."""

    monotonic: Callable[[], float]
    wall: Callable[[], float]


REAL_TIME = Clock(time.monotonic, wall)
