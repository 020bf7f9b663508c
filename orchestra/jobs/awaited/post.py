"""Brings work to a loop in another thread: one wake-up serves all that is brought until that loop is awake.

Each wake-up is a system call, around which the interpreter's lock is given away. Beside a loop that is busy it
takes milliseconds to have it back, which is nothing once and far too long for each of a thousand calls.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Protocol, TypeVar

__all__ = ["OwnLoop", "Post"]

T = TypeVar("T")

_Work = Callable[[], Coroutine[Any, Any, Any]]


class OwnLoop(Protocol):
    """A loop that goes on whatever becomes of the callers' ones. `begin` raises LoopEnded where it does not."""

    def begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]: ...


class Post:
    """Brings work to ``loop``. Any thread may use it."""

    def __init__(self, loop: OwnLoop) -> None:
        self.loop = loop
        self._lock = threading.Lock()
        self._brought: list[tuple[_Work, Context, Future[Any]]] = []

    def bring(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Have work done. Returns what tells of its end: it is cancelled where the loop ends before, and whoever
        cancels it cancels the work. Raises LoopEnded."""
        told: Future[T] = Future()
        with self._lock:
            self._brought.append((work, copy_context(), told))
            if len(self._brought) > 1:
                return told  # somebody has woken it
        try:
            self.loop.begin(self._deliver).add_done_callback(self._delivered)
        except BaseException:
            self._give_back()
            raise
        return told

    def _take(self) -> list[tuple[_Work, Context, Future[Any]]]:
        with self._lock:
            brought, self._brought = self._brought, []
        return brought

    async def _deliver(self) -> None:
        loop = asyncio.get_running_loop()
        for work, context, told in self._take():
            if told.cancelled():
                continue
            task = loop.create_task(work(), context=context)
            task.add_done_callback(partial(_tell, told))
            told.add_done_callback(partial(_cancel, loop, task))

    def _delivered(self, delivery: Future[None]) -> None:
        if delivery.cancelled():  # the loop has ended
            self._give_back()

    def _give_back(self) -> None:
        for _, _, told in self._take():
            told.cancel()


def _tell(told: Future[Any], task: asyncio.Task[Any]) -> None:
    fault = None if task.cancelled() else task.exception()
    if task.cancelled():
        told.cancel()
    elif not told.set_running_or_notify_cancel():
        pass
    elif fault is not None:
        told.set_exception(fault)
    else:
        told.set_result(task.result())


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any], told: Future[Any]) -> None:
    if told.cancelled() and not task.done():
        with suppress(RuntimeError):  # the loop is closed, and so is all that was done there
            loop.call_soon_threadsafe(task.cancel)
