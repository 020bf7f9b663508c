"""litellm's Router with the account's limits as the deployment's rpm and tpm."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import litellm
from load import MODEL, PATIENCE, Ask, Load, carry

litellm.suppress_debug_info = True


@asynccontextmanager
async def connect(load: Load) -> AsyncIterator[Ask]:
    deployment = {
        "model_name": MODEL,
        "litellm_params": {
            "model": f"openai/{MODEL}",
            "api_base": load.base_url,
            "api_key": "any",
            "rpm": None if load.requests_per_minute is None else round(load.requests_per_minute),
            "tpm": None if load.tokens_per_minute is None else round(load.tokens_per_minute),
        },
    }
    router = litellm.Router(model_list=[deployment], num_retries=PATIENCE, disable_cooldowns=True)

    async def ask(prompt: str, interactive: bool) -> None:
        messages = [{"role": "user", "content": prompt}]
        answer = await router.acompletion(
            model=MODEL, messages=messages, max_tokens=load.max_tokens, stream=load.stream
        )
        if load.stream:
            async for _ in answer:
                pass

    yield ask


carry(connect)
