"""Why an engine ends, and what those are told who wait for it."""

from __future__ import annotations

import traceback

from orchestra.localengine.errors import EngineClosed, EngineDied, EngineError

__all__ = ["Death", "closed", "forget_frames", "told"]


class Death:
    """Makes an EngineDied for each waiter: one exception must not be raised in several tasks."""

    def __init__(self, error: BaseException) -> None:
        self._told = told(error)
        self._cause = error

    def __call__(self) -> EngineError:
        died = EngineDied(f"the engine's step loop failed ({self._told}): start the engine again")
        died.__cause__ = self._cause
        return died


def closed() -> EngineError:
    """What a waiter is told where nothing failed."""
    return EngineClosed("the engine is closed: start it before use")


def told(error: BaseException) -> str:
    """The error's kind and words."""
    return f"{type(error).__name__}: {error}"


def forget_frames(error: BaseException) -> None:
    """Let go of what the functions that ``error`` has come through still hold: weights, a whole KV cache."""
    each: BaseException | None = error
    while each is not None:
        traceback.clear_frames(each.__traceback__)
        each = each.__cause__ or each.__context__
