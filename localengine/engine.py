"""The engine as an application holds it."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Literal, Self

from orchestra.localengine.config import EngineConfig
from orchestra.localengine.errors import EngineClosed
from orchestra.localengine.events import EventBus, Subscriber
from orchestra.localengine.request import Completion, Delta, Prompt, SamplingParams
from orchestra.localengine.service.intake import encode, is_quick, take_in
from orchestra.localengine.service.loading import LoadedModel, model_opener
from orchestra.localengine.service.own_process import is_own_process, require_own_process
from orchestra.localengine.service.stream import DeltaStream, Ticket
from orchestra.localengine.service.worker import Worker
from orchestra.localengine.step_record import StepRecord
from orchestra.policies.traffic import TrafficClass

__all__ = ["LocalEngine"]

Traffic = TrafficClass | Literal["interactive", "bulk"]


class LocalEngine:
    """Answers prompts from a model in this process, interactive requests before bulk ones.

    ::

        async with LocalEngine.load("smollm2-135m") as engine:
            async for delta in engine.stream("Once upon a time", SamplingParams(max_tokens=64)):
                print(delta.text, end="")

    ``open_model`` is called in the worker thread and returns the model to serve. Any number of tasks, in any
    number of event loops and threads, may use one engine. It starts with ``async with``, `start`, or the first
    request; after `close`, or after it died, `start` starts it again. A process that was forked from one in which
    an engine ran can use none (EngineForked): fork first, or start processes by the 'spawn' method.
    """

    def __init__(
        self, open_model: Callable[[EngineConfig], LoadedModel], config: EngineConfig | None = None
    ) -> None:
        self.config = config or EngineConfig()
        self._open_model = open_model
        self._lock = threading.Lock()
        self._events = EventBus()
        self._worker: Worker | None = None
        self._numbers = itertools.count()

    @classmethod
    def load(cls, weights: str, config: EngineConfig | None = None) -> LocalEngine:
        """An engine for ``weights``: a known model's name, or the path of a GGUF file.

        Returns at once; the file is read when the engine starts. Raises ModelFileError where there is no such
        file.
        """
        return cls(model_opener(weights), config)

    async def start(self) -> None:
        """Load the model, unless that is done. Several may wait; whoever gives up leaves the others alone.

        Raises ModelFileError, or EngineDied where the model could not be loaded for another reason.
        """
        await self._ready(self._running_worker(restart=True))

    async def close(self, drain: bool = False) -> None:
        """Take no more requests, and end: those at hand are finished (``drain``) or get EngineClosed.

        Returns when the worker has ended and the model's memory is free. May be called again, and from any event
        loop. In a forked process there is nothing to end: the engine is its parent's.
        """
        worker = self._worker
        if worker is not None and is_own_process():
            worker.stop(drain=drain)
            await asyncio.to_thread(worker.join)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            if self._worker is not None:
                self._worker.stop()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        traffic: Traffic = "interactive",
        cache_salt: str | None = None,
        on_event: Subscriber | None = None,
    ) -> DeltaStream:
        """Stream an answer, delta by delta.

        Requests that begin alike share what was computed for them, among those of one ``cache_salt``: give each
        tenant its own where the time of an answer must not tell what another asked. ``on_event`` is called with
        each `RequestEvent` of this request, as a subscriber of `events` would be.

        The first read raises PromptError (PromptTooLong) where the prompt can never be served, EngineBusy where
        the waiting queue is full; any read raises EngineClosed or EngineDied where the engine ended.
        """
        params, kind = sampling or SamplingParams(), TrafficClass(traffic)

        async def submit() -> Ticket:
            return await self._submit(prompt, params, kind, cache_salt, on_event)

        return DeltaStream(submit)

    async def complete(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        traffic: Traffic = "interactive",
        cache_salt: str | None = None,
        on_event: Subscriber | None = None,
    ) -> Completion:
        """A whole answer, asked for and raising as `stream` does."""
        parts: list[list[Delta]] = [[] for _ in range(sampling.n if sampling else 1)]
        stream = self.stream(prompt, sampling, traffic=traffic, cache_salt=cache_salt, on_event=on_event)
        async with stream as deltas:
            async for delta in deltas:
                parts[delta.index].append(delta)
        first, *others = map(_whole, parts)
        return replace(first, others=tuple(others)) if others else first

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids that a prompt is served as: their number is what it costs.

        Takes about a millisecond per thousand tokens. Raises PromptError, and EngineClosed before the start.
        """
        return encode(self._serving()[1], prompt)

    def check(
        self, prompt: Prompt, sampling: SamplingParams | None = None, *, traffic: Traffic = "interactive"
    ) -> None:
        """Raise what `stream` would where the prompt can never be served. Raises EngineClosed before the start."""
        worker, model = self._serving()
        take_in(model, worker.capacity(TrafficClass(traffic)), prompt, sampling or SamplingParams())

    def _serving(self) -> tuple[Worker, LoadedModel]:
        require_own_process()
        worker = self._worker
        if worker is None or worker.ended or not worker.ready.done():
            raise EngineClosed("the engine has no model yet: start it first (async with engine)")
        return worker, worker.ready.result()

    @property
    def events(self) -> EventBus:
        """What happens to the engine and its requests, as it happens::

            stop = engine.events.subscribe(lambda event: print(event))

        See `orchestra.localengine.events` for what is told.
        """
        return self._events

    def stats(self) -> dict[str, Any]:
        """Plain data about the engine now, counters since its start, and its latest figures.

        `Worker.stats` and `Telemetry.stats` say what there is.
        """
        if not is_own_process():
            return {"state": "forked"}
        worker = self._worker
        if worker is None or worker.ended or not worker.ready.done():
            return {"state": "loading" if worker is not None and not worker.ended else "stopped"}
        model = worker.ready.result()
        return {
            "state": "running",
            "model": model.name,
            "context": model.context,
            "threads": model.threads,
            "device": model.device,
            **worker.stats(),
        }

    def steps(self) -> list[StepRecord]:
        """The latest steps (up to 16,384), oldest first: how full they were, for whom, and how long they took."""
        worker = self._worker
        return worker.telemetry.history() if worker is not None and is_own_process() else []

    async def _submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        traffic: TrafficClass,
        cache_salt: str | None,
        on_event: Subscriber | None,
    ) -> Ticket:
        submitted = time.monotonic()
        worker = self._running_worker(restart=False)
        model = await self._ready(worker)
        task = functools.partial(take_in, model, worker.capacity(traffic), prompt, params)
        intake = task() if is_quick(prompt, params) else await asyncio.to_thread(task)
        numbers = [next(self._numbers) for _ in range(params.n)]
        generations = intake.generations(model, numbers, traffic, submitted, cache_salt, on_event)
        worker.submit(generations)
        return Ticket(generations[0].buffer, functools.partial(self._cancel, worker, numbers))

    def _cancel(self, worker: Worker, request_ids: Sequence[int]) -> None:
        # bound to the engine, so that an engine lives as long as its streams
        for request_id in request_ids:
            worker.cancel(request_id)

    def _running_worker(self, *, restart: bool) -> Worker:
        require_own_process()
        with self._lock:
            if self._worker is None or (restart and (self._worker.ended or self._worker.stopping)):
                self._worker = Worker(self._open_model, self.config, self._events)
                weakref.finalize(self, _stop, weakref.ref(self._worker)).atexit = False
            return self._worker

    async def _ready(self, worker: Worker) -> LoadedModel:
        try:
            return await asyncio.shield(asyncio.wrap_future(worker.ready))
        except Exception:
            with self._lock:
                if self._worker is worker:
                    self._worker = None  # so that the next request tries again
            raise


def _stop(worker: weakref.ref[Worker]) -> None:
    if (alive := worker()) is not None:
        alive.stop()


def _whole(parts: Sequence[Delta]) -> Completion:
    """One completion from all its deltas."""
    last = parts[-1] if parts else None
    if last is None or last.finish_reason is None or last.usage is None or last.timing is None:
        raise RuntimeError("the stream ended without its last delta")
    return Completion(
        "".join(part.text for part in parts),
        tuple(chain.from_iterable(part.token_ids for part in parts)),
        last.finish_reason,
        last.usage,
        last.timing,
        last.stop,
        None if last.logprobs is None else tuple(chain.from_iterable(part.logprobs or () for part in parts)),
        parts[0].prompt_logprobs,
        tuple(chain.from_iterable(part.tool_calls for part in parts)),
    )
