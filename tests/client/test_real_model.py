"""The small model through every door: one engine, loaded once, for tests that each run a loop of their own."""

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

import orchestra
from orchestra import Orchestra
from orchestra.config import BulkConfig, default_config

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

ASK: Any = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
URL = "https://api.openai.com/v1/chat/completions"


@pytest.fixture(scope="module")
def orc(model_read_once: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orchestra]:
    store = BulkConfig(store=str(tmp_path_factory.mktemp("bulk") / "jobs.db"))
    made = Orchestra(default_config().model_copy(update={"bulk": store}))
    yield made
    asyncio.run(made.aclose())


@pytest.fixture
def sdk(orc: Orchestra) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="unused", http_client=orc.http_client())


async def test_our_own_client(orc: Orchestra) -> None:
    reply = await orc.chat("local/smollm2", ASK, temperature=0)
    assert (reply.text, reply.choices[0].finish_reason) == (PARIS, "stop")
    async with orc.stream("local/smollm2", ASK, temperature=0) as deltas:
        pieces = [text async for text in deltas]
    assert "".join(pieces) == deltas.text == PARIS
    assert len(pieces) > 1
    assert deltas.usage is not None
    assert reply.usage is not None
    assert deltas.usage.completion_tokens == reply.usage.completion_tokens


async def test_the_unmodified_openai_sdk(sdk: openai.AsyncOpenAI) -> None:
    reply = await sdk.chat.completions.create(model="local/smollm2", messages=ASK, temperature=0)
    assert reply.choices[0].message.content == PARIS
    assert reply.choices[0].finish_reason == "stop"
    stream = await sdk.chat.completions.create(
        model="local/smollm2", messages=ASK, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == PARIS
    assert chunks[-1].usage is not None
    assert reply.usage is not None
    assert chunks[-1].usage.completion_tokens == reply.usage.completion_tokens
    text = await sdk.completions.create(
        model="local/smollm2", prompt="The capital of France is", temperature=0, max_tokens=1
    )
    assert (text.choices[0].text, text.choices[0].finish_reason) == (" Paris", "length")


async def test_openais_responses(sdk: openai.AsyncOpenAI) -> None:
    asked = {"model": "local/smollm2", "input": ASK, "temperature": 0}
    reply = await sdk.responses.create(**asked)
    assert (reply.output_text, reply.status) == (PARIS, "completed")
    async with sdk.responses.stream(**asked) as stream:
        pieces = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(pieces) == final.output_text == PARIS
    assert len(pieces) > 1
    assert final.usage is not None
    assert reply.usage is not None
    assert final.usage.output_tokens == reply.usage.output_tokens
    cut = await sdk.responses.create(**asked, max_output_tokens=2)
    assert (cut.output_text, cut.status) == ("The capital", "incomplete")


async def test_the_unmodified_anthropic_sdk(orc: Orchestra) -> None:
    claude = anthropic.AsyncAnthropic(api_key="unused", http_client=orc.http_client())
    asked: Any = {
        "model": "local/smollm2",
        "messages": ASK,
        "max_tokens": 40,
        "extra_body": {"temperature": 0},
    }
    reply = await claude.messages.create(**asked)
    assert [block.text for block in reply.content if block.type == "text"] == [PARIS]
    assert reply.stop_reason == "end_turn"
    async with claude.messages.stream(**asked) as stream:
        pieces = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    assert "".join(pieces) == PARIS
    assert len(pieces) > 1
    assert final.usage.output_tokens == reply.usage.output_tokens
    started = final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)
    assert started == reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0) > 0
    stopped = await claude.messages.create(**asked, stop_sequences=["Paris", " is"])
    assert [block.text for block in stopped.content if block.type == "text"] == ["The capital of France"]
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " is")
    with pytest.raises(anthropic.BadRequestError, match="tokens"):
        await claude.messages.create(
            model="local/smollm2", max_tokens=9, messages=[{"role": "user", "content": "word " * 9000}]
        )


async def test_a_bare_client_of_the_other_family(orc: Orchestra) -> None:
    async with orc.http_client("httpx") as client:
        assert isinstance(client, httpx.AsyncClient)
        body = {"model": "local/smollm2", "messages": ASK, "temperature": 0}
        assert (await client.post(URL, json=body)).json()["choices"][0]["message"]["content"] == PARIS
        async with client.stream("POST", URL, json={**body, "stream": True}) as response:
            lines = [line async for line in response.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert response.headers["content-type"].startswith("text/event-stream")


async def test_errors_are_typed(orc: Orchestra, sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.chat.completions.create(
            model="local/smollm2", messages=[{"role": "user", "content": "word " * 9000}]
        )
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    with pytest.raises(openai.BadRequestError, match="cannot do 'best_of'"):
        await sdk.chat.completions.create(model="local/smollm2", messages=ASK, extra_body={"best_of": 2})
    with pytest.raises(orchestra.InputError, match="lone surrogate"):
        await orc.chat("local/smollm2", [{"role": "user", "content": "half \ud800"}])


async def test_a_stream_that_is_left_frees_the_engine(orc: Orchestra) -> None:
    async with orc.stream("local/smollm2", ASK, ignore_eos=True, max_tokens=2000) as deltas:
        await anext(deltas)
    engine = await orc.engine("smollm2")
    async with asyncio.timeout(300):
        while engine.stats()["running"]["interactive"]:  # noqa: ASYNC110 - until its next step
            await asyncio.sleep(0.01)


async def test_what_is_too_long_for_a_job_is_refused_before_anything_is_sent(
    orc: Orchestra, tmp_path: Any
) -> None:
    await orc.engine("smollm2")
    lines = tmp_path / "in.jsonl"
    long = "word " * 9000
    lines.write_text('{"prompt": "Hello"}\n{"messages": [{"role": "user", "content": "' + long + '"}]}\n')
    with pytest.raises(orchestra.InputError, match=r"line 2.*tokens"):
        await orc.submit(lines, model="local/smollm2", job="too-long")
