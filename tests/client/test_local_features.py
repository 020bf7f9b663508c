"""Several answers, log-probabilities, forms and tools through the official SDKs, from a tiny real engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import anthropic
import openai
import pydantic
import pytest
from openapi import faults, needs_description
from token_lab import TinyBench

from orchestra import Orchestra

ASK: Any = [{"role": "user", "content": "Weather in Paris?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION: Any = {"name": "get_weather", "description": "Tell the weather.", "parameters": PARAMETERS}
TOOL: Any = {"type": "function", "function": FUNCTION}
FLAT: Any = {"type": "function", "strict": True, **FUNCTION}
CLAUDES: Any = {"name": "get_weather", "description": "Tell the weather.", "input_schema": PARAMETERS}


class Size(pydantic.BaseModel):
    size: Literal["S", "M"]
    big: bool


@pytest.fixture
async def orc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Orchestra]:
    bench = TinyBench(template="{% if tools %}<tool_call>{% endif %}")
    monkeypatch.setattr("orchestra.localengine.LocalEngine.load", lambda weights, config: bench.engine)
    settings = {
        "models": {"fast": {"routes": ["local/small"]}},
        "local": {"small": {"weights": "small"}},
        "bulk": {"store": str(tmp_path / "jobs.db")},
    }
    async with Orchestra.from_config(settings) as made:
        yield made


@pytest.fixture
def gpt(orc: Orchestra) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="unused", http_client=orc.http_client())


@pytest.fixture
def claude(orc: Orchestra) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(api_key="unused", http_client=orc.http_client())


# OpenAI's chat and completions


async def test_several_choices_plain_and_streamed(gpt: openai.AsyncOpenAI) -> None:
    options: Any = {"model": "fast", "messages": ASK, "n": 3, "seed": 1, "max_tokens": 8}
    whole = await gpt.chat.completions.create(**options)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in whole.choices}) == 3
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert whole.usage.completion_tokens > 8
    stream = await gpt.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    texts, reasons, usage = ["", "", ""], {}, None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert usage is not None
    counts = {"prompt_tokens", "completion_tokens", "total_tokens"}  # what was cached is not the same
    assert usage.model_dump(include=counts) == whole.usage.model_dump(include=counts)


async def test_logprobs_of_chat_cover_the_text_plain_and_streamed(gpt: openai.AsyncOpenAI) -> None:
    options: Any = {
        "model": "fast",
        "messages": ASK,
        "seed": 4,
        "max_tokens": 12,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = (await gpt.chat.completions.create(**options)).choices[0]
    assert whole.logprobs is not None
    told = whole.logprobs.content or []
    octets = bytes(octet for one in told for octet in one.bytes or [])
    assert octets.decode("utf-8", "replace") == whole.message.content
    assert all(len(one.top_logprobs) == 2 and one.logprob <= 0 for one in told)
    streamed = []
    async for chunk in await gpt.chat.completions.create(**options, stream=True):
        if chunk.choices[0].logprobs is not None:
            streamed += chunk.choices[0].logprobs.content or []
    assert streamed == told


async def test_logprobs_stop_where_a_stop_string_cuts_the_text(gpt: openai.AsyncOpenAI) -> None:
    bias = {str(ord("a") + 2): 100}
    options: Any = {"model": "fast", "prompt": "x", "temperature": 0, "max_tokens": 8, "logprobs": 1}
    whole = (
        await gpt.completions.create(**options, logit_bias=bias, extra_body={"min_tokens": 3}, stop="aa")
    ).choices[0]
    assert (whole.text, whole.finish_reason) == ("aaa", "stop")
    assert whole.logprobs is not None
    assert whole.logprobs.tokens == ["a", "a", "a"]
    assert whole.logprobs.text_offset == [0, 1, 2]
    assert [len(top) for top in whole.logprobs.top_logprobs or []] == [1, 1, 1]


async def test_prompt_logprobs_are_told_as_vllm_tells_them(gpt: openai.AsyncOpenAI) -> None:
    raw = await gpt.completions.with_raw_response.create(
        model="fast", prompt="abc", max_tokens=1, extra_body={"prompt_logprobs": 1}
    )
    told = json.loads(raw.text)["prompt_logprobs"]
    assert told[0] is None
    assert [one[str(ord(char) + 2)]["decoded_token"] for one, char in zip(told[1:], "bc", strict=True)] == [
        "b",
        "c",
    ]


async def test_the_sdk_parses_a_form_of_its_own(gpt: openai.AsyncOpenAI) -> None:
    reply = await gpt.chat.completions.parse(model="fast", messages=ASK, seed=1, response_format=Size)
    assert isinstance(reply.choices[0].message.parsed, Size)
    response = await gpt.responses.parse(model="fast", input=ASK, text_format=Size)
    assert isinstance(response.output_parsed, Size)
    chosen = await gpt.chat.completions.create(
        model="fast", messages=ASK, extra_body={"structured_outputs": {"choice": ["yes", "no"]}}
    )
    assert chosen.choices[0].message.content in ("yes", "no")


async def test_a_form_that_cannot_be_compiled_is_a_bad_request(gpt: openai.AsyncOpenAI) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {"type": "string"}}}}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="not") as caught:
            await gpt.chat.completions.create(model="fast", messages=ASK, response_format=schema, stream=stream)  # type: ignore[call-overload]
        assert caught.value.param == "response_format"
    with pytest.raises(openai.BadRequestError) as other:
        await gpt.responses.create(
            model="fast", input="x", text={"format": {**schema["json_schema"], "type": "json_schema"}}
        )  # type: ignore[call-overload,dict-item]
    assert other.value.param == "text.format"
    with pytest.raises(openai.BadRequestError) as biased:
        await gpt.chat.completions.create(model="fast", messages=ASK, logit_bias={"999999": 1})
    assert biased.value.param == "logit_bias"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
async def test_a_tool_call_of_chat_and_its_way_back(gpt: openai.AsyncOpenAI, choice: Any) -> None:
    options: Any = {"model": "fast", "tools": [TOOL], "tool_choice": choice, "seed": 1}
    whole = (await gpt.chat.completions.create(messages=ASK, **options)).choices[0]
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
    (call,) = whole.message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, set(json.loads(call.function.arguments))) == ("get_weather", {"city"})
    async with gpt.chat.completions.stream(messages=ASK, **options) as stream:
        streamed = (await stream.get_final_completion()).choices[0]
    assert streamed.finish_reason == "tool_calls"
    (again,) = streamed.message.tool_calls or []
    assert again.function.arguments == call.function.arguments
    history = [*ASK, whole.message, {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}]
    end = await gpt.chat.completions.create(model="fast", messages=history, tools=[TOOL], max_tokens=4)
    assert end.choices[0].finish_reason in ("length", "stop")


# OpenAI's responses


async def test_a_tool_call_of_responses_and_its_way_back(gpt: openai.AsyncOpenAI) -> None:
    options: Any = {"model": "fast", "tools": [FLAT], "tool_choice": {"type": "function", "name": "get_weather"}}
    whole = await gpt.responses.create(input=ASK, **options)
    (call,) = whole.output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
    events = [event async for event in await gpt.responses.create(input=ASK, stream=True, **options)]
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(7))
    history: Any = [*ASK, call, {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}]
    end = await gpt.responses.create(model="fast", input=history, tools=[FLAT], max_output_tokens=4)
    assert end.status in ("incomplete", "completed")


async def test_logprobs_of_a_response(gpt: openai.AsyncOpenAI) -> None:
    options: Any = {"model": "fast", "input": ASK, "max_output_tokens": 6, "top_logprobs": 1, "temperature": 0}
    whole = await gpt.responses.create(**options, include=["message.output_text.logprobs"])
    (item,) = whole.output
    assert item.type == "message"
    (part,) = item.content
    assert part.type == "output_text"
    told = part.logprobs or []
    assert bytes(octet for one in told for octet in one.bytes).decode("utf-8", "replace") == part.text
    events = [event async for event in await gpt.responses.create(**options, stream=True)]
    streamed = [one for event in events if event.type == "response.output_text.delta" for one in event.logprobs]
    assert [one.logprob for one in streamed] == [one.logprob for one in told]


# Anthropic's messages


async def test_a_tool_use_of_messages_and_its_way_back(claude: anthropic.AsyncAnthropic) -> None:
    options: Any = {"model": "fast", "max_tokens": 100, "tools": [CLAUDES], "tool_choice": {"type": "any"}}
    whole = await claude.messages.create(messages=ASK, **options)
    assert whole.stop_reason == "tool_use"
    (use,) = whole.content
    assert use.type == "tool_use"
    assert (use.name, set(use.input)) == ("get_weather", {"city"})
    async with claude.messages.stream(messages=ASK, **options) as stream:
        streamed = await stream.get_final_message()
    assert streamed.stop_reason == "tool_use"
    (again,) = streamed.content
    assert again.type == "tool_use"
    assert set(again.input) == {"city"}
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "Sunny."}]}
    history: Any = [
        *ASK,
        {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    end = await claude.messages.create(model="fast", max_tokens=4, messages=history, tools=[CLAUDES])
    assert end.stop_reason in ("max_tokens", "end_turn")


async def test_a_form_of_messages(claude: anthropic.AsyncAnthropic) -> None:
    form: Any = {"format": {"type": "json_schema", "schema": Size.model_json_schema()}}
    reply = await claude.messages.create(
        model="fast", max_tokens=230, messages=ASK, output_config=form, extra_body={"temperature": 0}
    )
    assert reply.stop_reason == "end_turn"
    (block,) = reply.content
    assert block.type == "text"
    Size.model_validate_json(block.text)


@needs_description
async def test_all_of_it_is_as_openai_describes_it(gpt: openai.AsyncOpenAI) -> None:
    raw = gpt.with_raw_response
    scored: Any = {"seed": 2, "max_tokens": 5, "n": 2, "logprobs": True, "top_logprobs": 2}
    form: Any = {"type": "json_object"}
    chats = [
        await raw.chat.completions.create(model="fast", messages=ASK, **scored),
        await raw.chat.completions.create(model="fast", messages=ASK, tools=[TOOL], tool_choice="required"),
        await raw.chat.completions.create(model="fast", messages=ASK, response_format=form, max_tokens=30),
    ]
    text = await raw.completions.create(model="fast", prompt="Hello", logprobs=2, n=2, max_tokens=5)
    responses = [
        await raw.responses.create(model="fast", input="x", tools=[FLAT], tool_choice="required"),
        await raw.responses.create(model="fast", input="x", top_logprobs=2, max_output_tokens=5),
    ]
    found = [*faults("CreateCompletionResponse", json.loads(text.text))]
    for reply in chats:
        found += faults("CreateChatCompletionResponse", json.loads(reply.text))
    for response in responses:
        found += faults("Response", json.loads(response.text))
    for options in (scored, {"tools": [TOOL], "tool_choice": "required"}):
        streamed = gpt.chat.completions.with_streaming_response
        async with streamed.create(model="fast", messages=ASK, stream=True, **options) as answer:
            lines = [line async for line in answer.iter_lines() if line.startswith("data: {")]
        for line in lines:
            found += faults("CreateChatCompletionStreamResponse", json.loads(line.removeprefix("data: ")))
    assert found == []
