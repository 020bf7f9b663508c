"""The same core for callers that block: their requests run on a loop that the Orchestra owns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import suppress

from orchestra.call import Body, Headers, Outcome
from orchestra.errors import ConnectionFailed, StreamInterrupted
from orchestra.transports.core import TransportCore
from orchestra.transports.loop_thread import Caller, LoopEnded, LoopThread, Session

__all__ = ["BlockingCore", "BlockingOutcome"]


class BlockingCore:
    """A `TransportCore` for any number of threads, whether or not a loop runs in them.

    A call blocks its thread, and so the loop that may run there. Its context variables are those of the thread.
    """

    def __init__(self, core: TransportCore, loop: LoopThread) -> None:
        self._core = core
        self._loop = loop

    def handle(
        self,
        method: str,
        url: str,
        headers: Headers,
        body: bytes | Iterable[bytes],
        timeouts: Mapping[str, float | None],
    ) -> BlockingOutcome:
        """As `TransportCore.handle`. A streamed ``body`` is iterated in this thread."""
        session = self._loop.session()

        async def work(caller: Caller) -> BlockingOutcome:
            content: Body = body if isinstance(body, bytes) else _lent(body, caller)
            outcome = await self._core.handle(method, url, headers, content, timeouts)
            return BlockingOutcome(outcome, session)

        try:
            return session.run(work, drop=BlockingOutcome.aclose)
        except LoopEnded:
            raise ConnectionFailed("the Orchestra was closed while it answered", sent=True) from None


class BlockingOutcome:
    """An answer. Whoever holds it ends it, by iterating it to the end or by `close`; both may be done again."""

    def __init__(self, outcome: Outcome, session: Session) -> None:
        self.status = outcome.status
        self.headers = outcome.headers
        self._outcome = outcome
        self._session = session
        self._over = False
        session.open.add(self)

    def __iter__(self) -> Iterator[bytes]:
        try:
            while (chunk := self._session.run(self._read)) is not None:
                yield chunk
        except LoopEnded:
            raise StreamInterrupted("the Orchestra was closed while it answered") from None

    def close(self) -> None:
        """End the answer, and what is under way for it."""
        if not self._over and not self._session.close_from_within(self):
            with suppress(LoopEnded):  # and what was under way with it
                self._session.run(lambda caller: self.aclose())

    async def aclose(self) -> None:
        """As `close`, on the loop that it lives on."""
        self._over = True
        self._session.open.discard(self)
        await self._outcome.aclose()

    async def _read(self, caller: Caller) -> bytes | None:
        chunk = None if self._over else await anext(self._outcome.body, None)
        if chunk is None:
            await self.aclose()
        return chunk


async def _lent(body: Iterable[bytes], caller: Caller) -> AsyncIterator[bytes]:
    """Yield what ``body`` yields in the caller's own thread, where whatever it reads from may be at home."""
    chunks = iter(body)
    while (chunk := await caller.do(lambda: next(chunks, None))) is not None:
        yield chunk
