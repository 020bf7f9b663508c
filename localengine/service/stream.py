"""The way of an answer from the worker thread to its reader, in whatever event loop that reads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain

from orchestra.localengine.errors import EngineError
from orchestra.localengine.request import Delta
from orchestra.localengine.service.own_process import require_own_process

__all__ = ["DeltaBuffer", "DeltaStream", "Ticket", "waking_together"]

_Future = asyncio.Future[None]


class DeltaBuffer:
    """One writer (any thread), one reader (any event loop). What the reader has not taken becomes one delta.

    So it never holds more than one request's output, however slow the reader. With ``n`` completions, what came
    of each becomes a delta of its own.
    """

    def __init__(self, n: int = 1) -> None:
        # reentrant: the garbage collector may end a dropped read anywhere, even inside a `put` of the same thread
        self._lock = threading.RLock()
        self._pending: dict[int, list[Delta]] = {}  # by completion, whichever came first
        self._unfinished = n
        self._error: EngineError | None = None
        self._over = False  # the reader has taken the end, or wants no more
        self._reader: tuple[asyncio.AbstractEventLoop, _Future] | None = None

    @property
    def over(self) -> bool:
        """Nothing is delivered from here on: the reader has taken the end, or wants no more."""
        return self._over

    def put(self, delta: Delta) -> None:
        """Add a token and the text that became final with it. None of a completion may follow its last delta."""
        with self._lock:
            self._pending.setdefault(delta.index, []).append(delta)
            if delta.finish_reason is not None:
                self._unfinished -= 1
            self._wake()

    def fail(self, error: EngineError) -> None:
        """End with an error. What was put before is still read first."""
        with self._lock:
            if self._unfinished:
                self._error = error
            self._wake()

    def close(self) -> None:
        """The reader wants no more: nothing is delivered from here on."""
        with self._lock:
            self._over = True
            self._wake()

    async def get(self) -> Delta | None:
        """What came since the last call; waits until there is something. None after the end.

        Raises the EngineError that ended the request.
        """
        while True:
            with self._lock:
                if self._over:
                    return None
                if self._pending:
                    return self._take()
                if self._error is not None:
                    self._over = True
                    raise self._error
                if self._reader is not None:
                    raise RuntimeError("two tasks read one stream; each stream has one reader")
                loop = asyncio.get_running_loop()
                future = loop.create_future()
                self._reader = (loop, future)
            try:
                await future
            finally:
                with self._lock:
                    self._reader = None

    def _take(self) -> Delta:
        parts = self._pending.pop(next(iter(self._pending)))
        self._over = not self._unfinished and not self._pending
        if len(parts) == 1:
            return parts[0]
        scored = parts[0].logprobs is not None
        return replace(
            parts[-1],
            text="".join(part.text for part in parts),
            token_ids=tuple(chain.from_iterable(part.token_ids for part in parts)),
            logprobs=tuple(chain.from_iterable(part.logprobs or () for part in parts)) if scored else None,
            prompt_logprobs=parts[0].prompt_logprobs,
            tool_calls=tuple(chain.from_iterable(part.tool_calls for part in parts)),
        )

    def _wake(self) -> None:
        if self._reader is not None:
            loop, future = self._reader
            if _here.gathered is None:
                _wake_all(loop, (future,))
            else:
                _here.gathered.setdefault(loop, []).append(future)


class _Here(threading.local):
    gathered: dict[asyncio.AbstractEventLoop, list[_Future]] | None = None


_here = _Here()


@contextmanager
def waking_together() -> Iterator[None]:
    """Let all readers for whom this thread puts something be woken at the end, with one call for each event loop.

    Such a call is a write to a socket, and many tokens come at once.
    """
    gathered: dict[asyncio.AbstractEventLoop, list[_Future]] = {}
    _here.gathered = gathered
    try:
        yield
    finally:
        _here.gathered = None
        for loop, futures in gathered.items():
            _wake_all(loop, futures)


def _wake_all(loop: asyncio.AbstractEventLoop, futures: Iterable[_Future]) -> None:
    try:
        loop.call_soon_threadsafe(_resolve, futures)
    except RuntimeError:
        pass  # the readers' loop was closed under them; their streams' finalizers cancel the requests


def _resolve(futures: Iterable[_Future]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request that was submitted: where its answer comes out, and how to give it up (any thread, no lock)."""

    buffer: DeltaBuffer
    cancel: Callable[[], None]


class DeltaStream(AsyncIterator[Delta]):
    """A streamed answer: ``async for delta in stream``. With ``n`` completions, their deltas come in any order.

    The request is submitted by the first read. It is given up, and its memory freed by the next step, when a read
    is cancelled, when the stream is closed (``await stream.aclose()``, or the end of ``async with stream``), and
    when the stream is dropped and collected. After that nothing more is delivered.
    """

    def __init__(self, submit: Callable[[], Awaitable[Ticket]]) -> None:
        self._ticket: Ticket | None = None
        self._submit: Callable[[], Awaitable[Ticket]] | None = submit
        self._closed = False

    def __aiter__(self) -> DeltaStream:
        return self

    async def __anext__(self) -> Delta:
        """Raises the EngineError that refused or ended the request."""
        require_own_process()
        try:
            if self._submit is not None and not self._closed:
                submit, self._submit = self._submit, None
                self._ticket = await submit()
                if self._closed:  # while it was submitted
                    self._give_up()
            delta = await self._ticket.buffer.get() if self._ticket is not None else None
        except BaseException:
            self._give_up()
            raise
        if delta is None:
            raise StopAsyncIteration
        if self._ticket is not None and self._ticket.buffer.over:
            self._ticket = None  # it has ended by itself
        return delta

    async def __aenter__(self) -> DeltaStream:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._give_up()

    async def aclose(self) -> None:
        """Give the request up if it has not ended. A read that waits meanwhile ends. May be called again."""
        self._give_up()

    def _give_up(self) -> None:
        self._closed = True
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            ticket.buffer.close()
            ticket.cancel()

    def __del__(self) -> None:
        # Runs in any thread, perhaps inside a lock that this thread holds: take none.
        if self._ticket is not None:
            self._ticket.cancel()
