"""What an application holds: one account of everything that is sent, and the ways to send it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from pydantic import ValidationError

from orchestra.budget import Budget
from orchestra.call import Call, Outcome, read_json
from orchestra.chat_stream import StreamBlock, error_message
from orchestra.config import LOCAL, Config, load_config, parse_config
from orchestra.dispatch import Dispatcher
from orchestra.errors import ConnectionFailed, InputError, ProviderError, UnknownModelError
from orchestra.local_route import LocalRoute
from orchestra.openai_types import ChatCompletion
from orchestra.policies.traffic import TrafficClass
from orchestra.providers.hints import retry_after
from orchestra.tagging import Tag, current_tag
from orchestra.transports import make_client, make_sync_client, make_sync_transport, make_transport
from orchestra.transports.blocking import BlockingCore
from orchestra.transports.core import TransportCore
from orchestra.transports.loop_thread import LoopThread
from orchestra.wire import HttpWire

if TYPE_CHECKING:
    import httpx
    import httpx2

    from orchestra.jobs import Job, JobManager, Requests
    from orchestra.localengine import LocalEngine
    from orchestra.observe.beacon import Beacon
    from orchestra.observe.events import EventBus

__all__ = ["DEFAULTS", "Orchestra", "anthropic_middleware", "http_client", "sync_http_client"]

DEFAULTS = parse_config(
    {"providers": {"openai": {"kind": "openai"}}, "local": {"smollm2": {"weights": "smollm2-135m"}}},
    source="defaults",
)
"""What holds where no settings are given: ``local/smollm2`` is the small model in this process, and calls to known
hosts are metered, with the caller's own key and without a limit of ours."""

CHAT = "/v1/chat/completions"
QUEUE_BOUND = 600.0
"""Seconds that an interactive call waits for its turn at most: the read timeout that SDKs have by default."""


class Orchestra:
    """One budget, one set of routes, one set of engines, shared by all that goes through it.

    Make one and keep it. Everything is opened on first use, and may be used from several tasks, event loops and
    threads at once. ``async with``, or `aclose`, frees what was opened; ``with``, or `close`, does it for programs
    that run no event loop. Calls take the class of the block they are made in (`orchestra.bulk`,
    `orchestra.interactive`), and are interactive outside any.

    Raises ConfigError where the settings cannot hold.
    """

    def __init__(self, config: Config | None = None) -> None:
        self.config = DEFAULTS if config is None else config
        self._local = {name: LocalRoute(name, local) for name, local in self.config.local.items()}
        self._budget = Budget(self.config.traffic, backend=self.config.budget)
        self._wire = HttpWire(self.config.network.client)
        self._dispatcher = Dispatcher(self.config, budget=self._budget, wire=self._wire, local=self._local)
        self._core = TransportCore(self._send)
        self._loop = LoopThread("orchestra")
        self._blocking = BlockingCore(self._core, self._loop)
        self._source: str | None = None
        self._beacon: Beacon | None = None
        self._shown_in = 0  # which process
        self._showing = threading.Lock()

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Take the settings from a TOML file. Raises ConfigError naming the file, the place and the remedy."""
        made = cls(load_config(path))
        made._source = os.path.abspath(path)
        return made

    @classmethod
    def from_config(cls, config: Config | Mapping[str, Any]) -> Self:
        """Take the settings from a dict with the same keys. Raises ConfigError naming the place and the remedy."""
        return cls(config if isinstance(config, Config) else parse_config(config))

    # underneath the official SDKs

    @overload
    def http_client(self, family: Literal["httpx2"] = "httpx2") -> httpx2.AsyncClient: ...
    @overload
    def http_client(self, family: Literal["httpx"]) -> httpx.AsyncClient: ...
    def http_client(self, family: Literal["httpx2", "httpx"] = "httpx2") -> httpx2.AsyncClient | httpx.AsyncClient:
        """Return a client for an official SDK's ``http_client=``, with the defaults that SDKs give theirs.

        ``family`` is the library that the SDK is built on. Closing the client leaves this Orchestra open.
        """
        return make_client(family, self._core)

    @overload
    def transport(self, family: Literal["httpx2"] = "httpx2") -> httpx2.AsyncBaseTransport: ...
    @overload
    def transport(self, family: Literal["httpx"]) -> httpx.AsyncBaseTransport: ...
    def transport(
        self, family: Literal["httpx2", "httpx"] = "httpx2"
    ) -> httpx2.AsyncBaseTransport | httpx.AsyncBaseTransport:
        """Return just the transport, for a client of your own making."""
        return make_transport(family, self._core)

    @overload
    def sync_http_client(self, family: Literal["httpx2"] = "httpx2") -> httpx2.Client: ...
    @overload
    def sync_http_client(self, family: Literal["httpx"]) -> httpx.Client: ...
    def sync_http_client(self, family: Literal["httpx2", "httpx"] = "httpx2") -> httpx2.Client | httpx.Client:
        """As `http_client`, for an SDK's synchronous client: the same budget, from any number of threads.

        A call blocks its thread. Where a loop runs in that thread, the loop stands still meanwhile: let a stream
        of that loop hold the last free slot, and the call waits for it until its own bound is over.
        """
        return make_sync_client(family, self._blocking)

    @overload
    def sync_transport(self, family: Literal["httpx2"] = "httpx2") -> httpx2.BaseTransport: ...
    @overload
    def sync_transport(self, family: Literal["httpx"]) -> httpx.BaseTransport: ...
    def sync_transport(
        self, family: Literal["httpx2", "httpx"] = "httpx2"
    ) -> httpx2.BaseTransport | httpx.BaseTransport:
        """Return just the synchronous transport, for a client of your own making."""
        return make_sync_transport(family, self._blocking)

    def anthropic_middleware(self) -> Any:
        """Return what puts this under an ``Anthropic`` or ``AsyncAnthropic`` client by its ``middleware=[...]``.

        It does what ``http_client=`` does, and a client that exists can have it, too:
        ``client.with_options(middleware=[...])``.
        Raises ConfigError where the SDK is not installed.
        """
        from orchestra.transports.anthropic_ import make_middleware  # on use: for one SDK only

        return make_middleware(self.http_client, self.sync_http_client)

    # its own client

    async def chat(self, model: str, messages: Sequence[Any], **params: Any) -> ChatCompletion:
        """Return the whole answer of a chat, whichever of the model's routes gave it.

        ``model`` is a name of ``[models]``, or ``local/NAME``, or ``PROVIDER/MODEL``. A message is a dict, or one
        that an earlier answer brought. ``params`` are the other fields of OpenAI's chat request (``max_tokens``,
        ``temperature``, ...).

        Raises InputError before anything is sent; AdmissionError where the budget did not let the call through in
        time; ProviderError, ConnectionFailed, LocalEngineError or AllRoutesFailed where there is no answer.
        """
        if params.pop("stream", None):
            raise InputError("chat() returns the whole answer; stream() streams one", param="stream")
        outcome = await self._answer(model, messages, params)
        body = await outcome.read()
        try:
            return ChatCompletion.model_validate_json(body)
        except ValidationError:
            message = f"the answer from {outcome.route} is no chat completion"
        raise ConnectionFailed(message, sent=True)

    def stream(self, model: str, messages: Sequence[Any], **params: Any) -> StreamBlock:
        """Open a streamed answer::

            async with orc.stream("fast", messages) as deltas:
                async for text in deltas:
                    print(text, end="", flush=True)
            print(deltas.finish_reason, deltas.usage)

        ``deltas.chunks`` has the whole chunks instead of their text. Leaving the block early ends the request.
        Entering raises as `chat` does; reading raises StreamInterrupted where the answer breaks off.
        """
        params.setdefault("stream_options", {"include_usage": True})
        return StreamBlock(lambda: self._answer(model, messages, {**params, "stream": True}))

    async def _answer(self, model: str, messages: Sequence[Any], params: Mapping[str, Any]) -> Outcome:
        """Return an answer that is none of an error."""
        outcome = await self._send(_originate(CHAT, chat_payload(model, messages, params)))
        if outcome.status >= 400:
            raise _provider_error(outcome, await outcome.read())
        return outcome

    async def _send(self, call: Call) -> Outcome:
        """The one way out for every call, whoever makes it."""
        self._show()
        return await self._dispatcher.send(call)

    # durable bulk jobs

    @cached_property
    def jobs(self) -> JobManager:
        """The bulk jobs of this and earlier days: ``jobs.list()``, ``jobs.get(name)``."""
        from orchestra.jobs import JobManager  # on use: a program without jobs needs no database

        return JobManager(self.config.bulk.store, self._send, check=self._check_line)

    async def submit(
        self,
        requests: Requests,
        *,
        model: str | None = None,
        job: str | None = None,
        deadline: float | str | None = None,
    ) -> Job:
        """Take in a bulk job and run it, or go on with it: a job of the same name and requests is joined.

        ``requests`` are dicts (``{"messages": ...}``, ``{"prompt": ...}``, or OpenAI batch lines), from any
        iterable or asynchronous iterable, or the path of a file of such lines. ``model`` replaces their own.
        Inside `orchestra.bulk` the block's job and deadline hold where none is given. See `JobManager.submit`.
        """
        tag = current_tag()
        if tag is not None:
            job = job or tag.job
            if deadline is None and tag.deadline is not None:
                deadline = max(tag.deadline - time.time(), 0.001)
        return await self.jobs.submit(requests, model=model, job=job, deadline=deadline)

    def _check_line(self, path: str, body: Mapping[str, Any]) -> None:
        """Refuse a line that no route could serve."""
        model = body.get("model")
        if not isinstance(model, str):
            raise InputError("names no model: give it one, or give one for all", param="model")
        self._dispatcher.check(model)
        entry = self.config.models.get(model)
        faults = []
        for route in entry.routes if entry else (model,):
            head, _, name = route.partition("/")
            if head != LOCAL:
                return  # only the provider itself knows what it accepts
            try:
                self._local[name].check(path, body, traffic=TrafficClass.BULK)
                return
            except InputError as error:
                faults.append(error)
        raise faults[0]

    # its engines and its state

    @property
    def events(self) -> EventBus:
        """Everything that is decided about every call, as it happens::

            stop = orc.events.subscribe(lambda event: print(event.kind, event.route, event.duration))

        See `Event` for what is told. The logger ``orchestra.events`` tells the same at level DEBUG.
        """
        return self._dispatcher.events

    async def engine(self, name: str) -> LocalEngine:
        """Return the engine behind ``[local.NAME]``, started: to have it ready, or to ask what it does.

        Raises UnknownModelError where there is none of that name, LocalEngineError where it cannot start.
        """
        route = self._local.get(name)
        if route is None:
            known = ", ".join(sorted(self._local)) or "none"
            raise UnknownModelError(f"no [local.{name}] is configured; there is: {known}")
        self._show()
        return await route.engine()

    def snapshot(self) -> dict[str, Any]:
        """Return what is going on, as plain values: pools, routes' breakers, local engines, running jobs.

        It may be called from any thread, and waits for no event loop. ``orchestra status`` shows it in words.
        """
        return {
            "pools": self._budget.snapshot(),
            "routes": self._dispatcher.snapshot(),
            "local": {name: route.snapshot() for name, route in self._local.items()},
            "jobs": self.jobs.snapshot() if "jobs" in self.__dict__ else {},
        }

    def _show(self) -> None:
        """Let ``orchestra status`` see this from now on. A forked child shows itself anew."""
        if self._shown_in == os.getpid() or not self.config.observe.status:
            return
        if not self._showing.acquire(blocking=False):
            return  # another thread is at it
        try:
            from orchestra.observe.beacon import Beacon  # on use: who only imports us needs no sockets

            self._beacon = Beacon(self, config=self._source)
            self._shown_in = os.getpid()
        finally:
            self._showing.release()

    def _hide(self) -> None:
        beacon, self._beacon, self._shown_in = self._beacon, None, 0
        if beacon is not None:
            beacon.close()

    async def aclose(self) -> None:
        """Stop running jobs, which stay resumable, and free engines, connections and borrowed budget.

        Blocking calls that are under way are cancelled. May be called again. What is used afterwards is opened
        anew.
        """
        try:
            await self._free()
        finally:
            await self._loop.aclose()

    def close(self) -> None:
        """As `aclose`, from synchronous code. Raises RuntimeError where a loop runs: there, ``await aclose()``."""
        _refuse_in_loop("close()", "await orc.aclose()")
        try:
            self._loop.session().run(lambda caller: self._free())
        finally:
            self._loop.close()

    async def _free(self) -> None:
        async with AsyncExitStack() as stack:  # in reverse order, and all of it, whatever one of them raises
            stack.callback(self._hide)
            stack.push_async_callback(self._budget.aclose)
            stack.push_async_callback(self._wire.aclose)
            for route in self._local.values():
                stack.push_async_callback(route.aclose)
            if "jobs" in self.__dict__:
                stack.push_async_callback(self.jobs.aclose)

    async def __aenter__(self) -> Self:
        self._show()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        _refuse_in_loop("with", "async with")
        self._show()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _refuse_in_loop(what: str, instead: str) -> None:
    if asyncio._get_running_loop() is not None:
        raise RuntimeError(f"{what} is for programs without an event loop; here, use: {instead}")


def chat_payload(model: str, messages: Sequence[Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a chat request. Raises InputError where its model or its messages cannot be meant."""
    if not isinstance(model, str) or not model:
        raise InputError(f"model must be a name, not {model!r}", param="model")
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise InputError('messages must be a list, like [{"role": "user", "content": "Hello"}]', param="messages")
    if not messages:
        raise InputError("messages must hold at least one message", param="messages")
    plain = [_plain_message(message, index) for index, message in enumerate(messages)]
    return {"model": model, "messages": plain, **params}


def _plain_message(message: Any, index: int) -> Mapping[str, Any]:
    if hasattr(message, "model_dump"):  # a message that an answer brought, ours or an SDK's
        message = message.model_dump(exclude_none=True)
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InputError(f"messages[{index}] must be a dict with role and content", param=f"messages[{index}]")
    return message


def _originate(path: str, payload: Mapping[str, Any]) -> Call:
    """Return the call, in the class and with the bounds of the block that we are in."""
    tag = current_tag() or Tag(TrafficClass.INTERACTIVE)
    expires_at = tag.expires_at(time.monotonic(), time.time())
    waits_unbounded = tag.traffic is TrafficClass.BULK or expires_at is not None
    try:
        return Call.originate(
            path,
            payload,
            traffic=tag.traffic,
            job=tag.job,
            expires_at=expires_at,
            queue_bound=None if waits_unbounded else QUEUE_BOUND,
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the request cannot be written as JSON: {error}") from None


def _provider_error(outcome: Outcome, body: bytes) -> ProviderError:
    try:
        answer = read_json(body)
    except ValueError:
        answer = None
    error = answer.get("error") if isinstance(answer, dict) else None
    fields = error if isinstance(error, dict) else {}
    code = fields.get("code") or fields.get("type")
    return ProviderError(
        f"{outcome.route} answered {outcome.status}: {error_message(body)}",
        status=outcome.status,
        code=None if code is None else str(code),
        retry_after=retry_after(outcome.headers, fields, time.time()),
        body=body,
    )


_default: Orchestra | None = None
_default_lock = threading.Lock()


@overload
def http_client(family: Literal["httpx2"] = "httpx2") -> httpx2.AsyncClient: ...
@overload
def http_client(family: Literal["httpx"]) -> httpx.AsyncClient: ...
def http_client(family: Literal["httpx2", "httpx"] = "httpx2") -> httpx2.AsyncClient | httpx.AsyncClient:
    """Return a client of the `Orchestra` that the whole process shares, which has the default settings."""
    return _shared().http_client(family)


@overload
def sync_http_client(family: Literal["httpx2"] = "httpx2") -> httpx2.Client: ...
@overload
def sync_http_client(family: Literal["httpx"]) -> httpx.Client: ...
def sync_http_client(family: Literal["httpx2", "httpx"] = "httpx2") -> httpx2.Client | httpx.Client:
    """Return a synchronous client of the `Orchestra` that the whole process shares."""
    return _shared().sync_http_client(family)


def anthropic_middleware() -> Any:
    """Return the middleware of the `Orchestra` that the whole process shares: see its method of that name."""
    return _shared().anthropic_middleware()


def _shared() -> Orchestra:
    global _default
    with _default_lock:
        if _default is None:
            _default = Orchestra()
    return _default
