"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["Caller", "Closable", "LoopEnded", "LoopThread", "Session"]

T = TypeVar("T")

_PATIENCE = 1.0
"""Seconds that a fork, or the end of the interpreter, waits for a loop at most."""


class LoopEnded(Exception):
    """The loop has ended, or did so before the work was done."""


class LoopThread:
    """The loop that blocking calls of any number of threads run on. It is started when it is first needed.

    `close` ends it, and it is started anew where it is needed again; so it is in a forked child. The thread keeps
    no interpreter alive: what is still under way at its end is cancelled.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._session: Session | None = None
        _all.add(self)

    def session(self) -> Session:
        """Return the loop that runs."""
        with self._lock:
            if self._session is None or self._session.ended:
                self._session = Session(self._name)
            return self._session

    def close(self) -> None:
        """Cancel what is under way and end the loop. May be called again, and from any thread but the loop's."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.end()

    async def aclose(self) -> None:
        """As `close`, without blocking the caller's loop."""
        if self._session is not None:
            await asyncio.to_thread(self.close)

    def _pause(self) -> Callable[[], None]:
        session = self._session
        return session.pause() if session is not None else lambda: None

    def _forget(self) -> None:
        """Leave to the parent what it runs: in a forked child its thread is not there."""
        self._lock = threading.Lock()
        if self._session is not None:
            self._session.ended = True
            _stranded.append(self._session)
            self._session = None

    def _end_with_interpreter(self) -> None:
        if self._session is not None:
            self._session.deserted = True
            self._session.end(_PATIENCE)


class Session:
    """One loop, from its start to its end."""

    def __init__(self, name: str) -> None:
        self.ended = False
        self.deserted = False
        """Whether the interpreter ends: who still waits then is a daemon, and is to stop where it stands."""
        self._lock = threading.Lock()
        self.open: weakref.WeakSet[Closable] = weakref.WeakSet()
        """What lives on the loop and is to be closed before it ends. Changed on the loop only."""
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        # The thread must not hold this: whoever forgets it, and the Orchestra that it belongs to, ends the loop.
        self._thread = threading.Thread(target=_serve, args=(started, self.open), name=name, daemon=True)
        self._thread.start()
        self._loop, self._stop = started.result()
        self._finalizer = weakref.finalize(self, _stop, self._loop, self._stop)
        self._finalizer.atexit = False

    def run(
        self,
        work: Callable[[Caller], Coroutine[Any, Any, T]],
        *,
        drop: Callable[[T], Awaitable[object]] | None = None,
    ) -> T:
        """Run ``work`` on the loop, in the context variables of this thread, and wait for what it returns.

        Whatever ends the wait early (KeyboardInterrupt) cancels the work; ``drop`` is given what it returned all
        the same. Raises LoopEnded where the loop ends first, RuntimeError in the loop's own thread.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call in the thread that is to serve it would wait for ever")
        errand = _Errand(self, work, drop)
        with self._lock:
            if self.ended:
                raise LoopEnded
            self._loop.call_soon_threadsafe(errand.begin)
        try:
            return errand.wait()
        except asyncio.CancelledError:
            raise LoopEnded from None
        except BaseException:
            with suppress(RuntimeError):  # the loop is closed, and all that it ran is cancelled
                self._loop.call_soon_threadsafe(errand.leave)
            raise

    def begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Begin ``work`` on the loop; return what tells of its end. Raises LoopEnded where the loop has ended."""
        with self._lock:
            if self.ended:
                raise LoopEnded
            return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def close_from_within(self, one: Closable) -> bool:
        """In the loop's own thread, where the garbage collector finds what others dropped: close it later.

        Returns whether that is so.
        """
        if threading.current_thread() is not self._thread:
            return False
        with suppress(RuntimeError):  # the loop is closed, and so is all that lived on it
            self._loop.call_soon_threadsafe(_close_later, one)
        return True

    def end(self, patience: float | None = None) -> None:
        """Cancel what is under way, close what is open, end the loop, and wait ``patience`` seconds at most."""
        with self._lock:  # nothing is begun behind the end
            self.ended = True
            self._finalizer.detach()
            _stop(self._loop, self._stop)
        self._thread.join(patience)

    def pause(self) -> Callable[[], None]:
        """Let the loop do nothing, and hold no lock, until what is returned is called."""
        if threading.current_thread() is self._thread:
            return lambda: None
        paused, go_on = threading.Event(), threading.Event()

        def wait() -> None:
            paused.set()
            go_on.wait(_PATIENCE)

        try:
            self._loop.call_soon_threadsafe(wait)
        except RuntimeError:  # it has ended
            return lambda: None
        paused.wait(_PATIENCE)
        return go_on.set


class Closable(Protocol):
    async def aclose(self) -> None: ...


class Caller:
    """The thread that waits for work to be done, and lends itself to it meanwhile."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._left = False

    async def do(self, job: Callable[[], T]) -> T:
        """Run ``job`` in the thread that waits. Raises RuntimeError where it no longer does."""
        if self._left:
            raise RuntimeError("the caller is gone")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(set_it: Callable[[Any], None], value: object) -> None:
            if not future.done():
                set_it(value)

        def run() -> None:
            set_it: Callable[[Any], None] = future.set_result
            try:
                value: object = job()
            except Exception as error:
                set_it, value = future.set_exception, error
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, set_it, value)

        self._jobs.put(run)
        return await future


class _Errand(Caller, Generic[T]):
    """Work that somebody waits for."""

    def __init__(
        self,
        session: Session,
        work: Callable[[Caller], Coroutine[Any, Any, T]],
        drop: Callable[[T], Awaitable[object]] | None,
    ) -> None:
        super().__init__()
        self._session = session
        self._work = work
        self._drop = drop
        self._context = copy_context()
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        """On the loop: start."""
        self._task = asyncio.get_running_loop().create_task(self._work(self), context=self._context)
        self._task.add_done_callback(self._done)

    def wait(self) -> T:
        """In the thread that waits: do what is asked until the work is done, and return its result."""
        while (job := self._jobs.get()) is not None:
            job()
        task, self._task = self._task, None  # or an error, its traceback, this and the task would hold each other
        if task is None:
            raise RuntimeError("the work has not begun")
        return task.result()

    def leave(self) -> None:
        """On the loop: nobody waits any more."""
        self._left = True
        if self._task is not None:
            self._task.cancel()
            self._task.add_done_callback(self._dropped)

    def _done(self, task: asyncio.Task[T]) -> None:
        if not self._session.deserted:
            self._jobs.put(None)

    def _dropped(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled() and task.exception() is None and self._drop is not None:
            _closing.add(closing := asyncio.ensure_future(self._drop(task.result())))
            closing.add_done_callback(_closing.discard)


def _close_later(one: Closable) -> None:
    _closing.add(closing := asyncio.ensure_future(one.aclose()))
    closing.add_done_callback(_closing.discard)


def _serve(
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]], still_open: weakref.WeakSet[Closable]
) -> None:
    async def serve() -> None:
        stop = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()
        # In order: a loop that is just left closes the generators of one stream all at once, and they complain.
        if running := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in running:
                task.cancel()
            await asyncio.wait(running)
        for one in list(still_open):
            with suppress(Exception):
                await one.aclose()

    try:
        with asyncio.Runner() as runner:
            runner.get_loop()
            runner.run(serve())
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)


def _stop(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    with suppress(RuntimeError):  # it has ended
        loop.call_soon_threadsafe(stop.set)


_closing: set[asyncio.Future[Any]] = set()
_all: weakref.WeakSet[LoopThread] = weakref.WeakSet()
_stranded: list[Session] = []
"""The parent's, in a forked child: to collect them would write into what they share with the parent."""
_go_on: list[Callable[[], None]] = []


def _before_fork() -> None:
    _go_on.extend([one._pause() for one in list(_all)])


def _after_fork() -> None:
    while _go_on:
        _go_on.pop()()


def _after_fork_in_child() -> None:
    _go_on.clear()
    for one in list(_all):
        one._forget()


@atexit.register
def _at_exit() -> None:
    # Else whatever the interpreter closes as it ends would wait for a thread that no longer runs.
    for one in list(_all):
        one._end_with_interpreter()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
