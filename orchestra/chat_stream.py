"""A streamed chat answer, as an application reads it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from orchestra.call import Outcome, read_json
from orchestra.errors import StreamInterrupted
from orchestra.providers.sse import EventSplitter, event_data

if TYPE_CHECKING:
    from orchestra.openai_types import ChatCompletionChunk, CompletionUsage

__all__ = ["ChatStream", "StreamBlock", "error_message"]

DONE = b"[DONE]"


class ChatStream:
    """Iterate it for the text, piece by piece; or iterate `chunks` for the whole chunks, tool calls and all.

    Both read the same answer, once. What is known so far can be asked at any time: ``text``, ``finish_reason``,
    ``usage``, ``model``; ``route`` names who answers. Iteration ends when the answer is complete, and raises
    StreamInterrupted where it breaks off.
    """

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._splitter = EventSplitter()
        self._payloads: deque[bytes] = deque()
        self._complete = False
        self._ended = False
        self._pieces: list[str] = []
        self.route = outcome.route
        self.model = ""
        self.finish_reason: str | None = None
        self.usage: CompletionUsage | None = None

    @property
    def text(self) -> str:
        """The text that has come so far."""
        return "".join(self._pieces)

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        while (chunk := await self._next_chunk()) is not None:
            if chunk.text:
                return chunk.text
        raise StopAsyncIteration

    @property
    async def chunks(self) -> AsyncIterator[ChatCompletionChunk]:
        """The chunks that are still to come."""
        while (chunk := await self._next_chunk()) is not None:
            yield chunk

    async def _next_chunk(self) -> ChatCompletionChunk | None:
        while self._payloads or not self._ended:
            if not self._payloads:
                await self._receive()
            elif (payload := self._payloads.popleft()) == DONE:
                self._complete = True  # and read on to the body's end, so that its connection can be used again
            elif not self._complete:
                chunk = self._read_chunk(payload)
                self._note(chunk)
                return chunk
        if not self._complete and self.finish_reason is None:
            raise StreamInterrupted(f"the answer from {self.route} broke off before its end")
        return None

    async def _receive(self) -> None:
        data = await anext(self._outcome.body, None)
        self._ended = data is None
        events = [self._splitter.rest()] if data is None else self._splitter.feed(data)
        self._payloads.extend(payload for event in events if (payload := event_data(event)) is not None)

    def _read_chunk(self, payload: bytes) -> ChatCompletionChunk:
        from orchestra.openai_types import ChatCompletionChunk  # on use: see `Orchestra.chat`

        try:
            return ChatCompletionChunk.model_validate_json(payload)
        except ValidationError:
            message = error_message(payload)
        raise StreamInterrupted(f"the answer from {self.route} broke off: {message}")

    def _note(self, chunk: ChatCompletionChunk) -> None:
        self.model = chunk.model or self.model
        self.usage = chunk.usage or self.usage
        if chunk.text:
            self._pieces.append(chunk.text)
        for choice in chunk.choices:
            if choice.index == 0 and choice.finish_reason is not None:
                self.finish_reason = choice.finish_reason


def error_message(body: bytes) -> str:
    """Return what an error's body says, shortened, in whichever of the usual forms it says it."""
    try:
        value: Any = read_json(body)
    except ValueError:
        value = body.decode(errors="replace")
    if isinstance(value, list) and value:
        value = value[0]
    for key in ("error", "message"):
        if isinstance(value, dict) and value.get(key):
            value = value[key]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 500 else text[:500] + "..."


class StreamBlock:
    """The ``async with`` block in which a `ChatStream` is read. Leaving it ends the request.

    No asynchronous generator: a loop that shuts down ends all of those at once, the inner with the outer ones.
    """

    def __init__(self, ask: Callable[[], Awaitable[Outcome]]) -> None:
        self._ask = ask
        self._outcome: Outcome | None = None

    async def __aenter__(self) -> ChatStream:
        if self._outcome is not None:
            raise RuntimeError("a stream is entered once: ask for another one")
        self._outcome = await self._ask()
        return ChatStream(self._outcome)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._outcome is not None:
            await self._outcome.aclose()
