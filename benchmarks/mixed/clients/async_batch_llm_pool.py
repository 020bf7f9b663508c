"""async-batch-llm's call pool around OpenAI's SDK: its own admission by requests and tokens, its own retries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
from async_batch_llm import (
    CallableStrategy,
    CallOutcome,
    CharacterTokenEstimator,
    LLMCallPool,
    ProcessorConfig,
    RateLimitConfig,
    RetryConfig,
)
from load import PATIENCE, Ask, Load, ask_sdk, carry


@asynccontextmanager
async def connect(load: Load) -> AsyncIterator[Ask]:
    async with openai.AsyncOpenAI(base_url=load.base_url, api_key="any", max_retries=0) as client:

        async def invoke(prompt: str, *, attempt: int, timeout: float, state: Any) -> CallOutcome[str]:
            answer = await ask_sdk(client, load, prompt)
            usage = getattr(answer, "usage", answer)
            return CallOutcome(
                "",
                token_usage={
                    "input_tokens": usage.prompt_tokens,
                    "output_tokens": usage.completion_tokens,
                    "total_tokens": usage.total_tokens,
                },
            )

        config = ProcessorConfig(
            concurrency=64,
            max_requests_per_minute=load.requests_per_minute,
            max_tokens_per_minute=None if load.tokens_per_minute is None else round(load.tokens_per_minute),
            quota_burst_seconds=load.burst_seconds,
            # By default one refusal stops everybody for five minutes. Its documentation says to tune that.
            rate_limit=RateLimitConfig(cooldown_seconds=0.5, slow_start_items=0),
            retry=RetryConfig(max_rate_limit_retries=PATIENCE),
            token_estimator=CharacterTokenEstimator(expected_output_tokens=load.max_tokens + 10),
        )
        async with LLMCallPool(CallableStrategy(invoke), config=config) as pool:

            async def ask(prompt: str, interactive: bool) -> None:
                await pool.submit(prompt)

            yield ask


carry(connect)
