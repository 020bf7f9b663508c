"""Jobs over batches and beside them, before a scripted provider in this process, in virtual time.

No byte goes through a socket: a `MemoryWire` hands requests to the provider's own logic, whose clock is that of
the loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import parse_qsl, urlsplit

from batch_lab import last_message
from virtual_time import EPOCH, VirtualLoop

from orchestra.batches import BatchDesk
from orchestra.budget import Budget
from orchestra.call import Body, Call, Headers
from orchestra.clock import Clock
from orchestra.config import parse_config
from orchestra.dispatch import Dispatcher
from orchestra.errors import ConnectionFailed
from orchestra.jobs import Job, JobManager, Parking, Result
from orchestra.policies.traffic import TrafficClass
from orchestra.testing import ScriptedProvider
from orchestra.testing import provider as provider_module
from orchestra.testing.content import Spool
from orchestra.testing.script import Hit, Reply
from orchestra.wire import WireResponse

KEY = "sk-our-secret-key-0123456789"


class _Dropped(Exception):
    pass


@dataclass
class _Request:
    """Stands where aiohttp's would: takes the answer."""

    reply: Reply | None = None
    data: bytes = b""


async def _write_whole(request: Any, hit: Hit, reply: Reply, clock: Any) -> Any:
    body = reply.body
    if isinstance(body, str):
        body = body.encode()
    elif not isinstance(body, bytes):
        body = b"".join(body) if hasattr(body, "__next__") else json.dumps(body).encode()
    request.reply, request.data = reply, body
    hit.status, hit.answered_at = reply.status, clock()


async def _drop(request: Any) -> None:
    raise _Dropped


@dataclass
class MemoryWire:
    """Carries requests to ``provider``, whatever host they name. ``sent`` are their URLs and headers."""

    provider: ScriptedProvider
    latency: float = 0.05
    sent: list[tuple[str, str, Mapping[str, str]]] = field(default_factory=list)
    fails: Any = None
    """Asked of each request, by method and path, for an exception to meet instead."""
    _busy: int = 0

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
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.sent.append((method, url, dict(headers)))
        self._busy += 1
        try:
            async with asyncio.timeout(read_timeout):
                await asyncio.sleep(self.latency * (0.5 + loop.dice.random()))
                answer = await self._answer(method, url, headers, body)
                await asyncio.sleep(self.latency * (0.5 + loop.dice.random()))
                return answer
        except TimeoutError:
            raise ConnectionFailed("no answer in time", sent=True) from None
        except _Dropped:
            raise ConnectionFailed("the connection broke", sent=True) from None
        finally:
            self._busy -= 1

    async def _answer(self, method: str, url: str, headers: Headers, body: Body) -> WireResponse:
        spool, parts = Spool(), urlsplit(url)
        if self.fails is not None and (fault := self.fails(method, parts.path)) is not None:
            raise fault
        if isinstance(body, bytes):
            spool.write(body)
        else:
            async for piece in body:
                spool.write(piece)
        content = spool.content()
        small = content.read() if content.size <= 1 << 20 else b""
        provider = self.provider
        hit = Hit(provider._clock(), method, parts.path, dict(headers), small, 1, dict(parse_qsl(parts.query)))
        hit.size, hit.body_hash = content.size, hashlib.sha256(content.read()).hexdigest()
        provider.log.append(hit)
        request: Any = _Request()
        provider.in_flight += 1
        provider.peak = max(provider.peak, provider.in_flight)
        try:
            await provider._answer(request, hit, content)
        finally:
            provider.in_flight -= 1
        reply, data = request.reply, request.data
        cut = reply.cut_after

        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(data), 4096):
                if cut is not None and at + 4096 > cut:
                    yield data[at:cut]
                    raise ConnectionFailed("the answer broke off", sent=True)
                yield data[at : at + 4096]

        async def close() -> None:
            pass

        told = (("content-type", "application/json"), *((k.lower(), v) for k, v in reply.headers.items()))
        return WireResponse(reply.status, told, pieces(), close)

    async def aclose(self) -> None:
        pass

    def busy(self) -> int:
        return self._busy


@dataclass
class DiversionLab:
    provider: ScriptedProvider
    wire: MemoryWire
    dispatcher: Dispatcher
    budget: Budget
    desk: BatchDesk
    manager: JobManager
    ended: bool = False

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def submit(
        self, count: int = 10, *, job: str = "j", deadline: Any = "24h", kind: str = "openai", **fields: Any
    ) -> Job:
        """Submit so many lines, in the wire of that kind."""
        lines = requests(count, kind=kind, **fields)
        return await self.manager.submit(lines, model="fast", job=job, deadline=deadline)

    async def done(self, job: Job) -> list[Result]:
        """Wait for the end of a job, and return its results in input order."""
        await job.wait()
        return [result async for result in job.results()]

    def via(self, results: list[Result]) -> Counter[str | None]:
        return Counter(result.via for result in results)

    def uploads(self) -> int:
        return sum(hit.method == "POST" and hit.path.endswith("/files") for hit in self.provider.log)

    def creates(self) -> int:
        return sum(hit.method == "POST" and hit.path.endswith("/batches") for hit in self.provider.log)

    def calls(self) -> int:
        return sum(hit.path.endswith(("/completions", "/messages", "/embeddings")) for hit in self.provider.log)

    def states(self, job: Job) -> list[str]:
        return [record.state for record in self.manager.store.batches.of_job(job.record.id)]

    def notes(self, job: Job) -> list[str | None]:
        return [record.note for record in self.manager.store.batches.of_job(job.record.id)]

    def assert_paid_once(self) -> None:
        assert self.provider.billed.requests_paid_twice() == {}
        assert self.provider.billed.ids_paid_twice() == {}


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until it holds."""
    while not holds():  # noqa: ASYNC110 - time costs nothing here
        await asyncio.sleep(0.05)


def requests(count: int, *, prefix: str = "q", kind: str = "openai", **fields: Any) -> list[dict[str, Any]]:
    url = "/v1/messages" if kind == "anthropic" else "/v1/chat/completions"
    return [
        {
            "custom_id": f"{prefix}{number}",
            "method": "POST",
            "url": url,
            "body": {"messages": [{"role": "user", "content": f"{prefix}{number}"}], "max_tokens": 8, **fields},
        }
        for number in range(count)
    ]


def assert_answers(results: list[Result], prefix: str = "q") -> None:
    """Each line has its own answer."""
    for at, result in enumerate(results):
        assert result.ok, result
        assert result.custom_id == f"{prefix}{at}"
        assert f"{prefix}{at}" in (result.response or b"").decode(), result
        text = result.body.get("choices", [{}])[0].get("message", {}).get("content") or result.body["content"]
        assert text == f"{prefix}{at}" or text[0]["text"] == f"{prefix}{at}"


def settings(
    provider: ScriptedProvider | None,
    store: Path,
    *,
    kind: str = "openai",
    limits: Mapping[str, Any] | None = None,
    prices: Mapping[str, Any] | None = None,
    batch: Mapping[str, Any] | None = None,
    **sections: Any,
) -> dict[str, Any]:
    url = "http://p.test" + ("" if kind == "anthropic" else "/v1")
    one: dict[str, Any] = {"kind": kind, "base_url": url, "api_key": KEY, "batch": dict(batch or {})}
    one["limits"] = [dict(limits)] if limits else []
    one["prices"] = [dict(prices)] if prices else []
    return {
        "providers": {"one": one},
        "models": {"fast": {"routes": ["one/m"]}},
        "traffic": {"interactive_reserve": 0.0},
        "bulk": {"store": str(store / "jobs.db")},
        **sections,
    }


@asynccontextmanager
async def provided(**options: Any) -> AsyncIterator[ScriptedProvider]:
    """A provider in virtual time, whose answers echo their questions."""
    loop = asyncio.get_running_loop()
    provider = ScriptedProvider(**{"text": last_message, "clock": loop.time, "epoch": EPOCH, **options})
    provider.started_at = loop.time()
    provider._limiter.start(provider.started_at)
    with (
        mock.patch.object(provider_module, "write_whole", _write_whole),
        mock.patch.object(provider_module, "drop", _drop),
    ):
        yield provider


@asynccontextmanager
async def over(
    provider: ScriptedProvider, config: Mapping[str, Any], *, wire: MemoryWire | None = None
) -> AsyncIterator[DiversionLab]:
    """A program over ``provider``: leaving it is its orderly end."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    parsed = parse_config(dict(config))
    wire = wire or MemoryWire(provider)
    budget = Budget(parsed.traffic, clock=loop.time, call_at=loop.ring_at)
    dispatcher = Dispatcher(parsed, budget=budget, wire=wire, clock=loop.time, wall=loop.wall)
    desk = BatchDesk(budget=budget, wire=wire, routing=dispatcher.targets, wall=loop.wall)
    manager = JobManager(
        parsed.bulk.store,
        dispatcher.send,
        desk=desk,
        price=dispatcher.price,
        clock=Clock(loop.time, loop.wall),
        events=dispatcher.events,
    )
    try:
        yield DiversionLab(provider, wire, dispatcher, budget, desk, manager)
    finally:
        await manager.aclose()


@asynccontextmanager
async def diversion_lab(
    store: Path, config: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[DiversionLab]:
    """A provider with these ``options``, and a program over it. ``config`` are arguments of `settings`."""
    async with provided(**options) as provider, over(provider, settings(provider, store, **(config or {}))) as lab:
        yield lab


class SameLoop:
    """Stands where a loop in a thread of its own would: in virtual time there is one loop."""

    def begin(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work(), asyncio.get_running_loop())


@dataclass
class AwaitLab:
    """Calls that are awaited, over the program that ``lab`` is."""

    lab: DiversionLab
    parking: Parking

    async def ask(
        self,
        text: str,
        *,
        job: str | None = None,
        deadline: float = 86_400.0,
        kind: str = "openai",
        headers: Headers = (),
        **fields: Any,
    ) -> tuple[int, Any]:
        """Make a call as an SDK would inside ``bulk(deadline=..., job=...)``. Returns its status and answer."""
        path = "/v1/messages" if kind == "anthropic" else "/v1/chat/completions"
        payload = {"model": "fast", "messages": [{"role": "user", "content": text}], "max_tokens": 8, **fields}
        call = Call.originate(
            path, payload, traffic=TrafficClass.BULK, job=job, expires_at=self.lab.now() + deadline
        )
        if headers:
            call = replace(call, url=f"http://p.test{path}", headers=(*call.headers, *headers))
        routes = self.parking.routes(call)
        outcome = await (self.parking.send(call, routes) if routes else self.lab.dispatcher.send(call))
        return outcome.status, json.loads(await outcome.read())

    async def say(self, text: str, **options: Any) -> str:
        """Return what is answered."""
        status, answer = await self.ask(text, **options)
        assert status == 200, answer
        return str(
            answer["choices"][0]["message"]["content"] if "choices" in answer else answer["content"][0]["text"]
        )

    def jobs(self) -> list[str]:
        return [job.name for job in self.lab.manager.list()]


@asynccontextmanager
async def awaiting(provider: ScriptedProvider, config: Mapping[str, Any]) -> AsyncIterator[AwaitLab]:
    """A program over ``provider`` that awaits its calls."""
    async with over(provider, config) as lab:
        parking = Parking(
            store=lambda: lab.manager.store,
            loop=SameLoop,
            desk=lab.desk,
            send=lab.dispatcher.send,
            price=lab.dispatcher.price,
            tell=lab.dispatcher.tell,
            clock=lab.now,
        )
        try:
            yield AwaitLab(lab, parking)
        finally:
            await parking.aclose()
