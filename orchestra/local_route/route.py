"""The same call, answered by the in-process engine."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from orchestra.call import Call, Headers, Outcome, Usage
from orchestra.config import LocalConfig, TrafficConfig
from orchestra.errors import InputError, LocalEngineError, QueueFull, StreamInterrupted
from orchestra.policies.traffic import TrafficClass

if TYPE_CHECKING:
    from orchestra.local_route.answer import LocalAnswer
    from orchestra.local_route.request import Endpoint, LocalRequest
    from orchestra.localengine import EngineConfig, LocalEngine
    from orchestra.localengine import request as engine_types
    from orchestra.localengine.events import Subscriber
    from orchestra.localengine.service.stream import DeltaStream

__all__ = ["LocalRoute", "open_engine"]

_JSON: Headers = (("content-type", "application/json"),)
_EVENTS: Headers = (("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache"))


def open_engine(config: LocalConfig, traffic: TrafficConfig | None = None) -> LocalEngine:
    """Return an engine with these settings, which reads its weights when it starts.

    Raises the engine's ModelFileError where there are none, and LocalEngineError where the settings do not fit
    together.
    """
    from orchestra.localengine import LocalEngine

    return LocalEngine.load(config.weights, engine_config(config, traffic or TrafficConfig()))


def engine_config(config: LocalConfig, traffic: TrafficConfig) -> EngineConfig:
    """Return the engine's settings: those of ``[local.NAME]``, and what ``[traffic]`` says of both classes.

    What is not set is the engine's choice. Raises LocalEngineError where they do not fit together.
    """
    from orchestra.localengine import EngineConfig

    given = config.model_dump(exclude_none=True, exclude={"weights", "dollars_per_hour"})
    given["bulk_min_share"] = traffic.bulk_min_share
    if traffic.max_waiting is not None:  # whoever comes waits for the next step, at least
        given["max_waiting"] = max(traffic.max_waiting, 1)
    try:
        return EngineConfig(**given)
    except ValueError as error:
        raise LocalEngineError(f"the settings do not fit together: {error}") from error


class LocalRoute:
    """Answers calls from an engine in this process, which is loaded on first use.

    Any number of tasks, in any number of event loops, may call `send`: they wait for one and the same load, which
    none of them can cancel. A load that failed fails those who wait for it, and the next call tries again; so it
    does after the engine died. `aclose` frees the engine; a later call loads it anew.
    """

    def __init__(
        self, name: str, config: LocalConfig, *, open_engine: Callable[[LocalConfig], LocalEngine] = open_engine
    ) -> None:
        self.name = name
        self._config = config
        self._open_engine = open_engine
        self._lock = threading.Lock()
        self._engine: LocalEngine | None = None
        self._on_opened: tuple[Callable[[LocalEngine], None], ...] = ()

    @property
    def route(self) -> str:
        return f"local/{self.name}"

    async def send(self, call: Call, tell: Callable[..., None] | None = None) -> Outcome:
        """Answer a call of OpenAI's chat, completions or responses endpoint, or of Anthropic's messages.

        The outcome of a streamed call is returned with its first piece at hand, so that whatever can fail before
        content fails here. ``tell`` is told of the engine's queue, in the kinds of `orchestra.observe.events`.

        Raises InputError (a field that cannot be served, a prompt too long), QueueFull, and
        LocalEngineError; reading a stream that breaks raises StreamInterrupted.
        """
        endpoint, request = _read(call.url, call.payload)
        engine = await self.engine()
        answer = await self._answer(endpoint, call, request, engine)
        on_event = None if tell is None else _relay(tell)
        if request.streams:
            return await self._stream(engine, call, request, answer, on_event)
        with _as_our_errors(request.prompt_field, request.form_field):
            completion = await engine.complete(
                request.prompt,
                request.sampling,
                traffic=call.traffic.value,
                cache_salt=request.cache_salt,
                on_event=on_event,
            )
        return Outcome(
            status=200,
            headers=_JSON,
            body=_once(answer.whole(completion)),
            route=self.route,
            usage=_usage([completion.usage, *(other.usage for other in completion.others)]),
        )

    async def _answer(
        self, endpoint: Endpoint, call: Call, request: LocalRequest, engine: LocalEngine
    ) -> LocalAnswer:
        match endpoint:
            case "responses":
                from orchestra.local_route.responses_answer import ResponsesAnswer

                return ResponsesAnswer(call.payload or {}, call_id=call.id, model=self.route)
            case "messages":
                from orchestra.local_route.messages_answer import MessagesAnswer

                # This wire tells how long the prompt is before the engine does.
                tokens = await asyncio.to_thread(_length, engine, request) if request.streams else 0
                return MessagesAnswer(call_id=call.id, model=self.route, input_tokens=tokens)
        from orchestra.local_route.chat_answer import ChatAnswer

        return ChatAnswer(
            chat=endpoint == "chat",
            call_id=call.id,
            model=self.route,
            include_usage=request.include_usage,
            n=request.sampling.n,
        )

    def check(self, url: str, payload: Mapping[str, Any], *, traffic: TrafficClass) -> None:
        """Raise InputError where a request can never be answered here.

        Its fields are always checked, the length of its prompt once the engine is started.
        """
        _, request = _read(url, payload)
        engine = self._engine
        if engine is not None:
            with suppress(LocalEngineError), _as_our_errors(request.prompt_field, request.form_field):
                engine.check(request.prompt, request.sampling, traffic=traffic.value)

    async def _stream(
        self,
        engine: LocalEngine,
        call: Call,
        request: LocalRequest,
        answer: LocalAnswer,
        on_event: Subscriber | None,
    ) -> Outcome:
        deltas = engine.stream(
            request.prompt,
            request.sampling,
            traffic=call.traffic.value,
            cache_salt=request.cache_salt,
            on_event=on_event,
        )
        try:
            with _as_our_errors(request.prompt_field, request.form_field):
                first = await anext(deltas)
        except BaseException:
            await deltas.aclose()
            raise

        # the body knows its outcome weakly: a dropped outcome must give its request up at once, without a cycle
        body = self._events(answer, first, deltas, lambda usages: _fill_in(outcome_ref(), usages))

        async def close() -> None:
            await body.aclose()
            await deltas.aclose()  # a generator that was never iterated runs no `finally`

        outcome = Outcome(status=200, headers=_EVENTS, body=body, route=self.route, close=close)
        outcome_ref = weakref.ref(outcome)
        return outcome

    async def _events(
        self,
        answer: LocalAnswer,
        first: engine_types.Delta,
        rest: DeltaStream,
        on_usage: Callable[[Sequence[engine_types.Usage]], None],
    ) -> AsyncGenerator[bytes, None]:
        usages = [first.usage] if first.usage is not None else []
        try:
            yield answer.opening() + answer.piece(first)
            async for delta in rest:
                if delta.usage is not None:
                    usages.append(delta.usage)
                if data := answer.piece(delta):
                    yield data
            if usages:
                on_usage(usages)
            if data := answer.closing():
                yield data
        except Exception as error:
            raise StreamInterrupted(f"{self.route} broke off: {error}") from error
        finally:
            await rest.aclose()

    async def engine(self) -> LocalEngine:
        """Return the engine, started. Raises LocalEngineError with the remedy where that cannot be."""
        with _as_our_errors():
            engine = self._engine
            if engine is None:
                engine = await asyncio.to_thread(self._opened)  # which may import much and look at files
            await engine.start()
        return engine

    def _opened(self) -> LocalEngine:
        with self._lock:
            if self._engine is None:
                self._engine = self._open_engine(self._config)
                for listen in self._on_opened:
                    listen(self._engine)
            return self._engine

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call ``subscriber`` with every event of the engine, whenever one is opened, from now on.

        Returns the function that ends it. It runs in the engine's thread: see `LocalEngine.events`.
        """
        stops: list[Callable[[], None]] = []

        def listen(engine: LocalEngine) -> None:
            stops.append(engine.events.subscribe(subscriber))

        with self._lock:
            self._on_opened = (*self._on_opened, listen)
            if self._engine is not None:
                listen(self._engine)

        def unsubscribe() -> None:
            with self._lock:
                self._on_opened = tuple(one for one in self._on_opened if one is not listen)
            while stops:
                stops.pop()()

        return unsubscribe

    def snapshot(self) -> dict[str, Any]:
        """Return what the engine is doing; its ``state`` is ``unused`` before the first call."""
        engine = self._engine
        return {
            "weights": self._config.weights,
            "state": "unused",
            **(engine.stats() if engine is not None else {}),
        }

    async def aclose(self) -> None:
        """End what the engine is doing, and free it. May be called again."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()


@contextmanager
def _as_our_errors(prompt_field: str = "messages", form_field: str = "response_format") -> Iterator[None]:
    """Tell the engine's errors in the words of `orchestra.errors`."""
    from orchestra.localengine.errors import EngineBusy, EngineError, ParameterError, PromptError, PromptTooLong

    try:
        yield
    except PromptTooLong as error:
        raise InputError(str(error), param=prompt_field, code="context_length_exceeded") from error
    except ParameterError as error:
        field = form_field if error.field == "structure" else error.field
        raise InputError(f"{field}: {str(error).removeprefix(f'{field}: ')}", param=field) from error
    except PromptError as error:
        raise InputError(str(error), param=prompt_field) from error
    except EngineBusy as error:
        raise QueueFull(str(error)) from error
    except (EngineError, ImportError) as error:
        missing = error if isinstance(error, ImportError) else error.__cause__
        remedy = ": `orchestra doctor` says what to install" if isinstance(missing, ModuleNotFoundError) else ""
        raise LocalEngineError(f"{error}{remedy}") from error


def _relay(tell: Callable[..., None]) -> Subscriber:
    """Tell of the engine's queue; a call with several completions counts once."""
    from orchestra.localengine.events import EngineEvent, RequestQueued, RequestStarted

    def relay(event: EngineEvent) -> None:
        match event:
            case RequestQueued(completion=0):
                tell("queued")
            case RequestStarted(completion=0, queue=waited):
                tell("admitted", waited=waited)

    return relay


def _read(url: str, payload: Mapping[str, Any] | None) -> tuple[Endpoint, LocalRequest]:
    from orchestra.local_route.request import endpoint_of, read_request  # on use: a program may never come here

    endpoint = endpoint_of(url)
    return endpoint, read_request(endpoint, payload)


def _length(engine: LocalEngine, request: LocalRequest) -> int:
    with _as_our_errors(request.prompt_field):
        return len(engine.encode(request.prompt))


def _fill_in(outcome: Outcome | None, usages: Sequence[engine_types.Usage]) -> None:
    if outcome is not None:
        outcome.usage = _usage(usages)


def _usage(usages: Sequence[engine_types.Usage]) -> Usage:
    """Of all completions of one prompt, which counts once."""
    first = usages[0]
    output = sum(usage.completion_tokens for usage in usages)
    return Usage(first.prompt_tokens, output, first.cached_tokens, certainty="known")


async def _once(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body
