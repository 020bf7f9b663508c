"""Engines in this process, asked without anything between: what is measured is how they are scheduled."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestra.bench.load.prompts import messages_of
from orchestra.bench.load.target import Answer, printable
from orchestra.bench.load.workload import Request
from orchestra.bench.results.way import Way
from orchestra.errors import LocalEngineError
from orchestra.policies.traffic import TrafficClass

if TYPE_CHECKING:
    from orchestra.localengine import EngineConfig, LocalEngine
    from orchestra.localengine.config import SchedulerName

__all__ = ["EngineTarget", "EngineWays", "Sizes", "engine_for"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """What one engine has to itself: slots, tokens of a step, and CPU threads."""

    slots: int
    step_tokens: int
    threads: int


_SCHEDULERS: Mapping[Way, SchedulerName] = {
    Way.ONE_QUEUE: "fcfs",
    Way.STATIC: "static",
    Way.POOLS: "fcfs",  # each has one class, and schedules it as an engine does that knows no other
    Way.CLASSES: "classes",
}


def engine_for(way: Way, config: EngineConfig, whole: Sizes | None) -> EngineConfig:
    """Return the settings of the one engine of a way, or of each of the two pools.

    The engines of every way have the same slots, tokens of a step, threads and KV cache together: two pools have
    half of each. ``whole`` are the sizes that one engine came to; None where there was none yet. ``config`` sets
    ``kv_bytes``. Raises ValueError where it is not known what two pools halve.
    """
    config = replace(config, scheduler=_SCHEDULERS[way])
    if way is not Way.POOLS:
        return config if whole is None else replace(config, threads=whole.threads)  # pools change the process's
    if whole is None or config.kv_bytes is None:
        raise ValueError("nobody knows yet what two pools halve: open another way first")
    slots = _half(whole.slots)
    return replace(
        config,
        max_num_seqs=slots,
        step_tokens=max(slots, _half(whole.step_tokens)),
        threads=_half(whole.threads),
        kv_bytes=_half(config.kv_bytes),
        interactive_slots=None,
    )


def _half(size: int) -> int:
    return max(1, size // 2)


class EngineTarget:
    """The engine of each class, greedy, each answer as long as it may be. Prompts go without a chat template."""

    def __init__(self, name: str, engines: Mapping[TrafficClass, LocalEngine]) -> None:
        self.name = name
        self._engines = engines

    async def ask(self, request: Request, came: Callable[[], None]) -> Answer:
        from orchestra.localengine import SamplingParams
        from orchestra.localengine.errors import EngineError

        sampling = SamplingParams(max_tokens=request.output_tokens, temperature=0, ignore_eos=True)
        (message,) = messages_of(request)
        usage = None
        try:
            stream = self._engines[request.traffic].stream(message["content"], sampling, traffic=request.traffic)
            async with stream as deltas:
                async for delta in deltas:
                    if delta.token_ids:
                        came()
                    usage = delta.usage or usage
        except EngineError as error:
            raise LocalEngineError(str(error)) from error
        if usage is None:
            raise LocalEngineError("the answer ended without its usage")
        read, written, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
        return Answer(read, written, cached, told=True, route=self.name)

    def tell(self, error: Exception) -> str:
        return printable(" ".join(str(error).split()))


class EngineWays:
    """Opens the engines of a way, and closes them: only one way holds memory at a time.

    ``open_engine`` makes an engine that reads its weights when it starts. ``config`` sets ``kv_bytes``; its other
    sizes are those that the first engine came to, which must not be one of two pools.
    """

    def __init__(self, open_engine: Callable[[EngineConfig], LocalEngine], config: EngineConfig) -> None:
        self._open_engine = open_engine
        self._config = replace(config, max_waiting=None)  # a refused call would be one that no way has to serve
        self._sizes: Sizes | None = None

    @property
    def slots(self) -> int:
        """Of one engine. Raises ValueError before there was one."""
        if self._sizes is None:
            raise ValueError("no engine was opened yet")
        return self._sizes.slots

    @asynccontextmanager
    async def open(self, way: Way) -> AsyncGenerator[EngineTarget]:
        """Load the weights, once for each engine. Raises LocalEngineError where that fails."""
        from orchestra.localengine.errors import EngineError

        config = engine_for(way, self._config, self._sizes)
        async with AsyncExitStack() as stack:
            try:
                engines = [
                    await stack.enter_async_context(self._open_engine(config))
                    for _ in range(2 if way is Way.POOLS else 1)
                ]
            except EngineError as error:
                raise LocalEngineError(str(error)) from error
            if self._sizes is None:
                told = engines[0].stats()
                self._sizes = Sizes(told["slots"], told["step_tokens"], told["threads"])
            yield EngineTarget(way.value, dict(zip(TrafficClass, itertools.cycle(engines), strict=False)))

    def describe(self) -> dict[str, str]:
        """Return the sizes in plain words, for a report. Empty before an engine was opened."""
        if self._sizes is None:
            return {}
        half = engine_for(Way.POOLS, self._config, self._sizes)
        told = {
            "one engine": (self._sizes.slots, self._sizes.step_tokens, self._sizes.threads, self._config.kv_bytes),
            "each of two pools": (half.max_num_seqs, half.step_tokens, half.threads, half.kv_bytes),
        }
        return {
            name: f"{slots} slots, {tokens} tokens a step, {threads} threads, {(kv or 0) / 2**20:.0f} MiB of KV "
            "cache, and weights of its own"
            for name, (slots, tokens, threads, kv) in told.items()
        }
