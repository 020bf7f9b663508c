"""An engine that answers from a script. Its pieces come when the test lets them."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from orchestra.localengine.errors import PromptTooLong
from orchestra.localengine.request import Completion, Delta, FinishReason, Timing, Usage

USAGE = Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=1)
TIMING = Timing(queue=0.0, ttft=0.0, tokens=(0.0, 0.1))


@dataclass
class FakeEngine:
    """``pieces`` are streamed one delta each; an exception among them is raised instead. None waits for ever.

    The answer ends by ``reason``, and by the stop string ``stop`` where there is one.
    """

    pieces: list[str | Exception | None] = field(default_factory=lambda: ["Yel", "low."])
    asked: list[tuple[Any, Any, str]] = field(default_factory=list)
    salts: list[str | None] = field(default_factory=list)
    asked_for: asyncio.Event = field(default_factory=asyncio.Event)
    starts: list[Exception] = field(default_factory=list)
    reason: FinishReason = "stop"
    stop: str | None = None
    open_streams: int = 0
    closed: bool = False

    async def start(self) -> None:
        if self.starts:
            raise self.starts.pop(0)

    def stream(
        self, prompt: Any, sampling: Any, *, traffic: str, cache_salt: str | None, on_event: Any = None
    ) -> "FakeStream":
        self.asked.append((prompt, sampling, traffic))
        self.salts.append(cache_salt)
        return FakeStream(self)

    async def complete(
        self, prompt: Any, sampling: Any, *, traffic: str, cache_salt: str | None, on_event: Any = None
    ) -> Completion:
        async with self.stream(prompt, sampling, traffic=traffic, cache_salt=cache_salt) as deltas:
            text = [delta.text async for delta in deltas]
        return Completion("".join(text), (1, 2), self.reason, USAGE, TIMING, self.stop)

    def check(self, prompt: Any, sampling: Any, *, traffic: str) -> None:
        if sum(len(message["content"]) for message in prompt) > 100:
            raise PromptTooLong("too long")

    def encode(self, prompt: Any) -> list[int]:
        return [1] * USAGE.prompt_tokens

    def stats(self) -> Any:
        return {"state": "stopped" if self.closed else "running"}

    async def close(self) -> None:
        self.closed = True


class FakeStream:
    """As the engine's: closed at its end, by `aclose`, by cancelling a read, and when dropped."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._number = 0
        self._open = False

    def __aiter__(self) -> "FakeStream":
        return self

    async def __anext__(self) -> Delta:
        if self._number == 0:
            self._open = True
            self._engine.open_streams += 1
            self._engine.asked_for.set()
        elif not self._open:
            raise StopAsyncIteration
        try:
            await asyncio.sleep(0)
            piece = self._engine.pieces[self._number]
            if piece is None:
                await asyncio.Event().wait()
            if isinstance(piece, Exception):
                raise piece
        except BaseException:
            await self.aclose()
            raise
        assert piece is not None
        self._number += 1
        if self._number < len(self._engine.pieces):
            return Delta(piece, (self._number,))
        await self.aclose()
        return Delta(piece, (self._number,), self._engine.reason, USAGE, TIMING, self._engine.stop)

    async def __aenter__(self) -> "FakeStream":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        self.__del__()

    def __del__(self) -> None:
        if self._open:
            self._open = False
            self._engine.open_streams -= 1
