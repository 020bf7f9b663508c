"""What an application holds: one account of everything that is sent, and the ways to send it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from pydantic import ValidationError

from orchestra.budget import Budget
from orchestra.call import Call, Outcome
from orchestra.chat_stream import StreamBlock
from orchestra.clock import wall
from orchestra.config import LOCAL, Config, default_config, load_config, parse_config
from orchestra.dispatch import Dispatcher
from orchestra.errors import ConnectionFailed, InputError, UnknownModelError
from orchestra.local_route import LocalRoute, open_engine
from orchestra.own_calls import chat_payload, embeddings_payload, originate, provider_error, read_vectors
from orchestra.policies.traffic import TrafficClass
from orchestra.tagging import current_tag
from orchestra.transports import make_client, make_sync_client, make_sync_transport, make_transport
from orchestra.transports.blocking import BlockingCore
from orchestra.transports.core import TransportCore
from orchestra.transports.loop_thread import LoopThread
from orchestra.wire import HttpWire

if TYPE_CHECKING:
    import httpx
    import httpx2

    from orchestra.batches import BatchDesk
    from orchestra.jobs import Job, JobManager, Parking, Requests, Result
    from orchestra.localengine import LocalEngine
    from orchestra.localengine.events import EngineEvent
    from orchestra.observe.events import EventBus
    from orchestra.openai_types import ChatCompletion

__all__ = ["Orchestra"]

CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
AHEAD, AHEAD_IN_BATCHES = 1_000, 50_000
"""How many requests `Orchestra.map` asks for beyond the results that were taken."""


class Orchestra:
    """One budget, one set of routes, one set of engines, shared by all that goes through it.

    Make one and keep it. Everything is opened on first use, and may be used from several tasks, event loops and
    threads at once. ``async with``, or `aclose`, frees what was opened; ``with``, or `close`, does it for programs
    that run no event loop. Calls take the class of the block they are made in (`orchestra.bulk`,
    `orchestra.interactive`), and are interactive outside any.

    Raises ConfigError where the settings cannot hold.
    """

    def __init__(self, config: Config | None = None) -> None:
        self.config = default_config() if config is None else config
        opener = partial(open_engine, traffic=self.config.traffic)
        if self.config.metrics.is_on:
            from orchestra.observe.windows import check_installed  # on use: few ask for it

            check_installed(self.config)
        self._local = {
            name: LocalRoute(name, local, open_engine=opener) for name, local in self.config.local.items()
        }
        self._budget = Budget(self.config.traffic, backend=self.config.budget)
        self._wire = HttpWire(self.config.network.client)
        self._dispatcher = Dispatcher(self.config, budget=self._budget, wire=self._wire, local=self._local)
        self._core = TransportCore(self._send)
        self._loop = LoopThread("orchestra")
        self._blocking = BlockingCore(self._core, self._loop)
        self._source: str | None = None
        self._windows: list[Callable[[], None]] = []  # what closes each way to look in
        self._shown_in = 0  # which process
        self._showing = threading.Lock()

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Take the settings from a TOML file, from whose folder relative paths in it count.

        Raises ConfigError naming the file, the place and the remedy.
        """
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
        from orchestra.openai_types import ChatCompletion  # on use: whoever uses an SDK needs no types of ours

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

    async def embed(self, model: str, texts: Sequence[str], **params: Any) -> list[list[float]]:
        """Return the embedding of each text, in their order.

        ``params`` are the other fields of OpenAI's embeddings request (``dimensions``, ...). Raises as `chat`.
        """
        outcome = await self._send(originate(EMBEDDINGS, embeddings_payload(model, texts, params)))
        body = await outcome.read()
        if outcome.status >= 400:
            raise provider_error(outcome, body)
        return read_vectors(outcome, body, len(texts))

    async def _answer(self, model: str, messages: Sequence[Any], params: Mapping[str, Any]) -> Outcome:
        """Return an answer that is none of an error."""
        outcome = await self._send(originate(CHAT, chat_payload(model, messages, params)))
        if outcome.status >= 400:
            raise provider_error(outcome, await outcome.read())
        return outcome

    async def _send(self, call: Call) -> Outcome:
        """The one way out for every call, whoever makes it: at once, or in a batch where it has time."""
        self._show()
        has_time = call.traffic is TrafficClass.BULK and call.expires_at is not None
        if has_time and (routes := self._parking.routes(call)):
            return await self._parking.send(call, routes)
        return await self._dispatcher.send(call)

    # durable bulk jobs

    @cached_property
    def jobs(self) -> JobManager:
        """The bulk jobs of this and earlier days: ``jobs.list()``, ``jobs.get(name)``."""
        from orchestra.jobs import JobManager  # on use: a program without jobs needs no database

        return JobManager(
            self.config.bulk.store,
            self._dispatch,
            check=self._check_line,
            desk=self._desk(),
            price=self._dispatcher.price,
            outage=self._dispatcher.outage,
            events=self._dispatcher.events,
            dollars_per_hour={
                f"{LOCAL}/{name}": local.dollars_per_hour
                for name, local in self.config.local.items()
                if local.dollars_per_hour is not None
            },
        )

    @cached_property
    def _parking(self) -> Parking:
        from orchestra.jobs import Parking  # on use: as above

        return Parking(
            store=lambda: self.jobs.store,
            loop=self._loop.session,
            desk=self._desk(),
            send=self._dispatch,
            price=self._dispatcher.price,
            tell=self._dispatcher.tell,
        )

    def _desk(self) -> BatchDesk:
        from orchestra.batches import BatchDesk  # on use: as above

        return BatchDesk(budget=self._budget, wire=self._wire, routing=self._dispatcher.targets)

    async def _dispatch(self, call: Call) -> Outcome:
        """Send a call at once."""
        self._show()
        return await self._dispatcher.send(call)

    async def submit(
        self,
        requests: Requests,
        *,
        model: str | None = None,
        job: str | None = None,
        deadline: float | str | None = None,
        retry_failed: bool = False,
    ) -> Job:
        """Take in a bulk job and run it, or go on with it: a job of the same name and requests is joined.

        ``requests`` are dicts (``{"messages": ...}``, ``{"prompt": ...}``, or OpenAI batch lines), from any
        iterable or asynchronous iterable, or the path of a file of such lines. ``model`` replaces their own.
        Inside `orchestra.bulk` the block's job and deadline hold where none is given. ``retry_failed`` asks lines
        again that have failed. See `JobManager.submit`.
        """
        tag = current_tag()
        if tag is not None:
            job = job or tag.job
            if deadline is None and tag.deadline is not None:
                deadline = max(tag.deadline - wall(), 0.001)
        return await self.jobs.submit(requests, model=model, job=job, deadline=deadline, retry_failed=retry_failed)

    async def map(
        self,
        model: str,
        requests: Requests,
        *,
        job: str | None = None,
        deadline: float | str | None = None,
    ) -> AsyncGenerator[Result, None]:
        """Answer requests as they come, and yield their results in the order of the requests::

            async for result in orc.map("fast", requests, job="tag-tickets"):
                print(result.custom_id, result.body if result.ok else result.error)

        It is `submit` for who wants the results at once: requests are asked for only a thousand ahead of the
        results that were taken (with a deadline fifty thousand, to fill batches), however many there are. One that
        cannot be used is a failed result, and the same ``job`` again goes on where it stood. Left early, the job
        stops, and can be gone on with. A file of lines is named by its path: as by `submit`, it is checked whole
        first. Raises as `submit` does, and JobError where the job cannot go on.
        """
        has_time = deadline is not None or ((tag := current_tag()) is not None and tag.deadline is not None)
        ahead = asyncio.Semaphore(AHEAD_IN_BATCHES if has_time else AHEAD)

        async def asked(these: Iterable[object] | AsyncIterable[object]) -> AsyncIterator[object]:
            async for request in each(these):
                await ahead.acquire()
                yield request

        from orchestra.jobs.intake.sources import JsonlFile, each  # on use: as above

        if not isinstance(requests, str | os.PathLike | JsonlFile):
            requests = asked(requests)
        running = await self.submit(requests, model=model, job=job, deadline=deadline)
        try:
            async with aclosing(running.in_order()) as results:
                async for result in results:
                    yield result
                    ahead.release()
        finally:
            await running.cancel()

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

    def subscribe_engines(self, subscriber: Callable[[str, EngineEvent], object]) -> Callable[[], None]:
        """Call ``subscriber`` with the name and each event of every engine, of those opened later as well.

        It runs in the engine's thread and must be quick. Returns the function that ends it.
        """
        stops = [route.subscribe(partial(subscriber, name)) for name, route in self._local.items()]

        def unsubscribe() -> None:
            for stop in stops:
                stop()

        return unsubscribe

    def snapshot(self) -> dict[str, Any]:
        """Return what is going on, as plain values: pools, routes' breakers, engines, running jobs, open batches.

        It may be called from any thread, and waits for no event loop. ``orchestra status`` shows it in words.
        """
        return {
            "pools": self._budget.snapshot(),
            "routes": self._dispatcher.snapshot(),
            "local": {name: route.snapshot() for name, route in self._local.items()},
            "jobs": self.jobs.snapshot() if "jobs" in self.__dict__ else {},
            "batches": self.jobs.open_batches() if "jobs" in self.__dict__ else [],
        }

    def _show(self) -> None:
        """Let ``orchestra status`` and ``[metrics]`` see this from now on. A forked child shows itself anew."""
        if self._shown_in == os.getpid():
            return
        if not self._showing.acquire(blocking=False):
            return  # another thread is at it
        try:
            from orchestra.observe.windows import open_windows  # on use: who only imports us needs no sockets

            self._hide()  # of a fork, what it has inherited
            self._windows = open_windows(self, self._source)
            self._shown_in = os.getpid()
        finally:
            self._showing.release()

    def _hide(self) -> None:
        windows, self._windows, self._shown_in = self._windows, [], 0
        for close in windows:
            close()

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
            if "_parking" in self.__dict__:
                stack.push_async_callback(self._parking.aclose)

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
