"""An engine in this process, by its speed alone: who waits, who runs, and how long a step takes with so many.

All that run have a token a step, so what each still needs is counted in steps, on one clock that goes as fast as
steps do. A prompt is computed first, beside the steps of the others, and by itself.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from orchestra.call import Call, Outcome, Usage
from orchestra.policies.traffic import TrafficClass
from orchestra.simulate.engine_speed import EngineSpeed
from orchestra.simulate.wording import answer, told_in

__all__ = ["SimulatedEngine"]

_JSON = (("content-type", "application/json"),)
_DUE = 1e-9


class SimulatedEngine:
    """Answers calls as ``local/name``. Interactive calls begin before bulk, each class in its order."""

    def __init__(self, name: str, speed: EngineSpeed) -> None:
        self.name = name
        self._speed = speed
        self._numbers = itertools.count()
        self._free = speed.slots
        self._waiting: list[tuple[bool, int, asyncio.Future[None]]] = []  # a heap
        self._steps = 0.0  # done since the beginning
        self._looked_at = 0.0
        self._running: list[tuple[float, int, asyncio.Future[None]]] = []  # a heap, by the step at which each ends
        self._alarm: asyncio.TimerHandle | None = None
        self.busy_seconds = 0.0
        """Seconds in which at least one request was being decoded."""

    async def send(self, call: Call, tell: Callable[..., None] | None = None) -> Outcome:
        """Answer a call, and ``tell`` of its way through the queue."""
        payload = call.payload or {}
        told = told_in(payload)
        if tell is not None:
            tell("queued")
        waited = await self._begin(call.traffic)
        try:
            if tell is not None:
                tell("admitted", waited=waited)
            await asyncio.sleep(told.prompt / self._speed.prefill)
            await self._decode(told.output)
        finally:
            self._end()
        body = answer(urlsplit(call.url).path, payload, told)
        usage = Usage(told.prompt, told.output, certainty="known")
        return Outcome(200, _JSON, _once(body), f"local/{self.name}", usage)

    async def aclose(self) -> None:
        """There is nothing to free."""

    def snapshot(self) -> Mapping[str, Any]:
        return {"state": "running", "waiting": len(self._waiting), "running": self._speed.slots - self._free}

    async def _begin(self, traffic: TrafficClass) -> float:
        """Wait for a place. Returns how long that took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if self._free:
            self._free -= 1
            return 0.0
        place: asyncio.Future[None] = loop.create_future()
        heapq.heappush(self._waiting, (traffic is TrafficClass.BULK, next(self._numbers), place))
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                self._end()  # it was given away and given up at once
            raise
        return loop.time() - began

    def _end(self) -> None:
        """Hand a place on, or free it."""
        while self._waiting:
            *_, place = heapq.heappop(self._waiting)
            if not place.done():
                place.set_result(None)
                return
        self._free += 1

    async def _decode(self, tokens: int) -> None:
        self._look()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        one = (self._steps + tokens, next(self._numbers), done)
        heapq.heappush(self._running, one)
        self._set_alarm()
        try:
            await done
        except asyncio.CancelledError:
            self._look()
            if one in self._running:
                self._running.remove(one)
                heapq.heapify(self._running)
            self._set_alarm()
            raise

    def _look(self) -> None:
        """Count the steps that were done since the last look."""
        now = asyncio.get_running_loop().time()
        if self._running:
            self._steps += (now - self._looked_at) / self._speed.step(len(self._running))
            self.busy_seconds += now - self._looked_at
        self._looked_at = now

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._running:
            wait = (self._running[0][0] - self._steps) * self._speed.step(len(self._running))
            self._alarm = asyncio.get_running_loop().call_later(max(0.0, wait), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._look()
        while self._running and self._running[0][0] <= self._steps + _DUE:
            *_, done = heapq.heappop(self._running)
            if not done.done():
                done.set_result(None)
        self._set_alarm()


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body
