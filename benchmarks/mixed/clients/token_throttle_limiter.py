"""OpenAI's SDK inside token-throttle's reservations, which it corrects by the usage that came."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
from load import MODEL, PATIENCE, Ask, Load, ask_sdk, carry
from token_throttle import MemoryBackendBuilder, PerModelConfig, Quota, RateLimiter, UsageQuotas


@asynccontextmanager
async def connect(load: Load) -> AsyncIterator[Ask]:
    seconds = round(load.burst_seconds)
    quotas = [
        Quota(metric=metric, limit=round(limit * seconds / 60), per_seconds=seconds)
        for metric, limit in (("requests", load.requests_per_minute), ("tokens", load.tokens_per_minute))
        if limit is not None
    ]
    limiter = RateLimiter(PerModelConfig(quotas=UsageQuotas(quotas)), backend=MemoryBackendBuilder())
    async with openai.AsyncOpenAI(base_url=load.base_url, api_key="any", max_retries=PATIENCE) as client:

        async def ask(prompt: str, interactive: bool) -> None:
            reserved = {"requests": 1, "tokens": load.estimate(prompt)}
            async with limiter.reserve(reserved, model=MODEL) as handle:
                answer = await ask_sdk(client, load, prompt)
                usage = getattr(answer, "usage", answer)
                handle.set_actual_usage({"requests": 1, "tokens": usage.total_tokens})

        yield ask


carry(connect)
