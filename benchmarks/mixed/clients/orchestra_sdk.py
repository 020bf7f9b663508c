"""OpenAI's SDK over ``orc.http_client()``: bulk calls are tagged, that is all."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from functools import cache
from typing import Any

import openai
from load import Ask, Load, ask_sdk, carry

import orchestra


def settings(load: Load) -> dict[str, Any]:
    account: dict[str, Any] = {"kind": "openai-compatible", "base_url": load.base_url}
    if load.requests_per_minute is not None:
        limits = {"requests_per_minute": load.requests_per_minute, "tokens_per_minute": load.tokens_per_minute}
        account["limits"] = [{**limits, "burst_seconds": load.burst_seconds}]
    return {"providers": {"account": account}, **({"budget": {"backend": load.shared}} if load.shared else {})}


@cache
def orchestra_of(base_url: str) -> orchestra.Orchestra:
    """Return the one that all loops share."""
    return orchestra.Orchestra.from_config(settings(loads[base_url]))


loads: dict[str, Load] = {}
lock = threading.Lock()


@asynccontextmanager
async def connect(load: Load) -> AsyncIterator[Ask]:
    with lock:
        loads[load.base_url] = load
        orc = orchestra_of(load.base_url)
    client = openai.AsyncOpenAI(base_url=load.base_url, api_key="any", http_client=orc.http_client())

    async def ask(prompt: str, interactive: bool) -> None:
        with nullcontext() if interactive else orchestra.bulk(job="backlog"):
            await ask_sdk(client, load, prompt)

    yield ask


carry(connect)
