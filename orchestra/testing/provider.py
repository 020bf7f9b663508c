"""A provider on the loopback interface that answers as it is told."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from types import ModuleType, TracebackType
from typing import Any, Self

from aiohttp import web

from orchestra.testing import anthropic_form, openai_form
from orchestra.testing.anthropic_batches import AnthropicBatches
from orchestra.testing.batch_script import BatchLimits, BatchScript
from orchestra.testing.batches import Desk, taken
from orchestra.testing.bills import Bills
from orchestra.testing.limiter import Limiter, Limits, Tenant
from orchestra.testing.openai_batches import OpenAIBatches
from orchestra.testing.script import Hit, Reply, count_tokens, output_tokens
from orchestra.testing.serving import ServingThread
from orchestra.testing.writing import drop, large_request, write_stream, write_whole

__all__ = ["ScriptedProvider"]

_LONG_BODY = 1 << 20


class ScriptedProvider:
    """A server of the OpenAI and Anthropic wires, for tests and benchmarks: real sockets, nothing to pay.

    ::

        async with ScriptedProvider([Reply.error(429, headers={"retry-after": "0.05"})]) as provider:
            client = AsyncOpenAI(base_url=provider.base_url, api_key="any")
            other = AsyncAnthropic(base_url=provider.origin, api_key="any")

    ``async with`` serves on the running loop; ``with`` serves on a thread of its own; ``python -m
    orchestra.testing`` in a process of its own. What it can be told:

    - ``script``: requests take these replies in turn, and ``default`` when there are none left. A `Reply` is any
      status, headers and body, the endpoint's default answer with ``text`` (or what ``text`` makes of a request's
      body), a stream with gaps, breaks and error events (`StreamScript`), a dropped connection.
    - ``routes``: the same for single routes and before all else: ``{"GET /v1/batches/*": [Reply.error(503)]}``.
    - ``service_time``: seconds before every answer that is not a refusal.
    - ``limits``: enforced, and refused with 429 (`Limits`: requests and tokens a minute with a burst, requests at
      once, how tokens are charged, what the headers tell and how). They may be changed while it runs: assign to
      ``limits``, or give ``changes``, pairs of seconds since the start and the limits from then on.
    - ``tenant``: somebody else who uses the same account (`Tenant`: steadily, or on and off).
    - ``tokens_per_character``: how long prompts are in tokens. A quarter is what most clients take for granted.

    - ``batch_script``: batches take these courses in turn, and ``batch_default`` when there are none left
      (`BatchScript`: how long it takes, how it ends, what becomes of its lines, how reading it fails).
    - ``batch_limits``: what may be queued and created (`BatchLimits`). ``file_delay``: the seconds after an upload
      in which nobody finds the file.
    - ``accounts``: the keys that are taken, and whose account each opens. Files and batches belong to an account:
      to others they do not exist. None: any key will do, and all are of one account.
    - ``clock``: the seconds that limits and batches go by, in place of the real ones. Nothing runs in the
      background: what has become of a batch is computed when somebody asks.

    `kill` drops every connection, `restart` comes back on the same port; files and batches outlast both. ``log``
    holds every request as a `Hit`; ``in_flight`` and ``peak`` count those at once; ``billed`` is what was paid.

    It serves ``/v1/chat/completions``, ``completions``, ``embeddings``, ``models``, ``files`` and ``batches`` in
    OpenAI's form, ``/v1/messages``, ``/v1/messages/count_tokens`` and ``/v1/messages/batches`` in Anthropic's.
    Limits hold for the models; files and batches count towards none of them.
    """

    def __init__(
        self,
        script: Iterable[Reply] = (),
        *,
        default: Reply | None = None,
        text: str | Callable[[Mapping[str, Any]], str] = "Hello, world.",
        routes: Mapping[str, Iterable[Reply]] | None = None,
        service_time: float = 0.0,
        limits: Limits | None = None,
        changes: Iterable[tuple[float, Limits]] = (),
        tenant: Tenant | None = None,
        tokens_per_character: float = 0.25,
        batch_script: Iterable[BatchScript] = (),
        batch_default: BatchScript | None = None,
        batch_limits: BatchLimits | None = None,
        file_delay: float = 0.0,
        accounts: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.script = deque(script)
        self.default = default or Reply()
        self.text = text
        self.routes = {route: deque(replies) for route, replies in (routes or {}).items()}
        self.accounts = accounts
        self.service_time = service_time
        self.tokens_per_character = tokens_per_character
        self.log: list[Hit] = []
        self.in_flight = 0
        self.peak = 0
        self.started_at = 0.0
        self._clock = clock
        self._limiter = Limiter(limits or Limits(headers="none"), tenant, clock)
        self._changes = deque(sorted(changes, key=lambda change: change[0]))
        self._host = host
        self._port = port
        self._server: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self._thread: ServingThread | None = None
        self._desk = Desk(
            answer=self._usual,
            origin=lambda: self.origin,
            clock=clock,
            script=deque(batch_script),
            default=batch_default or BatchScript(),
            limits=batch_limits or BatchLimits(),
            file_delay=file_delay,
        )
        self._batches = (OpenAIBatches(self._desk), AnthropicBatches(self._desk))

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

    @property
    def batch_script(self) -> deque[BatchScript]:
        """The courses of the batches to come."""
        return self._desk.script

    @property
    def batch_default(self) -> BatchScript:
        """The course of a batch when `batch_script` is empty. Assign to change it."""
        return self._desk.default

    @batch_default.setter
    def batch_default(self, script: BatchScript) -> None:
        self._desk.default = script

    @property
    def batch_limits(self) -> BatchLimits:
        """What is allowed of batches. Assign to change it."""
        return self._desk.limits

    @batch_limits.setter
    def batch_limits(self, limits: BatchLimits) -> None:
        self._desk.limits = limits

    @property
    def billed(self) -> Bills:
        """What has been answered and paid until now, the lines of ended batches included. To be read only."""
        with self._desk.lock:
            for endpoint in self._batches:
                endpoint.settle()
            return self._desk.bills

    async def start(self) -> None:
        """Listen. The first time picks a port, unless one was given; later times take the same again."""
        if not self.started_at:
            self.started_at = self._clock()
            self._limiter.start(self.started_at)
        self._server = web.Server(self._handle, handler_cancellation=True, request_factory=large_request)
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
        self._thread = ServingThread(self)
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
            hit = await self._noted(request)
            response = await self._answer(request, hit)
            hit.completed = True
            if hit.size > _LONG_BODY:
                hit.body = b""
            return response
        except ConnectionResetError:  # the client went away: nobody is to be told
            return web.Response()
        finally:
            self.in_flight -= 1

    async def _noted(self, request: web.BaseRequest) -> Hit:
        body = await request.read()
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        hit = Hit(
            at=self._clock(),
            method=request.method,
            path=request.path,
            headers={name.lower(): value for name, value in request.headers.items()},
            body=body,
            in_flight=self.in_flight,
            query=dict(request.query),
            connection=":".join(str(part) for part in peer or ()),
        )
        self.log.append(hit)
        return hit

    async def _answer(self, request: web.BaseRequest, hit: Hit) -> web.StreamResponse:
        account = self._account_of(hit)
        if account is None:
            form = _form_of(hit.path)
            return await write_whole(request, hit, form.unauthorized(), self._clock)
        scripted = self._scripted(hit)
        endpoint = next((one for one in self._batches if one.serves(hit.path)), None)
        if endpoint is None:
            return await self._answer_model(request, hit, scripted)
        if scripted is not None and scripted.own:
            reply = scripted
        else:
            with self._desk.lock:
                endpoint.settle()
                reply = taken(scripted, endpoint.answer(hit, account))
        await asyncio.sleep(reply.delay)
        if reply.drop:
            await drop(request)
        return await write_whole(request, hit, reply, self._clock)

    async def _answer_model(
        self, request: web.BaseRequest, hit: Hit, scripted: Reply | None
    ) -> web.StreamResponse:
        payload = _payload(hit.body)
        form = _form_of(hit.path)
        self._change_limits(hit.at)
        prompt, bound = count_tokens(payload, self.tokens_per_character), _most_output(payload)
        metered = hit.method == "POST"
        wait = self._limiter.admit(prompt, bound, hit.in_flight) if metered else None
        headers: dict[str, str] = {}
        if metered and self.limits.headers == "limits":
            headers = form.limit_headers(self._limiter.gauges())
        if wait is not None:
            hint = self._limiter.hint(wait, form.LIMIT_HEADER)
            refusal = replace(form.refusal(), headers={**headers, **hint})
            return await write_whole(request, hit, refusal, self._clock)
        hit.tokens = self._limiter.on_arrival(prompt, bound)["tokens"]
        reply = scripted or (self.script.popleft() if self.script else self.default)
        await asyncio.sleep(self.service_time + reply.delay)
        reply = replace(reply, headers={**headers, **reply.headers})
        if reply.drop:
            await drop(request)
        streams = reply.body is None and reply.status == 200 and payload.get("stream") is True
        text = "".join(reply.stream.chunks) if streams else self._text_for(payload)
        if metered and reply.body is None:
            hit.tokens = self._limiter.settle(prompt, bound, output_tokens(text))["tokens"]
        if metered and reply.status < 400 and not hit.path.endswith("/count_tokens"):
            self._desk.bills.add_sync(payload)
        if streams:
            events = form.events(hit.path, payload, reply.stream, prompt)
            return await write_stream(request, hit, reply, events, self._clock)
        if reply.body is None:
            reply = replace(reply, body=form.whole_answer(hit.path, payload, text, prompt))
        return await write_whole(request, hit, reply, self._clock)

    def _usual(self, path: str, payload: Mapping[str, Any]) -> Any:
        """Return the answer of an endpoint where no script has another."""
        prompt = count_tokens(payload, self.tokens_per_character)
        return _form_of(path).whole_answer(path, payload, self._text_for(payload), prompt)

    def _text_for(self, payload: Mapping[str, Any]) -> str:
        return self.text if isinstance(self.text, str) else self.text(payload)

    def _account_of(self, hit: Hit) -> str | None:
        """Return whose request it is, or None where its key is not taken."""
        if self.accounts is None:
            return "everybody"
        bearer = hit.headers.get("authorization", "").removeprefix("Bearer ")
        return self.accounts.get(bearer or hit.headers.get("x-api-key") or hit.headers.get("api-key", ""))

    def _scripted(self, hit: Hit) -> Reply | None:
        for route, replies in self.routes.items():
            if replies and fnmatchcase(f"{hit.method} {hit.path}", route):
                return replies.popleft()
        return None

    def _change_limits(self, now: float) -> None:
        while self._changes and self._changes[0][0] <= now - self.started_at:
            self.limits = self._changes.popleft()[1]


def _form_of(path: str) -> ModuleType:
    return anthropic_form if "/messages" in path else openai_form


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
