"""An `Orchestra` and the official openai SDK over it, against a scripted provider, as an application has them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from orchestra import Orchestra, bulk, interactive
from orchestra.errors import AdmissionTimeout
from orchestra.policies.retry import RetryPolicy
from orchestra.testing import Hit, Reply, ScriptedProvider

QUICK = RetryPolicy(base=0.01, cap=0.02)
"""The real policy, with short waits."""
NOBODY = "http://nobody.invalid/v1"
"""Where SDKs point: only a route can bring their calls anywhere."""


def settings(
    provider: ScriptedProvider | str, *, kind: str = "openai-compatible", **limits: Any
) -> dict[str, Any]:
    """Return settings with one provider and one model, ``fast``. Bulk may take all, where nothing else is said."""
    url = provider if isinstance(provider, str) else provider.base_url
    one = {"kind": kind, "base_url": url, "api_key": "our-key", "limits": [limits] if limits else []}
    return {
        "providers": {"one": one},
        "models": {"fast": {"routes": ["one/m"]}},
        "traffic": {"interactive_reserve": 0.0},
    }


def opened(config: Mapping[str, Any], *, retry: RetryPolicy = QUICK) -> Orchestra:
    """Return an Orchestra that waits little between tries."""
    orc = Orchestra.from_config(config)
    orc._dispatcher._retry = retry
    return orc


def sdk_over(orc: Orchestra, **options: Any) -> openai.AsyncOpenAI:
    """Return the unmodified SDK over ``orc``."""
    options = {"base_url": NOBODY, "api_key": "callers-own", **options}
    return openai.AsyncOpenAI(http_client=orc.http_client(), **options)


@dataclass
class Front:
    """What an application holds. ``ask`` is the SDK's plain call."""

    orc: Orchestra
    sdk: openai.AsyncOpenAI
    provider: ScriptedProvider

    async def ask(self, content: str = "hi", **fields: Any) -> Any:
        messages: Any = [{"role": "user", "content": content}]
        return await self.sdk.chat.completions.create(**{"model": "fast", "messages": messages, **fields})

    async def refuse(self, content: str = "hi", **fields: Any) -> None:
        """Make sure that a call is not let through now: its short bound passes and nothing is sent."""
        before = len(self.provider.log)
        with interactive(timeout=0.1), pytest.raises((openai.RateLimitError, openai.APITimeoutError)) as caught:
            await self.ask(content, **fields)
        # refused in advance, where the wait is known, or at the end of it
        assert isinstance(caught.value.__cause__, AdmissionTimeout) or caught.value.code == "orchestra_deadline"
        assert len(self.provider.log) == before

    def pool(self) -> dict[str, Any]:
        """Return the state of the only pool."""
        (pool,) = self.orc.snapshot()["pools"]
        return dict(pool)

    def in_flight(self) -> int:
        return sum(sum(pool["in_use"].values()) for pool in self.orc.snapshot()["pools"])

    def waiting(self) -> int:
        return sum(sum(pool["waiting"].values()) for pool in self.orc.snapshot()["pools"])


@asynccontextmanager
async def fronted(
    provider: ScriptedProvider,
    *,
    store: Path | None = None,
    retry: RetryPolicy = QUICK,
    sdk: Mapping[str, Any] | None = None,
    traffic: Mapping[str, Any] | None = None,
    kind: str = "openai-compatible",
    **limits: Any,
) -> AsyncIterator[Front]:
    """Open it all. ``store`` is for those who submit jobs, ``sdk`` goes to the SDK."""
    config = settings(provider, kind=kind, **limits)
    if store is not None:
        config["bulk"] = {"store": str(store / "jobs.db")}
    if traffic is not None:
        config["traffic"] = traffic
    async with opened(config, retry=retry) as orc, sdk_over(orc, **(sdk or {})) as client:
        yield Front(orc, client, provider)


MESSAGES: Any = [{"role": "user", "content": "hi"}]


async def _plain(front: Front) -> None:
    await front.ask()


async def _streamed(front: Front) -> None:
    async for _ in await front.ask(stream=True):
        pass


async def _responses_client(front: Front) -> None:
    async with front.orc.http_client() as client:
        response = await client.post(f"{NOBODY}/chat/completions", json={"model": "fast", "messages": MESSAGES})
        assert response.status_code == 200


async def _other_family(front: Front) -> None:
    async with front.orc.http_client("httpx") as client:
        response = await client.post(f"{NOBODY}/chat/completions", json={"model": "fast", "messages": MESSAGES})
        assert response.status_code == 200


async def _chat(front: Front) -> None:
    await front.orc.chat("fast", MESSAGES)


async def _stream(front: Front) -> None:
    async with front.orc.stream("fast", MESSAGES) as deltas:
        async for _ in deltas:
            pass


async def _bulk(front: Front) -> None:
    with bulk():
        await front.ask()


async def _embeddings(front: Front) -> None:
    await front.sdk.embeddings.create(model="fast", input="hi", encoding_format="float")


async def _submitted(front: Front, calls: int) -> None:
    job = await front.orc.submit([{"messages": MESSAGES}] * calls, model="fast")
    progress = await job.wait()
    assert (progress.done, progress.failed) == (calls, 0)


def _gathered(one: Callable[[Front], Awaitable[None]]) -> Callable[[Front, int], Awaitable[None]]:
    async def many(front: Front, calls: int) -> None:
        await asyncio.gather(*(one(front) for _ in range(calls)))

    return many


SURFACES: dict[str, Callable[[Front, int], Awaitable[None]]] = {
    "sdk": _gathered(_plain),
    "sdk stream": _gathered(_streamed),
    "sdk in a bulk block": _gathered(_bulk),
    "sdk embeddings": _gathered(_embeddings),
    "httpx2 client": _gathered(_responses_client),
    "httpx client": _gathered(_other_family),
    "chat()": _gathered(_chat),
    "stream()": _gathered(_stream),
    "submit()": _submitted,
}
"""Every way to make so many calls at once."""


def answer(prompt: int = 5, output: int = 1, **reply: Any) -> Reply:
    """Return an answer that tells this usage."""
    message = {"role": "assistant", "content": "Hello."}
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    body = {
        "id": "scripted",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": usage,
    }
    return Reply(body=body, **reply)


def events(*deltas: Mapping[str, Any], done: bool = True) -> Reply:
    """Return a stream of these deltas."""
    chunks = [
        {
            "id": "scripted",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}],
        }
        for delta in deltas
    ]
    lines = [json.dumps(chunk) for chunk in chunks] + (["[DONE]"] if done else [])
    body = "".join(f"data: {line}\n\n" for line in lines)
    return Reply(body=body, headers={"content-type": "text/event-stream"})


def said(hit: Hit) -> str:
    """Return what a request said last."""
    return str(hit.json["messages"][-1]["content"])


def assert_paced(log: Sequence[Hit], since: float, *, burst: float, per_second: float) -> None:
    """Make sure that no call came before the limit had room for it, counted from ``since``.

    Calls may come as late as the machine likes, so a busy one fails nobody.
    """
    for number, at in enumerate(sorted(hit.at for hit in log), start=1):
        assert at - since >= (number - burst) / per_second - 0.002, f"call {number} came too early"


async def until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until ``holds``."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        await asyncio.sleep(0.002)
