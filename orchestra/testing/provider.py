"""A provider on the loopback interface that answers as it is told."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from orchestra.testing.answers import count_tokens, events, whole_answer
from orchestra.testing.limiter import Limiter, Limits
from orchestra.testing.script import Hit, Reply

__all__ = ["ScriptedProvider"]


class ScriptedProvider:
    """A server of the OpenAI wire, for tests and benchmarks: real sockets, scripted behaviour, nothing to pay.

    ::

        async with ScriptedProvider([Reply.error(429, headers={"retry-after": "0.05"})]) as provider:
            client = AsyncOpenAI(base_url=provider.base_url, api_key="any")

    ``async with`` serves on the running loop; ``with`` serves on a thread of its own. Requests take the replies of
    ``script`` in turn, and ``default`` when there are none left. ``service_time`` delays every answer. ``limits``
    are enforced, and refuse with 429. ``log`` holds every request as a `Hit`.
    """

    def __init__(
        self,
        script: Iterable[Reply] = (),
        *,
        default: Reply | None = None,
        text: str = "Hello, world.",
        service_time: float = 0.0,
        limits: Limits | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.script = deque(script)
        self.default = default or Reply()
        self.text = text
        self.service_time = service_time
        self.log: list[Hit] = []
        self.in_flight = 0
        self.peak = 0
        self._limiter = Limiter(limits) if limits else None
        self._host = host
        self._port = port
        self._server: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self._thread: _ServingThread | None = None

    @property
    def base_url(self) -> str:
        """The address that an OpenAI SDK takes as its ``base_url``."""
        return f"http://{self._host}:{self._port}/v1"

    async def start(self) -> None:
        """Listen. The first time picks a port, unless one was given; later times take the same again."""
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
            hit = Hit(
                at=time.monotonic(),
                method=request.method,
                path=request.path,
                headers={name.lower(): value for name, value in request.headers.items()},
                body=await request.read(),
                in_flight=self.in_flight,
            )
            self.log.append(hit)
            response = await self._answer(request, hit)
            hit.status = response.status
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
        headers: dict[str, str] = {}
        if self._limiter is not None and hit.method == "POST":
            wait = self._limiter.admit(count_tokens(payload) + _max_output(payload), hit.in_flight)
            headers = self._limiter.headers()
            if wait is not None:
                refusal = Reply.error(429, "rate_limit_exceeded", kind="requests", message="Too many requests.")
                return _plain(refusal, {**headers, **self._limiter.hint(wait)}, refusal.body)
        reply = self.script.popleft() if self.script else self.default
        await asyncio.sleep(self.service_time + reply.delay)
        headers |= reply.headers
        if reply.drop:
            await _drop(request)
        if reply.body is not None or reply.status != 200 or payload.get("stream") is not True:
            body = whole_answer(hit.path, payload, self.text) if reply.body is None else reply.body
            return _plain(reply, headers, body)
        return await self._stream(request, hit, payload, reply, headers)

    async def _stream(
        self,
        request: web.BaseRequest,
        hit: Hit,
        payload: Mapping[str, Any],
        reply: Reply,
        headers: Mapping[str, str],
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **headers})
        await response.prepare(request)
        for index, event in enumerate(events(hit.path, payload, reply.stream)):
            if reply.stream.gap and index > 1:  # the first two are the role and the first chunk
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


def _plain(reply: Reply, headers: Mapping[str, str], body: Any) -> web.Response:
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


def _max_output(payload: Mapping[str, Any]) -> int:
    bound = payload.get("max_completion_tokens", payload.get("max_tokens"))
    return bound if isinstance(bound, int) else 0
