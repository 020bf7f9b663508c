"""What we ask of a provider, and what the local route answers, against OpenAI's published description."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
from openapi import faults, needs_description

from orchestra import Orchestra, bulk
from orchestra.testing import ScriptedProvider

pytestmark = needs_description

ASK: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
LINES = [
    {"messages": ASK},
    {"prompt": "Once upon a time"},
    {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "fast", "messages": ASK},
    },
    {"custom_id": "b", "method": "POST", "url": "/v1/embeddings", "body": {"model": "fast", "input": "Hello"}},
    {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"model": "fast", "prompt": "Hello"}},
]
SCHEMAS = {
    "/v1/chat/completions": "CreateChatCompletionRequest",
    "/v1/completions": "CreateCompletionRequest",
    "/v1/embeddings": "CreateEmbeddingRequest",
}


async def test_every_request_that_we_make_or_change(tmp_path: Path) -> None:
    async with ScriptedProvider() as provider:
        account = {"kind": "openai", "base_url": provider.base_url, "api_key": "k"}
        config = {
            "providers": {"account": account},
            "models": {"fast": {"routes": ["account/gpt-x"]}},
            "bulk": {"store": str(tmp_path / "jobs.db")},
        }
        async with Orchestra.from_config(config) as orc:
            await orc.chat("fast", ASK, max_tokens=5, temperature=0.2, tools=[TOOL], n=2)
            async with orc.stream("fast", ASK) as deltas:
                assert [text async for text in deltas]
            job = await orc.submit(LINES, model="fast", job="j")
            assert all([result.ok async for result in job])
            sdk = openai.AsyncOpenAI(base_url=provider.base_url, api_key="k", http_client=orc.http_client())
            with bulk(job="k"):
                stream = await sdk.chat.completions.create(model="fast", messages=ASK, stream=True)
                assert [chunk async for chunk in stream]
        asked = [hit for hit in provider.log if hit.method == "POST"]
    assert len(asked) == 8
    assert {json.loads(hit.body)["model"] for hit in asked} == {"gpt-x"}
    assert [fault for hit in asked for fault in faults(SCHEMAS[hit.path], json.loads(hit.body))] == []


async def test_every_answer_of_the_local_route(orc: Orchestra) -> None:
    sdk = openai.AsyncOpenAI(api_key="unused", http_client=orc.http_client())
    raw = sdk.with_raw_response
    chat = json.loads((await raw.chat.completions.create(model="fast", messages=ASK)).text)
    text = json.loads((await raw.completions.create(model="fast", prompt="Hello")).text)
    response = json.loads((await raw.responses.create(model="fast", input="Hello")).text)
    streamed = sdk.chat.completions.with_streaming_response
    async with streamed.create(model="fast", messages=ASK, stream=True) as answer:
        lines = [line async for line in answer.iter_lines() if line.startswith("data: {")]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert chunks
    assert [
        *faults("CreateChatCompletionResponse", chat),
        *faults("CreateCompletionResponse", text),
        *faults("Response", response),
        *[one for chunk in chunks for one in faults("CreateChatCompletionStreamResponse", chunk)],
    ] == []
