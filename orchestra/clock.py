"""The clock by which deadlines are kept: unix time that nobody sets while a process runs."""

from __future__ import annotations

import time

__all__ = ["wall"]

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
