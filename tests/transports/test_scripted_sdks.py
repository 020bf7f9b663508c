"""The official SDKs take the scripted provider for the real one: every object parses, no key too many or few."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pydantic
import pytest
from batch_lab import CHAT, jsonl, last_message, line, params
from openapi import faults, needs_description

from orchestra.testing import BatchScript, Reply, ScriptedProvider

LINES = [line(f"l{number}") for number in range(4)]
SCRIPT = BatchScript(replies={"l1": Reply.error(400, "some_code")}, end="expired", answered=3)


@asynccontextmanager
async def openai_sdk(*scripts: BatchScript) -> AsyncIterator[openai.AsyncOpenAI]:
    provider = ScriptedProvider(text=last_message, batch_script=scripts)
    async with provider, openai.AsyncOpenAI(base_url=provider.base_url, api_key="any", max_retries=0) as client:
        yield client


def complete(parsed: pydantic.BaseModel, raw: dict[str, Any]) -> None:
    """Assert that ``raw`` has the keys of its type and no others, all the way down."""
    assert set(raw) == set(type(parsed).model_fields), type(parsed)
    for name, value in raw.items():
        inner = getattr(parsed, name)
        if isinstance(inner, pydantic.BaseModel):
            complete(inner, value)
        elif isinstance(inner, list):
            for one, told in zip(inner, value, strict=True):
                if isinstance(one, pydantic.BaseModel):
                    complete(one, told)


async def test_openais_sdk():
    async with openai_sdk(SCRIPT, BatchScript(running=9)) as client:
        raw = client.with_raw_response
        answer = await raw.files.create(file=("lines.jsonl", jsonl(LINES)), purpose="batch")
        file = answer.parse()
        complete(file, json.loads(answer.text))
        made = [
            await raw.batches.create(
                input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"a": "b"}
            )
            for _ in range(2)
        ]
        ended, running = [one.parse() for one in made]
        for answer in (*made, await raw.batches.retrieve(ended.id), await raw.batches.cancel(running.id)):
            complete(answer.parse(), json.loads(answer.text))
        batch = await client.batches.retrieve(ended.id)
        assert (batch.status, batch.metadata) == ("expired", {"a": "b"})
        assert batch.request_counts is not None
        assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 2)
        assert batch.output_file_id is not None
        content = (await client.files.content(batch.output_file_id)).text
        bodies = [json.loads(one)["response"]["body"] for one in content.splitlines()]
        said = [openai.types.chat.ChatCompletion.model_validate(body) for body in bodies]
        assert [one.choices[0].message.content for one in said] == ["to l0", "to l2"]
        assert [one.id async for one in client.batches.list(limit=1)] == [running.id, ended.id]
        assert file.id in [one.id async for one in client.files.list(limit=1)]
        assert (await client.files.delete(file.id)).deleted
        with pytest.raises(openai.NotFoundError, match="No such File"):
            await client.files.content(file.id)
        with pytest.raises(openai.ConflictError):
            await client.batches.cancel(ended.id)


async def test_anthropics_sdk():
    anthropic = pytest.importorskip("anthropic")
    requests = [{"custom_id": one["custom_id"], "params": one["body"]} for one in LINES]
    replies = {"l1": Reply.anthropic_error(529, "overloaded_error")}
    scripts = [BatchScript(replies=replies, end="expired", answered=3), BatchScript(running=9)]
    provider = ScriptedProvider(text=last_message, batch_script=scripts)
    async with (
        provider,
        anthropic.AsyncAnthropic(base_url=provider.origin, api_key="any", max_retries=0) as client,
    ):
        raw = client.with_raw_response
        made = [await raw.messages.batches.create(requests=requests) for _ in range(2)]
        ended, running = [await one.parse() for one in made]
        read = await raw.messages.batches.retrieve(ended.id)
        cancelled = await raw.messages.batches.cancel(running.id)
        for answer in (*made, read, cancelled):
            complete(await answer.parse(), json.loads(await answer.text()))
        found = {one.custom_id: one.result async for one in await client.messages.batches.results(ended.id)}
        assert {name: one.type for name, one in found.items()} == {
            "l0": "succeeded",
            "l1": "errored",
            "l2": "succeeded",
            "l3": "expired",
        }
        assert found["l2"].message.content[0].text == "to l2"
        assert found["l1"].error.error.type == "overloaded_error"
        assert [one.id async for one in client.messages.batches.list(limit=1)] == [running.id, ended.id]
        assert (await client.messages.batches.delete(ended.id)).type == "message_batch_deleted"
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.batches.create(requests=[{**requests[0], "custom_id": "no good"}])


@needs_description
async def test_openais_own_description():
    async with openai_sdk(SCRIPT) as client:
        raw = client.with_raw_response
        answer = await raw.files.create(file=("lines.jsonl", jsonl(LINES)), purpose="batch")
        file = json.loads(answer.text)
        assert list(faults("OpenAIFile", file, nulls=False)) == []
        made = await raw.batches.create(input_file_id=file["id"], endpoint=CHAT, completion_window="24h")
        assert list(faults("Batch", json.loads(made.text), nulls=False)) == []
        listed = json.loads((await raw.batches.list()).text)
        assert list(faults("ListBatchesResponse", listed, nulls=False)) == []
        chat = await raw.chat.completions.create(**params("hello"))
        assert list(faults("CreateChatCompletionResponse", json.loads(chat.text))) == []
