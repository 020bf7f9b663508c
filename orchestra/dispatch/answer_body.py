"""The body of an answer on its way to the caller, and what must happen when it ends, however it ends."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal

from orchestra.budget.alarm import call_at
from orchestra.call import Headers, Outcome, Usage
from orchestra.dispatch.bounds import Bounds
from orchestra.errors import ConnectionFailed, StreamInterrupted
from orchestra.providers import FormatError, StreamReader

__all__ = ["AnswerBody", "End", "Ending", "OnEnd", "bounded"]

End = Literal["complete", "broken", "dropped"]
"""How a body ended: it came whole; it broke; its reader closed it, was cancelled, or forgot it."""


OnEnd = Callable[[End, Usage], Callable[[], None]]
"""Settles what a body held, told how it ended and the usage that it told. Returns what tells everybody of it.

The first half may run inside the garbage collector, so it takes no lock; the second never does.
"""


class Ending:
    """Runs ``on_end`` once."""

    def __init__(self, on_end: OnEnd) -> None:
        self._on_end: OnEnd | None = on_end

    def __call__(self, end: End, usage: Usage) -> None:
        self.settle(end, usage)()

    def settle(self, end: End, usage: Usage) -> Callable[[], None]:
        """Run the first half. Returns the second, which is still to be called."""
        on_end, self._on_end = self._on_end, None
        return _nothing if on_end is None else on_end(end, usage)


class AnswerBody:
    """Iterates what is left of an answer: ``held``, then what ``reader`` lets pass of ``source``.

    A break raises StreamInterrupted. ``on_end`` runs once: as soon as the reader has seen the last event, on a
    break, on `aclose`, when the reading task is cancelled, or when the garbage collector finds the body dropped.
    ``bounds`` tells how long the call has left. ``on_read`` is told True when something was handed on and it is
    the reader's turn, False when the reader asks on.
    """

    def __init__(
        self,
        route: str,
        *,
        held: bytes,
        source: AsyncIterator[bytes],
        close: Callable[[], Awaitable[None]],
        reader: StreamReader,
        bounds: Bounds,
        on_end: OnEnd = lambda end, usage: _nothing,
        on_read: Callable[[bool], None] = lambda handed: None,
    ) -> None:
        self._route = route
        self._held = held
        self._source = source
        self._close = close
        self._reader = reader
        self._ending = Ending(on_end)
        self._bounds = bounds
        self._on_read = on_read
        self._over = False
        self._outcome: Callable[[], Outcome | None] = lambda: None
        self._finalizer = _when_forgotten(self, self._ending, lambda: reader.usage, close)
        self._end_when_read()

    def outcome(self, status: int, headers: Headers) -> Outcome:
        """Return the outcome that has this body, and whose usage this body fills in."""
        outcome = Outcome(status, headers, self, self._route, usage=self._reader.usage, close=self.aclose)
        self._outcome = weakref.ref(outcome)  # no cycle: a dropped body must be found at once
        return outcome

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        self._on_read(False)
        while not self._held and not self._over:
            await self._read_on()
        if not self._held:
            raise StopAsyncIteration
        held, self._held = self._held, b""
        if not self._over:
            self._on_read(True)
        return held

    async def aclose(self) -> None:
        """End the body. May be called again."""
        self._held = b""
        await self._end("dropped")

    async def _read_on(self) -> None:
        try:
            async with asyncio.timeout(self._bounds.time_left()):
                chunk = await anext(self._source, None)
            self._held = self._reader.finish() if chunk is None else self._reader.feed(chunk)
            self._end_when_read()
            if chunk is None:
                if not self._reader.ended and self._reader.fault is None:
                    raise ConnectionFailed("the stream was cut", sent=True)
                await self._end("broken")  # unless its last event has ended it well already
        except (ConnectionFailed, FormatError, TimeoutError) as error:
            await self._end("broken")
            if not self._reader.ended:
                self._held = b""
                reason = (
                    f"no more within {self._bounds.whole()}" if isinstance(error, TimeoutError) else str(error)
                )
                late = isinstance(error, TimeoutError) or (isinstance(error, ConnectionFailed) and error.timed_out)
                raise StreamInterrupted(f"{self._route} broke off: {reason}", timed_out=late) from error
        except GeneratorExit:  # the garbage collector ends a reading task whose loop is no more, and finds us next
            raise
        except BaseException:
            await self._end("dropped")
            raise

    def _end_when_read(self) -> None:
        if self._reader.ended:
            outcome = self._outcome()
            if outcome is not None:
                outcome.usage = self._reader.usage
            self._ending("broken" if self._reader.fault else "complete", self._reader.usage)

    async def _end(self, end: End) -> None:
        self._over = True
        self._ending(end, self._reader.usage)
        self._finalizer.detach()
        await self._close()


def _nothing() -> None:
    """Tell nobody."""


def _when_forgotten(
    body: object,
    ending: Ending,
    usage: Callable[[], Usage] = Usage,
    close: Callable[[], Awaitable[None]] | None = None,
) -> weakref.finalize[Any, Any]:
    """End ``body`` when it is dropped unread. Neither function may know it."""
    finalizer = weakref.finalize(body, _forgotten, asyncio.get_running_loop(), ending, usage, close)
    finalizer.atexit = False
    return finalizer


def _forgotten(
    loop: asyncio.AbstractEventLoop,
    ending: Ending,
    usage: Callable[[], Usage],
    close: Callable[[], Awaitable[None]] | None,
) -> None:
    """Settle for a body that was dropped. Runs inside the garbage collector, so all else is put off.

    A subscriber takes locks of its own, and the collector may run in the midst of what holds them.
    """
    tell = ending.settle("dropped", usage())
    if tell is _nothing and close is None:
        return

    def end() -> None:
        tell()
        shut()

    def shut() -> None:
        if close is None:
            return
        _closing.add(closing := asyncio.ensure_future(close()))
        closing.add_done_callback(_closing.discard)

    if loop.is_running():
        with suppress(RuntimeError):  # it is closed by now
            loop.call_soon_threadsafe(end)
            return
    with suppress(RuntimeError):  # it is closed, and its connections with it; else it may run again
        loop.call_soon_threadsafe(shut)
    if tell is not _nothing:
        with suppress(RuntimeError):  # no thread can be started: this process ends
            call_at(0.0, tell)


_closing: set[asyncio.Future[None]] = set()


def bounded(outcome: Outcome, bounds: Bounds, on_end: OnEnd) -> Outcome:
    """Return an outcome that is made in this process, with its waits bounded.

    One that is too long breaks it off with StreamInterrupted. ``on_end`` runs once, however the body ends.
    """
    ending = Ending(on_end)
    close = outcome.close
    whole = weakref.ref(outcome)  # no cycle: a dropped outcome must be found at once

    def usage() -> Usage:
        there = whole()
        return Usage() if there is None else there.usage

    async def aclose() -> None:
        ending("dropped", usage())
        await close()

    outcome.body = _bounded(outcome.body, bounds, lambda end: ending(end, usage()))
    outcome.close = aclose
    _when_forgotten(outcome.body, ending)  # what it reads closes itself when it is dropped
    return outcome


async def _bounded(
    body: AsyncIterator[bytes], bounds: Bounds, on_end: Callable[[End], None]
) -> AsyncIterator[bytes]:
    end: End = "dropped"
    try:
        while True:
            try:
                async with asyncio.timeout(bounds.wait_left()):
                    chunk = await anext(body, None)
            except TimeoutError:
                reason = f"the answer broke off: no more within {bounds.wait()}"
                raise StreamInterrupted(reason, timed_out=True) from None
            if chunk is None:
                end = "complete"
                return
            yield chunk
    except StreamInterrupted:
        end = "broken"
        raise
    finally:
        on_end(end)
