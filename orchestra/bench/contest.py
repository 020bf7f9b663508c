"""Goes round by round through the ways to serve one load, and knows at any time what was found so far."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

from orchestra.bench.load.arrivals import Arrivals
from orchestra.bench.load.burst import Burst
from orchestra.bench.load.clock import Clock, LoopClock
from orchestra.bench.load.generator import LoadRun, Phases
from orchestra.bench.load.target import Target, printable
from orchestra.bench.load.workload import Request, Shape
from orchestra.bench.report.comparison_report import ComparisonReport
from orchestra.bench.report.table import short
from orchestra.bench.results.comparison import compare
from orchestra.bench.results.measurement import Ended, Measurement
from orchestra.bench.results.slo import Slo
from orchestra.bench.results.way import Way, turns
from orchestra.clock import wall
from orchestra.errors import CallError, InputError
from orchestra.lengths import Lengths

__all__ = ["Calls", "Contest"]

_ALONE = 8  # calls
_FILL = 8.0  # seconds in which a full batch is measured, at most
_LONGEST_ALONE = 60.0
_WARM = Shape(Lengths.parse("8"), Lengths.parse("12"))
_WARM_CALLS = 5
_ROUNDS = 3  # that are to fit into the time: with two, the bounds are wide
# all ways take so many times as long as one engine flat out: two pools and static batches lose much of it
_SLOWNESS = 6.5
_SHORTEST, _LONGEST = 4.0, 40.0  # seconds of a load, flat out: beyond, more rounds tell more than longer ones
_AGAIN = 1.1  # times the longest round, for another to begin
_STEP = 0.05  # seconds, to which a promise is rounded up


@dataclass(frozen=True, slots=True)
class Calls:
    """Who asks: both kinds of calls, how interactive ones come, and how many a second (None: see `Burst`)."""

    interactive: Shape
    bulk: Shape
    arrivals: Arrivals = field(default_factory=Arrivals)
    rate: float | None = None
    seed: int = 0


class Contest:
    """The same load through each `Way`, in turn, in as many rounds as fit into ``limit`` seconds.

    ``open_way`` opens a way; `Way.ONE_QUEUE` is opened first. On it some interactive calls are measured alone, and
    how fast a full batch is, from which the load is sized: three rounds of it are to fit. ``slots`` tells how many
    calls an engine runs at once, after the first way was opened.

    ``slo`` is what interactive calls are promised. Without it that follows from ``targets``, the engine's for TTFT
    and TPOT in seconds: a call waits for a step of that TTFT at most, beyond what the slowest took alone.

    `report` may be called at any time, also after the run was cancelled: whole rounds count. ``say`` is told a
    sentence when something begins or ends. ``nonce`` makes the words of its prompts unlike those of any other run.
    """

    def __init__(
        self,
        name: str,
        open_way: Callable[[Way], AbstractAsyncContextManager[Target]],
        slots: Callable[[], int],
        calls: Calls,
        *,
        limit: float,
        targets: tuple[float, float],
        slo: Slo | None = None,
        clock: Clock | None = None,
        nonce: str | None = None,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._name = name
        self._open_way = open_way
        self._slots = slots
        self._calls = calls
        self._limit = limit
        self._targets = targets
        self._slo = slo
        self._clock = clock or LoopClock()
        self._nonce = secrets.token_hex(4) if nonce is None else nonce
        self._say = say
        self._started = wall()
        self._load: Burst | None = None
        self._alone: list[Measurement] = []
        self._full_batch = 0.0
        self._rounds: list[dict[Way, list[Measurement]]] = []
        self._seconds: list[float] = []  # of each round
        self._over = False
        self._failure: str | None = None

    async def run(self) -> None:
        """Measure until the time is up.

        Raises CallError where a call is not answered before a round is whole; after that, the report tells of it.
        Raises InputError where interactive calls are to come so seldom that no round fits into the time.
        """
        try:
            # which cancels once, and not what closes the engines then
            async with asyncio.timeout(self._limit) as bound:
                await self._measure()
        except TimeoutError:
            if not bound.expired():
                raise
            self._say("the time is up in the midst of it, and what is not a whole round does not count")
        except CallError as error:
            if not self._rounds:
                raise
            self._failure = str(error)
            self._say(self._failure)
        self._over = True

    async def _measure(self) -> None:
        began = self._clock()
        opening = await self._prepare()
        left = self._limit - (self._clock() - began)
        overhead = (len(Way) + 1) * opening
        seconds = (left / _ROUNDS - overhead) / _SLOWNESS
        self._load = load = Burst.sized(
            self._calls.interactive,
            self._calls.bulk,
            tokens_per_s=self._full_batch,
            seconds=min(_LONGEST, max(_SHORTEST, seconds)),
            slots=self._slots(),
            rate=self._calls.rate,
            arrivals=self._calls.arrivals,
            seed=self._calls.seed,
        )
        self._say(
            f"a round: {load.bulk_calls} bulk calls at once, and {load.interactive_calls} interactive ones in "
            f"{load.span:.0f} s; through {len(Way)} ways"
        )
        if self._calls.rate is not None and len(Way) * load.span > left:
            least = len(Way) * load.interactive_calls / left
            raise InputError(
                f"at {self._calls.rate:g} interactive calls a second no round fits into the time: ask for "
                f"{least:.2g} a second or more, or give it more --minutes"
            )
        while _AGAIN * max(self._seconds, default=0.0) < self._limit - (self._clock() - began):
            await self._round(load, len(self._rounds))

    async def _prepare(self) -> float:
        """Measure calls alone and a full batch. Returns how long it took to have an engine."""
        began = self._clock()
        self._say("one engine: some calls alone, then a full batch")
        async with self._open_way(Way.ONE_QUEUE) as target:
            await self._warm(target)
            opening = self._clock() - began
            calls = self._calls
            few = Burst(calls.interactive, calls.bulk, _ALONE, 2 * self._slots(), 1.0, seed=calls.seed)
            requests = few.requests(-1, f"{self._nonce} alone")
            until = self._clock() + _LONGEST_ALONE
            for request in requests[few.bulk_calls :]:
                self._alone += await self._answers(target, [replace(request, at=0.0)])
                if self._clock() > until:
                    break
            run = LoadRun(target, Phases(0.0, 1e-3, _FILL), self._clock)
            await run.run(requests[: few.bulk_calls])
            self._full_batch = self._speed(target, run.measurements())
        if self._slo is None:
            self._slo = self._promise()
        self._say(f"    a full batch: {short(self._full_batch)} tokens/s; promised: {self._slo}")
        return opening

    def _speed(self, target: Target, calls: Sequence[Measurement]) -> float:
        """Return the output tokens a second from the first on, while it was full."""
        self._require(target, calls, Ended.ANSWERED, Ended.UNFINISHED)
        first = min((call.chunks[0] for call in calls if call.chunks), default=math.inf)
        ended = [call.end for call in calls if call.ended is Ended.ANSWERED]
        # with half of the calls answered nobody waits any longer, and slots are empty from there on
        end = sorted(ended)[len(calls) // 2 - 1] if len(ended) >= len(calls) // 2 else _FILL
        tokens = sum(call.output_within(first, end) for call in calls)
        if first >= end or not tokens:
            raise CallError(f"{self._name} had no output in {_FILL:g} s: it is too slow to compare anything")
        return tokens / (end - first)

    def _promise(self) -> Slo:
        step, tpot = self._targets
        slowest = max((call.ttft or 0.0 for call in self._alone), default=0.0)
        return Slo(ttft=round(math.ceil((slowest + step) / _STEP) * _STEP, 3), tpot=tpot)

    async def _warm(self, target: Target) -> None:
        """Ask a little: the first steps of an engine are slow, and it has yet to learn how long a step takes."""
        few = Burst(_WARM, _WARM, 1, _WARM_CALLS - 1, 1.0)
        requests = few.requests(-2, f"{self._nonce} warm")
        await self._answers(target, [replace(request, at=0.0) for request in requests])

    async def _round(self, load: Burst, number: int) -> None:
        began = self._clock()
        found: dict[Way, list[Measurement]] = {}
        for way in turns(number):
            self._say(f"round {number + 1}: {way}")
            async with self._open_way(way) as target:
                await self._warm(target)
                calls = await self._answers(target, load.requests(number, f"{self._nonce} {number}"))
            found[way] = calls
            last = max(call.end for call in calls)
            speed = sum(call.output_tokens for call in calls) / last
            self._say(f"    all answered after {short(last)} s, {short(speed)} tokens/s")
        self._rounds.append(found)
        self._seconds.append(self._clock() - began)

    async def _answers(self, target: Target, requests: Sequence[Request]) -> list[Measurement]:
        """Send each at its instant and wait for all answers."""
        run = LoadRun(target, Phases(0.0, requests[-1].at + 1e-3, self._limit), self._clock)
        await run.run(requests)
        calls = run.measurements()
        self._require(target, calls, Ended.ANSWERED)
        return calls

    def _require(self, target: Target, calls: Sequence[Measurement], *ends: Ended) -> None:
        bad = next((call for call in calls if call.ended not in ends), None)
        if bad is not None:
            why = bad.reason or f"not in {self._limit:g} s"
            raise CallError(f"{self._name}, {target.name}: a call was not answered: {why}")

    def report(self, settings: Mapping[str, str] | None = None) -> ComparisonReport:
        """Return what was found so far. ``settings`` are told as they are."""
        slo, load = self._slo, self._load
        found = None
        if slo is not None and load is not None and self._rounds:
            found = compare(
                self._rounds,
                self._alone,
                slo=slo,
                span=load.span,
                full_batch=self._full_batch,
                seed=self._calls.seed,
            )
        told = {
            **({} if load is None else load.describe()),
            "words of this run": self._nonce,
            "calls alone": f"{len(self._alone)}, interactive",
            **(settings or {}),
        }
        return ComparisonReport(
            target=printable(self._name),
            settings={key: printable(value) for key, value in told.items()},
            started=self._started,
            slo=slo,
            found=found,
            interrupted=not self._over,
            failure=None if self._failure is None else printable(self._failure),
        )
