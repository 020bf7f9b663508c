"""OpenAI's SDK behind two aiolimiter buckets: requests and tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
from aiolimiter import AsyncLimiter
from load import PATIENCE, Ask, Load, ask_sdk, carry


@asynccontextmanager
async def connect(load: Load) -> AsyncIterator[Ask]:
    share = load.burst_seconds / 60
    requests = AsyncLimiter((load.requests_per_minute or 0) * share, load.burst_seconds)
    tokens = AsyncLimiter((load.tokens_per_minute or 0) * share, load.burst_seconds)
    async with openai.AsyncOpenAI(base_url=load.base_url, api_key="any", max_retries=PATIENCE) as client:

        async def ask(prompt: str, interactive: bool) -> None:
            await requests.acquire()
            await tokens.acquire(load.estimate(prompt))
            await ask_sdk(client, load, prompt)

        yield ask


carry(connect)
