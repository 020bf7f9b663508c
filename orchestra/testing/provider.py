"""A provider on the loopback interface that answers as it is told."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from orchestra.testing import anthropic_form, openai_form
from orchestra.testing.limiter import Limiter, Limits, Tenant
from orchestra.testing.script import Hit, Reply, count_tokens, output_tokens

__all__ = ["ScriptedProvider"]


class ScriptedProvider:
    """A server of the OpenAI and Anthropic wires, for tests and benchmarks: real sockets, nothing to pay.

    ::

        async with ScriptedProvider([Reply.error(429, headers={"retry-after": "0.05"})]) as provider:
            client = AsyncOpenAI(base_url=provider.base_url, api_key="any")
            other = AsyncAnthropic(base_url=provider.origin, api_key="any")

    ``async with`` serves on the running loop; ``with`` serves on a thread of its own; ``python -m
    orchestra.testing`` in a process of its own. What it can be told:

    - ``script``: requests take these replies in turn, and ``default`` when there are none left. A `Reply` is any
      status, headers and body, the endpoint's default answer with ``text``, a stream with gaps, breaks and error
      events (`StreamScript`), a dropped connection.
    - ``service_time``: seconds before every answer that is not a refusal.
    - ``limits``: enforced, and refused with 429 (`Limits`: requests and tokens a minute with a burst, requests at
      once, how tokens are charged, what the headers tell and how). They may be changed while it runs: assign to
      ``limits``, or give ``changes``, pairs of seconds since the start and the limits from then on.
    - ``tenant``: somebody else who uses the same account (`Tenant`: steadily, or on and off).
    - ``tokens_per_character``: how long prompts are in tokens. A quarter is what most clients take for granted.

    `kill` drops every connection, `restart` comes back on the same port. ``log`` holds every request as a `Hit`;
    ``in_flight`` and ``peak`` count those at once.

    It serves ``/v1/chat/completions``, ``completions``, ``embeddings`` and ``models`` in OpenAI's form,
    ``/v1/messages`` and ``/v1/messages/count_tokens`` in Anthropic's, each with its wire's limit headers.
    """

    def __init__(
        self,
        script: Iterable[Reply] = (),
        *,
        default: Reply | None = None,
        text: str = "Hello, world.",
        service_time: float = 0.0,
        limits: Limits | None = None,
        changes: Iterable[tuple[float, Limits]] = (),
        tenant: Tenant | None = None,
        tokens_per_character: float = 0.25,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.script = deque(script)
        self.default = default or Reply()
        self.text = text
        self.service_time = service_time
        self.tokens_per_character = tokens_per_character
        self.log: list[Hit] = []
        self.in_flight = 0
        self.peak = 0
        self.started_at = 0.0
        self._limiter = Limiter(limits or Limits(headers="none"), tenant)
        self._changes = deque(sorted(changes, key=lambda change: change[0]))
        self._host = host
        self._port = port
        self._server: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self._thread: _ServingThread | None = None

    @property
    def origin(self) -> str:
        """The address that an Anthropic SDK takes as its ``base_url``."""
        return f"http://{self._host}:{self._port}"

    @property
    def base_url(self) -> str:
        """The address that an OpenAI SDK takes as its ``base_url``."""
        return f"{self.origin}/v1"

    @property
    def limits(self) -> Limits:
        """What is enforced now. Assign to change it: what was left stays left, as far as it fits."""
        return self._limiter.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._limiter.change(limits)

    async def start(self) -> None:
        """Listen. The first time picks a port, unless one was given; later times take the same again."""
        if not self.started_at:
            self.started_at = time.monotonic()
            self._limiter.start(self.started_at)
        self._server = web.Server(self._handle, handler_cancellation=True)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._server, self._host, self._port, reuse_address=True)
        self._port = self._listener.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """Drop every connection without a word and stop listening. `start` serves again, on the same port."""
        server, self._server = self._server, None
        listener, self._listener = self._listener, None
        if server is None or listener is None:
            return
        listener.close()
        for connection in server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await server.shutdown(timeout=0.1)

    async def restart(self) -> None:
        """Drop every connection and serve again, on the same port."""
        await self.kill()
        await self.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.kill()

    def __enter__(self) -> Self:
        self._thread = _ServingThread(self)
        self._thread.start_serving()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._thread is not None:
            self._thread.stop_serving()
            self._thread = None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            body = await request.read()
            hit = Hit(
                at=time.monotonic(),
                method=request.method,
                path=request.path,
                headers={name.lower(): value for name, value in request.headers.items()},
                body=body,
                in_flight=self.in_flight,
            )
            self.log.append(hit)
            response = await self._answer(request, hit)
            if not response.prepared:
                await response.prepare(request)
                await response.write_eof()
            hit.completed = True
            return response
        except ConnectionResetError:  # the client went away: nobody is to be told
            return web.Response()
        finally:
            self.in_flight -= 1

    async def _answer(self, request: web.BaseRequest, hit: Hit) -> web.StreamResponse:
        payload = _payload(hit.body)
        form = anthropic_form if "/messages" in hit.path else openai_form
        self._change_limits(hit.at)
        prompt, bound = count_tokens(payload, self.tokens_per_character), _most_output(payload)
        metered = hit.method == "POST"
        wait = self._limiter.admit(prompt, bound, hit.in_flight) if metered else None
        headers: dict[str, str] = {}
        if metered and self.limits.headers == "limits":
            headers = form.limit_headers(self._limiter.gauges())
        if wait is not None:
            refusal = form.refusal()
            return _plain(hit, refusal, {**headers, **self._limiter.hint(wait)}, refusal.body)
        hit.tokens = self._limiter.on_arrival(prompt, bound)["tokens"]
        reply = self.script.popleft() if self.script else self.default
        await asyncio.sleep(self.service_time + reply.delay)
        headers |= reply.headers
        if reply.drop:
            await _drop(request)
        streams = reply.body is None and reply.status == 200 and payload.get("stream") is True
        text = "".join(reply.stream.chunks) if streams else self.text
        if metered and reply.body is None:
            hit.tokens = self._limiter.settle(prompt, bound, output_tokens(text))["tokens"]
        if streams:
            events = form.events(hit.path, payload, reply.stream, prompt)
            return await _stream(request, hit, reply, headers, events)
        body = form.whole_answer(hit.path, payload, text, prompt) if reply.body is None else reply.body
        return _plain(hit, reply, headers, body)

    def _change_limits(self, now: float) -> None:
        while self._changes and self._changes[0][0] <= now - self.started_at:
            self.limits = self._changes.popleft()[1]


async def _stream(
    request: web.BaseRequest,
    hit: Hit,
    reply: Reply,
    headers: Mapping[str, str],
    events: Iterator[bytes | None],
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream", **headers})
    hit.status, hit.answered_at = response.status, time.monotonic()
    await response.prepare(request)
    for index, event in enumerate(events):
        if reply.stream.gap and 1 < index <= len(reply.stream.chunks):  # what opens and ends it comes at once
            await asyncio.sleep(reply.stream.gap)
        if event is None:
            await _drop(request)
            break
        await response.write(event)
    await response.write_eof()
    return response


async def _drop(request: web.BaseRequest) -> None:
    """Close the connection after what has been written. The server cancels us when it is gone."""
    if request.transport is not None:
        request.transport.close()
    await asyncio.Event().wait()


class _ServingThread(threading.Thread):
    """Runs a provider on a loop of its own."""

    def __init__(self, provider: ScriptedProvider) -> None:
        super().__init__(name="scripted-provider", daemon=True)
        self._provider = provider
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._failure: BaseException | None = None

    def start_serving(self) -> None:
        self.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def stop_serving(self) -> None:
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self.join()

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        async with self._provider:
            self._ready.set()
            await self._stopping.wait()


def _plain(hit: Hit, reply: Reply, headers: Mapping[str, str], body: Any) -> web.Response:
    hit.status, hit.answered_at = reply.status, time.monotonic()
    if isinstance(body, str | bytes):
        data, kind = body if isinstance(body, bytes) else body.encode(), "text/html; charset=utf-8"
    else:
        data, kind = json.dumps(body).encode(), "application/json"
    return web.Response(status=reply.status, body=data, headers={"content-type": kind, **headers})


def _payload(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _most_output(payload: Mapping[str, Any]) -> int:
    bounds = (payload.get(name) for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"))
    bound = next((bound for bound in bounds if isinstance(bound, int)), 0)
    answers = payload.get("n")
    return bound * (answers if isinstance(answers, int) else 1)
