"""A provider on the loopback interface that answers as it is told."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from orchestra.testing import forms
from orchestra.testing.anthropic_batches import AnthropicBatches
from orchestra.testing.background import Background
from orchestra.testing.batch_faults import BatchFaults, Mishaps
from orchestra.testing.batch_script import BatchLimits, BatchScript
from orchestra.testing.batches import Desk, taken
from orchestra.testing.bills import Bills
from orchestra.testing.content import Content
from orchestra.testing.control import Control
from orchestra.testing.files import Files
from orchestra.testing.gemini_batches import GeminiBatches
from orchestra.testing.limiter import Limiter, Limits, Tenant
from orchestra.testing.mistral_batches import MistralBatches
from orchestra.testing.openai_batches import OpenAIBatches
from orchestra.testing.reading import read_request
from orchestra.testing.script import Hit, Reply, count_tokens, output_tokens
from orchestra.testing.serving import ServingThread
from orchestra.testing.together_batches import TogetherBatches
from orchestra.testing.writing import drop, write_stream, write_whole

__all__ = ["ScriptedProvider"]


class ScriptedProvider:
    """A server of the OpenAI, Anthropic and Gemini wires, for tests and benchmarks: real sockets, nothing to pay.

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
      in which nobody finds the file. ``batch_faults``: what goes wrong at random (`BatchFaults`).
    - ``background_default``: the course of responses that are made in the background, as of a batch of one line.
    - ``accounts``: the keys that are taken, and whose account each opens. Files and batches belong to an account:
      to others they do not exist. None: any key will do, and all are of one account.
    - ``clock``: the seconds that limits and batches go by, in place of the real ones, and ``epoch``: the unix time
      at which it stood at 0. Nothing runs in the background: what has become of a batch is computed when somebody
      asks.

    `kill` drops every connection, `restart` comes back on the same port; files and batches outlast both. ``log``
    holds every request as a `Hit`; ``in_flight`` and ``peak`` count those at once; ``billed`` is what was paid.

    It serves ``/v1/chat/completions``, ``completions``, ``embeddings``, ``responses``, ``models``, ``files`` and
    ``batches`` in OpenAI's form; ``/v1/messages``, ``/v1/messages/count_tokens`` and ``/v1/messages/batches`` in
    Anthropic's; ``/v1beta/models/*`` and ``/v1beta/batches`` in Gemini's; ``/v1/batch/jobs`` in Mistral's and
    ``/together/v1/batches`` in Together's, whose files are below ``/mistral/v1`` and ``/together/v1``. Any other
    path is answered 404. Limits hold for the models; files and batches count towards none of them.

    Bodies of more than a megabyte are on disk while they are needed, and results are made when they are read: a
    batch takes 36 bytes a line. ``keep_log=False`` forgets the requests as well. Another process on the machine
    asks for the bills at ``/__orchestra/bills`` (`orchestra.testing.control`).
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
        batch_faults: BatchFaults | None = None,
        background_default: BatchScript | None = None,
        file_delay: float = 0.0,
        keep_log: bool = True,
        accounts: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        epoch: float | None = None,
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
        self._keep_log = keep_log
        self._under_way: set[asyncio.Task[Reply]] = set()
        self._control = Control(self)
        self._desk = Desk(
            count=self._count,
            answer=self._usual,
            serves=forms.serves,
            origin=lambda: self.origin,
            clock=clock,
            script=deque(batch_script),
            default=batch_default or BatchScript(),
            limits=batch_limits or BatchLimits(),
            file_delay=file_delay,
            mishaps=Mishaps(batch_faults or BatchFaults()),
        )
        if epoch is not None:
            self._desk.epoch = epoch
        kinds = (OpenAIBatches, AnthropicBatches, MistralBatches, TogetherBatches, GeminiBatches)
        self._batches = tuple(kind(self._desk) for kind in kinds)
        self._background = Background(self._desk, background_default or BatchScript())
        self._endpoints = (*self._batches, Files(self._desk), self._background)

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
    def background_default(self) -> BatchScript:
        """The course of responses in the background. Assign to change it for those to come."""
        return self._background.default

    @background_default.setter
    def background_default(self, script: BatchScript) -> None:
        self._background.default = script

    @property
    def batch_limits(self) -> BatchLimits:
        """What is allowed of batches. Assign to change it."""
        return self._desk.limits

    @batch_limits.setter
    def batch_limits(self, limits: BatchLimits) -> None:
        self._desk.limits = limits

    @property
    def batch_faults(self) -> BatchFaults:
        """What goes wrong at random. Assign to change it; its dice start anew."""
        return self._desk.mishaps.faults

    @batch_faults.setter
    def batch_faults(self, faults: BatchFaults) -> None:
        seen, self._desk.mishaps = self._desk.mishaps.seen, Mishaps(faults)
        self._desk.mishaps.seen = seen

    @property
    def billed(self) -> Bills:
        """What has been answered and paid until now, the lines of ended batches included. To be read only."""
        with self._desk.lock:
            for endpoint in self._endpoints:
                endpoint.settle()
            return self._desk.bills

    def counts(self) -> dict[str, Any]:
        """Return how many files were uploaded, how many batches created, of how many lines, and how often each of
        `BatchFaults` happened."""
        return {
            "files": self._desk.files.uploads,
            "batches": sum(endpoint.created for endpoint in self._batches),
            "lines": sum(endpoint.lines for endpoint in self._batches),
            "faults": dict(self._desk.mishaps.seen),
        }

    def forget(self) -> None:
        """Forget all files, batches, bills and requests."""
        with self._desk.lock:
            for endpoint in (*self._batches, self._background):
                endpoint.clear()
            self._desk.files.clear()
            self._desk.bills = Bills()
            self._desk.mishaps.seen.clear()
            self.log.clear()

    async def start(self) -> None:
        """Listen. The first time picks a port, unless one was given; later times take the same again."""
        if not self.started_at:
            self.started_at = self._clock()
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
        self._control.close()
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
            hit, body = await read_request(request, self._clock(), self.in_flight)
            if self._control.serves(hit, request.remote):
                return await write_whole(request, hit, self._control.answer(hit), self._clock)
            if self._keep_log:
                self.log.append(hit)
            response = await self._answer(request, hit, body)
            hit.completed = True
            return response
        except ConnectionResetError:  # the client went away: nobody is to be told
            return web.Response()
        finally:
            self.in_flight -= 1

    async def answer_about_batches(self, hit: Hit, body: Content) -> Reply | None:
        """Answer a request about files or batches that came through no socket; None where it is about neither.

        Whoever asks waits out the reply's delay, and writes its body, which may be a string, pieces, or JSON.
        """
        endpoint = next((one for one in self._endpoints if one.serves(hit.path)), None)
        account = self._account_of(hit)
        if endpoint is None or account is None:
            return None
        endpoint.settle()
        return await endpoint.answer(hit, body, account)

    async def _answer(self, request: web.BaseRequest, hit: Hit, body: Content) -> web.StreamResponse:
        account = self._account_of(hit)
        if account is None:
            return await write_whole(request, hit, forms.form_of(hit.path).unauthorized(), self._clock)
        scripted = self._scripted(hit)
        endpoint = next((one for one in self._endpoints if one.serves(hit.path)), None)
        if endpoint is None:
            return await self._answer_model(request, hit, body, account, scripted)
        if scripted is not None and scripted.own:
            reply = scripted
        else:
            endpoint.settle()
            reply = taken(scripted, await self._to_the_end(endpoint.answer(hit, body, account)))
        return await self._write(request, hit, reply)

    async def _answer_model(
        self, request: web.BaseRequest, hit: Hit, body: Content, account: str, scripted: Reply | None
    ) -> web.StreamResponse:
        payload = forms.asked(hit.path, body)
        form = forms.form_of(hit.path)
        self._change_limits(hit.at)
        prompt, bound = count_tokens(payload, self.tokens_per_character), forms.most_output(payload)
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
        reply = replace(reply, headers={**headers, **reply.headers}, delay=0.0)
        if reply.drop:
            await drop(request)
        if reply.body is None and not form.serves(hit.path, hit.method):
            refusal = form.unknown(hit.method, hit.path)
            reply = replace(reply, status=max(reply.status, refusal.status), body=refusal.body)
        usual = reply.body is None and reply.status == 200
        later = usual and payload.get("background") is True and hit.path.endswith("/responses")
        streams = usual and not later and forms.streamed(hit.path, payload)
        text = "".join(reply.stream.chunks) if streams else self._text_for(payload)
        if metered and reply.body is None:
            hit.tokens = self._limiter.settle(prompt, bound, output_tokens(text))["tokens"]
        if later:
            answer = form.whole_answer(hit.path, payload, text, prompt)
            started = self._background.start(payload, answer, account)
            return await self._write(request, hit, replace(started, headers={**started.headers, **reply.headers}))
        if metered and reply.status < 400 and not hit.path.endswith("/count_tokens"):
            self._desk.bills.add_call(payload)
        if streams:
            events = form.events(hit.path, payload, reply.stream, prompt)
            return await write_stream(request, hit, reply, events, self._clock)
        if reply.body is None:
            reply = replace(reply, body=form.whole_answer(hit.path, payload, text, prompt))
        return await write_whole(request, hit, reply, self._clock)

    async def _write(self, request: web.BaseRequest, hit: Hit, reply: Reply) -> web.StreamResponse:
        await asyncio.sleep(reply.delay)
        if reply.drop:
            await drop(request)
        return await write_whole(request, hit, reply, self._clock)

    async def _to_the_end(self, answering: Coroutine[Any, Any, Reply]) -> Reply:
        """Do what was asked, though who asked may go away meanwhile: it has arrived."""
        task = asyncio.get_running_loop().create_task(answering)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    def _count(self, payload: Mapping[str, Any]) -> tuple[int, int]:
        """Return the tokens of a prompt, and of its answer where no script has another."""
        return count_tokens(payload, self.tokens_per_character), output_tokens(self._text_for(payload))

    def _usual(self, path: str, payload: Mapping[str, Any], prompt: int) -> str:
        """Return the answer of a line of a batch where no script has another."""
        return forms.encoded_answer(path, payload, self._text_for(payload), prompt)

    def _text_for(self, payload: Mapping[str, Any]) -> str:
        return self.text if isinstance(self.text, str) else self.text(payload)

    def _account_of(self, hit: Hit) -> str | None:
        """Return whose request it is, or None where its key is not taken."""
        if self.accounts is None:
            return "everybody"
        told = (hit.headers.get(name) for name in ("authorization", "x-api-key", "api-key", "x-goog-api-key"))
        key = next((key for key in told if key), hit.query.get("key", ""))
        return self.accounts.get(key.removeprefix("Bearer "))

    def _scripted(self, hit: Hit) -> Reply | None:
        for route, replies in self.routes.items():
            if replies and fnmatchcase(f"{hit.method} {hit.path}", route):
                return replies.popleft()
        return None

    def _change_limits(self, now: float) -> None:
        while self._changes and self._changes[0][0] <= now - self.started_at:
            self.limits = self._changes.popleft()[1]
