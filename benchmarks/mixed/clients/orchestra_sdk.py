"""OpenAI's SDK over ``orc.http_client()``: bulk calls are tagged, that is all."""

from __future__ import annotations

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
def shared_by_all_loops(load: str) -> orchestra.Orchestra:
    return orchestra.Orchestra.from_config(settings(_loads[load]))


_loads: dict[str, Load] = {}


@asynccontextmanager
async def connect(load: Load) -> AsyncIterator[Ask]:
    _loads[load.base_url] = load
    orc = shared_by_all_loops(load.base_url)
    client = openai.AsyncOpenAI(base_url=load.base_url, api_key="any", http_client=orc.http_client())

    async def ask(prompt: str, interactive: bool) -> None:
        with nullcontext() if interactive else orchestra.bulk(job="backlog"):
            await ask_sdk(client, load, prompt)

    yield ask


carry(connect)
