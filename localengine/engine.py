"""The engine as an application holds it."""

from __future__ import annotations

import asyncio
import functools
import itertools
import operator
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as AbstractSequence
from typing import Any, Literal, Self, cast

from orchestra.localengine.config import EngineConfig
from orchestra.localengine.errors import EngineClosed, PromptError, PromptTooLong
from orchestra.localengine.generation import Generation
from orchestra.localengine.loading import LoadedModel, model_opener
from orchestra.localengine.request import Completion, Message, Prompt, SamplingParams
from orchestra.localengine.sequence import Sequence
from orchestra.localengine.stream import DeltaBuffer, DeltaStream, Ticket
from orchestra.localengine.worker import StepRecord, Worker
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
    request; after `close`, or after it died, `start` starts it again.
    """

    def __init__(
        self, open_model: Callable[[EngineConfig], LoadedModel], config: EngineConfig | None = None
    ) -> None:
        self.config = config or EngineConfig()
        self._open_model = open_model
        self._lock = threading.Lock()
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

        Returns when the worker has ended and the model's memory is free. May be called again.
        """
        with self._lock:
            worker = self._worker
        if worker is not None:
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
        self, prompt: Prompt, sampling: SamplingParams | None = None, *, traffic: Traffic = "interactive"
    ) -> DeltaStream:
        """Stream an answer, delta by delta.

        The first read raises PromptError (PromptTooLong) where the prompt can never be served, EngineBusy where
        the waiting queue is full; any read raises EngineClosed or EngineDied where the engine ended.
        """
        params, kind = sampling or SamplingParams(), TrafficClass(traffic)

        async def submit() -> Ticket:
            return await self._submit(prompt, params, kind)

        return DeltaStream(submit)

    async def complete(
        self, prompt: Prompt, sampling: SamplingParams | None = None, *, traffic: Traffic = "interactive"
    ) -> Completion:
        """A whole answer. Raises as `stream` does."""
        text: list[str] = []
        token_ids: list[int] = []
        async with self.stream(prompt, sampling, traffic=traffic) as deltas:
            async for delta in deltas:
                text.append(delta.text)
                token_ids += delta.token_ids
        if delta.finish_reason is None or delta.usage is None or delta.timing is None:
            raise RuntimeError("the stream ended without its last delta")
        whole, ids = "".join(text), tuple(token_ids)
        return Completion(whole, ids, delta.finish_reason, delta.usage, delta.timing, delta.stop)

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids that a prompt is served as: their number is what it costs.

        Takes about a millisecond per thousand tokens. Raises PromptError, and EngineClosed before the start.
        """
        return _encode(self._serving()[1], prompt)

    def check(
        self, prompt: Prompt, sampling: SamplingParams | None = None, *, traffic: Traffic = "interactive"
    ) -> None:
        """Raise what `stream` would where the prompt can never be served. Raises EngineClosed before the start."""
        worker, model = self._serving()
        capacity = worker.capacity(TrafficClass(traffic))
        _output_room(model, capacity, len(_encode(model, prompt)), sampling or SamplingParams())

    def _serving(self) -> tuple[Worker, LoadedModel]:
        worker = self._worker
        if worker is None or worker.ended or not worker.ready.done():
            raise EngineClosed("the engine has no model yet: start it first (async with engine)")
        return worker, worker.ready.result()

    def stats(self) -> dict[str, Any]:
        """Plain data about the engine now, and counters since its start."""
        worker = self._worker
        if worker is None or worker.ended or not worker.ready.done():
            return {"state": "loading" if worker is not None and not worker.ended else "stopped"}
        model = worker.ready.result()
        return {
            "state": "running",
            "model": model.name,
            "context": model.context,
            "threads": model.threads,
            **worker.stats(),
        }

    def steps(self) -> list[StepRecord]:
        """The latest steps (up to 16,384), oldest first: how full they were, for whom, and how long they took."""
        worker = self._worker
        return worker.history() if worker is not None else []

    async def _submit(self, prompt: Prompt, params: SamplingParams, traffic: TrafficClass) -> Ticket:
        submitted = time.monotonic()
        worker = self._running_worker(restart=False)
        model = await self._ready(worker)
        if isinstance(prompt, str) or _is_chat(prompt):
            token_ids = await asyncio.to_thread(_encode, model, prompt)
        else:
            token_ids = _encode(model, prompt)
        number = next(self._numbers)
        seq = Sequence(
            request_id=number,
            traffic=traffic,
            arrival=number,
            token_ids=token_ids,
            max_tokens=_output_room(model, worker.capacity(traffic), len(token_ids), params),
            sampling=params,
            noise_key=random.getrandbits(63) if params.seed is None else params.seed,
        )
        buffer = DeltaBuffer()
        worker.submit(Generation(seq, model.tokenizer, model.tokenizer.eos_ids, buffer, submitted))
        return Ticket(buffer, functools.partial(self._cancel, worker, number))

    def _cancel(self, worker: Worker, request_id: int) -> None:
        # bound to the engine, so that an engine lives as long as its streams
        worker.cancel(request_id)

    def _running_worker(self, *, restart: bool) -> Worker:
        with self._lock:
            if self._worker is None or (restart and (self._worker.ended or self._worker.stopping)):
                self._worker = Worker(self._open_model, self.config)
                weakref.finalize(self, self._worker.stop).atexit = False
            return self._worker

    async def _ready(self, worker: Worker) -> LoadedModel:
        try:
            return await asyncio.shield(asyncio.wrap_future(worker.ready))
        except Exception:
            with self._lock:
                if self._worker is worker:
                    self._worker = None  # so that the next request tries again
            raise


def _encode(model: LoadedModel, prompt: Prompt) -> list[int]:
    if isinstance(prompt, str):
        token_ids = model.tokenizer.encode_prompt(prompt)
    elif _is_chat(prompt):
        if model.encode_chat is None:
            raise PromptError(f"{model.name} has no chat template: send the prompt as text")
        token_ids = model.encode_chat(cast("list[Message]", prompt))
    else:
        token_ids = _checked_ids(model, cast("list[int]", prompt))
    if not token_ids:
        raise PromptError("the prompt is empty: give at least one token")
    return token_ids


def _is_chat(prompt: object) -> bool:
    return isinstance(prompt, AbstractSequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def _checked_ids(model: LoadedModel, prompt: Iterable[int]) -> list[int]:
    try:
        if isinstance(prompt, bytes | bytearray | Mapping):
            raise TypeError  # which would pass for token ids
        token_ids = [operator.index(token) for token in prompt]
    except TypeError:
        raise PromptError(
            f"a prompt is text, a list of token ids, or a list of chat messages, not {type(prompt).__name__}"
            if not isinstance(prompt, list | tuple)
            else "a prompt is text, a list of token ids, or a list of chat messages, and not a mixture"
        ) from None
    size = model.tokenizer.vocab_size
    for place, token in enumerate(token_ids):
        if not 0 <= token < size:
            raise PromptError(f"token id {token} at place {place} is outside the vocabulary (0 to {size - 1})")
    return token_ids


def _output_room(model: LoadedModel, capacity: int, num_prompt: int, params: SamplingParams) -> int:
    """How many tokens the output may have. Raises PromptTooLong where that is none, or fewer than asked for."""
    limit = min(model.context, capacity)
    place = "the model's context" if limit == model.context else "the KV cache (kv_bytes)"
    if num_prompt >= limit:
        raise PromptTooLong(
            f"the prompt has {num_prompt} tokens and {place} holds {limit}, of which the output needs at least 1: "
            "shorten the prompt"
        )
    wanted = params.max_tokens
    if wanted is not None and num_prompt + wanted > limit:
        raise PromptTooLong(
            f"{num_prompt} prompt tokens and max_tokens of {wanted} make {num_prompt + wanted}, and {place} holds "
            f"{limit}: shorten the prompt or lower max_tokens"
        )
    return limit - num_prompt if wanted is None else wanted
