"""OpenAI's SDK behind a semaphore, with its own retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
from load import PATIENCE, Ask, Load, ask_sdk, carry


@asynccontextmanager
async def connect(load: Load) -> AsyncIterator[Ask]:
    slots = asyncio.Semaphore(64)
    async with openai.AsyncOpenAI(base_url=load.base_url, api_key="any", max_retries=PATIENCE) as client:

        async def ask(prompt: str, interactive: bool) -> None:
            async with slots:
                await ask_sdk(client, load, prompt)

        yield ask


carry(connect)
