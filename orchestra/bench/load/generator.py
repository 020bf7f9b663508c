"""Sends calls at their instants, answered or not, and notes what becomes of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import anyio

from orchestra.bench.load.clock import Clock
from orchestra.bench.load.target import Answer, Target, ended_by
from orchestra.bench.load.workload import Request
from orchestra.bench.results.figures import Window
from orchestra.bench.results.measurement import Ended, Measurement
from orchestra.errors import OrchestraError

__all__ = ["LoadRun", "Phases"]


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds: ``warm_up`` under load that does not count, ``seconds`` that do, and at most ``drain`` after that
    until calls that are still under way are given up."""

    warm_up: float = 5.0
    seconds: float = 30.0
    drain: float = 60.0


@dataclass(slots=True)
class _UnderWay:
    request: Request
    sent: float | None = None
    chunks: list[float] = field(default_factory=list)


class LoadRun:
    """One load on one target. What was measured so far can be asked at any time, also after a cancellation."""

    def __init__(self, target: Target, phases: Phases, clock: Clock) -> None:
        self._target = target
        self._phases = phases
        self._clock = clock
        self._began = 0.0
        self._stopped: float | None = None  # when calls ceased to come
        self._ended: float | None = None
        self.whole = False
        """Whether it went to its end, and was not cut short."""
        self.exhausted = False
        """Whether the load had no call left."""
        self._under_way: dict[int, _UnderWay] = {}
        self._done: list[Measurement] = []
        self.counts_pieces = False
        """Whether an answer told no usage, so that pieces were counted for tokens."""

    async def run(self, requests: Iterable[Request]) -> None:
        """Send until the window is over or no call is left, then wait for the answers."""
        self._began = self._clock()
        until = self._phases.warm_up + self._phases.seconds
        try:
            async with anyio.create_task_group() as waiting:
                async with anyio.create_task_group() as calls:
                    last, sent = 0.0, 0
                    for request in requests:
                        if request.at >= until:
                            break
                        await self._clock.sleep(max(0.0, request.at - self._now()))
                        # noted here and not in its task: what was cancelled before it began was asked as well
                        self._under_way[request.number] = under_way = _UnderWay(request)
                        calls.start_soon(self._call, under_way)
                        last, sent = request.at, sent + 1
                    else:  # a trace is over, a gap after its last call
                        self.exhausted = True
                        until = min(until, last + last / max(sent - 1, 1))
                    await self._clock.sleep(max(0.0, until - self._now()))
                    self._stopped = until  # and not now: a generator that is late makes no longer window
                    waiting.start_soon(self._give_up, calls.cancel_scope)
                waiting.cancel_scope.cancel()
            self.whole = True
        finally:
            self._ended = self._now()

    async def _give_up(self, calls: anyio.CancelScope) -> None:
        await self._clock.sleep(self._phases.drain)
        calls.cancel()

    async def _call(self, under_way: _UnderWay) -> None:
        under_way.sent = self._now()
        try:
            answer = await self._target.ask(under_way.request, lambda: under_way.chunks.append(self._now()))
        except OrchestraError as error:
            self._end(under_way, ended_by(error), reason=self._target.tell(error))
        else:
            self.counts_pieces |= not answer.told
            self._end(under_way, Ended.ANSWERED, answer)

    def _end(
        self, under_way: _UnderWay, ended: Ended, answer: Answer | None = None, reason: str | None = None
    ) -> None:
        del self._under_way[under_way.request.number]
        self._done.append(self._measured(under_way, ended, self._now(), answer, reason))

    def _measured(
        self, under_way: _UnderWay, ended: Ended, end: float, answer: Answer | None, reason: str | None
    ) -> Measurement:
        request, chunks = under_way.request, tuple(under_way.chunks)
        return Measurement(
            traffic=request.traffic,
            intended=request.at,
            sent=end if under_way.sent is None else under_way.sent,
            end=end,
            ended=ended,
            chunks=chunks,
            prompt_tokens=0 if answer is None else answer.prompt_tokens,
            output_tokens=len(chunks) if answer is None else answer.output_tokens,
            usd=None if answer is None else answer.usd,
            reason=reason,
            cached_tokens=0 if answer is None else answer.cached_tokens,
            hidden_tokens=0 if answer is None else answer.hidden_tokens,
        )

    def measurements(self) -> list[Measurement]:
        """Return every call so far; those under way are unfinished, and took until now, or until the end."""
        last = self._last()
        left = [self._measured(one, Ended.UNFINISHED, last, None, None) for one in self._under_way.values()]
        return [*self._done, *left]

    @property
    def window(self) -> Window | None:
        """The part that counts; None where the run ended before.

        Where the run was cut short, so is the window: before the oldest call that was under way, since only up to
        there all have ended as they would have. A call that waited for half of the time and more cuts nothing: it
        is late whatever would have come.
        """
        start = self._phases.warm_up
        end = self._stopped if self._stopped is not None else self._last()
        if not self.whole:
            oldest = min((one.request.at for one in self._under_way.values()), default=end)
            if oldest - start > (end - start) / 2:
                end = min(end, oldest)
        return Window(start, end) if end > start else None

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def _last(self) -> float:
        """Return until when it is known what happened: now, or the end."""
        return self._now() if self._ended is None else self._ended

    def _now(self) -> float:
        return self._clock() - self._began
