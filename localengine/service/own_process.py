"""Whose process the engine's threads are in.

A fork takes one thread along. The engine's own stays behind; so do torch's, and a forked child that computes waits
for them for ever (GNU OpenMP). So engines work in the process in which the first one was started, and in any that
was forked before that.
"""

from __future__ import annotations

import os

from orchestra.localengine.errors import EngineForked

__all__ = ["claim_process", "is_own_process", "require_own_process"]

_claimed: int | None = None


def claim_process() -> None:
    """Note that an engine is started here."""
    global _claimed
    _claimed = os.getpid()


def is_own_process() -> bool:
    """Whether engines can work here."""
    return _claimed is None or _claimed == os.getpid()


def require_own_process() -> None:
    """Raise EngineForked where engines cannot work."""
    if not is_own_process():
        raise EngineForked(
            "an engine ran in the process that this one was forked from, and its threads stayed behind: "
            "fork first, or start processes by the 'spawn' method"
        )
