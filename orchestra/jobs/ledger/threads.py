"""Work in a thread whose end is always waited for, and what several tasks at once have failed with."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

__all__ = ["first_of", "in_steps", "in_thread"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

_COUNT = 16


_threads = ThreadPoolExecutor(_COUNT, "orchestra-jobs")


def _hire() -> None:
    global _threads
    _threads = ThreadPoolExecutor(_COUNT, "orchestra-jobs")


os.register_at_fork(after_in_child=_hire)  # those of the parent stay there


async def in_thread(function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call ``function`` in a thread. Cancelled, wait for its end before that is passed on.

    The threads are the jobs' own: where the ledger keeps them waiting, what the program does in threads, and the
    look-ups of hosts, go on. `asyncio.to_thread` leaves the thread running: what it still writes would come after
    its caller has given up the right to write.
    """
    call = partial(copy_context().run, function, *args, **kwargs)
    work = asyncio.get_running_loop().run_in_executor(_threads, call)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        if not work.cancelled():
            work.exception()  # nobody is left to hear of it
        raise


async def in_steps(steps: Generator[None, None, _T]) -> _T:
    """Return what a generator returns, run in a thread. Cancelled, wait for the step that is under way only."""
    while (ended := await in_thread(_step, steps)) is None:
        pass
    return ended[0]


def _step(steps: Generator[None, None, _T]) -> tuple[_T] | None:
    try:
        next(steps)
    except StopIteration as end:
        return (end.value,)
    return None


def first_of(faults: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first of the faults of a task group. What else there is came of it, or would come again."""
    fault = faults.exceptions[0]
    return first_of(fault) if isinstance(fault, BaseExceptionGroup) else fault
