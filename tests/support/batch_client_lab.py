"""A client of batch endpoints before a scripted provider, or before answers that stand ready."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from batch_lab import Clock, last_message, params

from orchestra.batches import BatchClient, Lines
from orchestra.call import Body, Headers
from orchestra.config import ProviderConfig
from orchestra.dispatch.accounts import Account
from orchestra.providers.batches import BatchForm, BatchLine, BatchOrder, BatchState, LineResult, form_of_kind
from orchestra.testing import ScriptedProvider
from orchestra.wire import HttpWire, Wire, WireResponse

SAMPLES = Path(__file__).parent.parent / "samples"
SECRET = "sk-a-key-of-ours-0123"
PATHS = {"anthropic": "/v1/messages", "gemini": "/v1beta/models/m:generateContent", "openai": "/chat/completions"}


def form_for(kind: str) -> BatchForm:
    form = form_of_kind(kind)
    assert form is not None
    return form


def account_for(kind: str, base_url: str, api_key: str | None = SECRET) -> Account:
    return Account("acc", ProviderConfig(kind=kind, base_url=base_url, api_key=api_key))


def order_for(kind: str, key: str = "key-1", headers: Headers = ()) -> BatchOrder:
    return BatchOrder(key, PATHS.get(kind, "/v1/chat/completions"), "m", headers=headers)


def written(form: BatchForm, order: BatchOrder, count: int = 3, prefix: str = "c") -> tuple[Lines, int]:
    """Return the lines of a batch, and their size."""
    bodies = [json.dumps(params(f"to {number}")).encode() for number in range(count)]
    lines = [form.line(order, BatchLine(f"{prefix}{number}", body)) for number, body in enumerate(bodies)]

    async def each() -> AsyncIterator[bytes]:
        for line in lines:
            yield line

    return each, sum(len(line) for line in lines)


async def everything(client: BatchClient, state: BatchState) -> list[LineResult]:
    return [result async for results in client.results(state) for result in results]


@dataclass
class BatchClientLab:
    """``client`` speaks to ``provider``. Its pauses pass on ``clock``, and are noted in ``slept``."""

    provider: ScriptedProvider
    clock: Clock
    kind: str
    client: BatchClient
    wire: Wire
    slept: list[float]

    @property
    def form(self) -> BatchForm:
        return form_for(self.kind)

    async def submit(
        self, order: BatchOrder | None = None, count: int = 3, prefix: str = "c", client: BatchClient | None = None
    ) -> BatchState:
        """Upload, where lines are uploaded, and create."""
        order, client = order or order_for(self.kind), client or self.client
        lines, size = written(self.form, order, count, prefix)
        if not self.form.takes_files:
            return await client.create(order, lines, size)
        return await client.create(order, await client.upload(order, lines, size))

    def other(self, **options: Any) -> BatchClient:
        """Return another client of the same provider."""
        api_key = options.pop("api_key", SECRET)
        account = account_for(self.kind, self.base_url, api_key)
        return BatchClient(account, self.form, self.wire, polls_per_second=1000.0, **options)

    @property
    def base_url(self) -> str:
        return self.provider.base_url if self.kind == "openai" else self.provider.origin


@asynccontextmanager
async def batch_client_lab(kind: str, **options: Any) -> AsyncIterator[BatchClientLab]:
    clock, slept, wire = Clock(), list[float](), HttpWire()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now += seconds

    provider = ScriptedProvider(**{"text": last_message, "clock": clock, **options})
    async with provider:
        base_url = provider.base_url if kind == "openai" else provider.origin
        account = account_for(kind, base_url)
        client = BatchClient(account, form_for(kind), wire, polls_per_second=1000.0, sleep=sleep)
        yield BatchClientLab(provider, clock, kind, client, wire, slept)
        assert wire.busy() == 0
        await wire.aclose()


@dataclass(frozen=True)
class Sent:
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        parts = urlsplit(self.url)
        return parts.path + (f"?{parts.query}" if parts.query else "")

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class ReadyWire:
    """Answers from ``answers``, by method and path: a body (200), or a status, headers and a body. Of several the
    last stays. What nobody foresaw is a 404."""

    answers: Mapping[str, Sequence[Any]]
    log: list[Sent] = field(default_factory=list)
    unclosed: int = 0

    def __post_init__(self) -> None:
        self._left = {place: deque(answers) for place, answers in self.answers.items()}

    async def send(
        self,
        method: str,
        url: str,
        headers: Headers,
        body: Body,
        *,
        connect_timeout: float | None,
        read_timeout: float | None,
    ) -> WireResponse:
        whole = body if isinstance(body, bytes) else b"".join([piece async for piece in body])
        sent = Sent(method, url, dict(headers), whole)
        assert not isinstance(body, bytes) or "content-length" not in sent.headers
        self.log.append(sent)
        place = f"{method} {url}" if f"{method} {url}" in self._left else f"{method} {sent.path}"
        left = self._left.get(place, deque([(404, (), b'{"error":{"message":"no such thing"}}')]))
        answer = left.popleft() if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        status, lines, told = answer if isinstance(answer, tuple) else (200, (), answer)
        data = told if isinstance(told, bytes) else json.dumps(told).encode()
        self.unclosed += 1

        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(data), 50):
                yield data[at : at + 50]

        async def close() -> None:
            self.unclosed -= 1

        return WireResponse(status, lines, pieces(), close)

    async def aclose(self) -> None:
        pass

    def busy(self) -> int:
        return self.unclosed


def ready_client(kind: str, answers: Mapping[str, Sequence[Any]], **options: Any) -> tuple[BatchClient, ReadyWire]:
    """Return a client of a provider of which the answers stand ready."""
    wire = ReadyWire(answers)
    account = account_for(kind, options.pop("base_url", "https://api.example"), options.pop("api_key", SECRET))
    return BatchClient(account, form_for(kind), wire, polls_per_second=1000.0, **options), wire


def sample(name: str) -> Any:
    return json.loads((SAMPLES / f"{name}.json").read_text())


def sample_bytes(name: str) -> bytes:
    return (SAMPLES / name).read_bytes()
