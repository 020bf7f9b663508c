"""A dispatcher over real sockets and a real budget, with short waits and everything it does on record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from hand_clock import HandClock

from orchestra.budget import Budget
from orchestra.call import Call, Outcome
from orchestra.config import parse_config
from orchestra.dispatch import Dispatcher, LocalAnswerer
from orchestra.observe.events import Event, EventBus
from orchestra.policies.retry import RetryPolicy
from orchestra.testing import Reply, ScriptedProvider
from orchestra.transports.core import TransportCore
from orchestra.wire import HttpWire

QUICK = RetryPolicy(base=0.01, cap=0.02)
NOBODY = "http://127.0.0.1:9"
"""An address where nobody listens."""
REFUSED = Reply.error(429, "rate_limit_exceeded", kind="requests", headers={"retry-after": "0.01"})
_BOUNDS = ("traffic", "expires_at", "queue_bound", "job")


@dataclass
class Lab:
    dispatcher: Dispatcher
    budget: Budget
    wire: HttpWire
    core: TransportCore
    events: list[Event] = field(default_factory=list)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def in_flight(self) -> int:
        """Return the leases that have not ended, over all pools."""
        return sum(sum(pool["in_use"].values()) for pool in self.budget.snapshot())


def config_for(providers: Mapping[str, ScriptedProvider | str], **sections: Any) -> dict[str, Any]:
    """Return settings with these providers, and a model ``fast`` that all of them serve in this order."""
    urls = {name: one if isinstance(one, str) else one.base_url for name, one in providers.items()}
    return {
        "providers": {
            name: {"kind": "openai-compatible", "base_url": url, "api_key": f"key-of-{name}"}
            for name, url in urls.items()
        },
        "models": {"fast": {"routes": [f"{name}/{name}-model" for name in providers]}},
        **sections,
    }


@asynccontextmanager
async def running(
    config: Mapping[str, Any],
    *,
    retry: RetryPolicy = QUICK,
    local: Mapping[str, LocalAnswerer] | None = None,
    clock: HandClock | None = None,
) -> AsyncIterator[Lab]:
    """``clock``: what budget and dispatcher go by, in place of real time. Sockets go by none."""
    settings = parse_config(config)
    wire = HttpWire()
    bus = EventBus()
    pools: dict[str, Any] = {} if clock is None else {"clock": clock, "call_at": clock.call_at}
    times: dict[str, Any] = {} if clock is None else {"clock": clock, "sleep": clock.sleep}
    budget = Budget(settings.traffic, **pools)
    dispatcher = Dispatcher(settings, budget=budget, wire=wire, local=local, retry=retry, events=bus, **times)
    lab = Lab(dispatcher, budget, wire, TransportCore(dispatcher.send))
    bus.subscribe(lab.events.append)
    try:
        yield lab
    finally:
        await wire.aclose()


def chat(model: str = "fast", *, content: str = "hi", **options: Any) -> Call:
    """Return a call of our own making. What is no bound of the call is a field of its body."""
    bounds = {name: options.pop(name) for name in _BOUNDS if name in options}
    payload = {"model": model, "messages": [{"role": "user", "content": content}], **options}
    return Call.originate("/v1/chat/completions", payload, **bounds)


def pointed(url: str, model: str = "m", *, method: str = "POST", headers: dict[str, str] | None = None) -> Call:
    """Return a call as an SDK would make it that was pointed at ``url``."""
    payload = {"model": model, "messages": [{"role": "user", "content": "hi"}]} if method == "POST" else None
    body = b"" if payload is None else json.dumps(payload).encode()
    lines = tuple((headers or {"authorization": "Bearer callers-own"}).items())
    return Call("id", method, url, lines, body, payload)


async def text_of(outcome: Outcome) -> str:
    """Return the text of a chat answer, streamed or not."""
    body = await outcome.read()
    if not body.startswith(b"data:"):
        return str(json.loads(body)["choices"][0]["message"]["content"])
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events if event["choices"])


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until ``holds``."""
    async with asyncio.timeout(30):  # which bounds a hang, and no machine
        while not holds():  # noqa: ASYNC110 - whatever it is, it tells nobody
            await asyncio.sleep(0.005)
