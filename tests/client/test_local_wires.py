"""The local route under the official SDKs: every wire that it answers, plain and streamed, and its errors."""

from typing import Any

import anthropic
import httpx2
import openai
import pytest

from orchestra import Orchestra
from orchestra.errors import InputError
from orchestra.local_route.request import read_request

from .fake_engine import FakeEngine

ASK: Any = [{"role": "user", "content": "Colour of a ripe banana?"}]
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.fixture
def gpt(orc: Orchestra) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="unused", http_client=orc.http_client())


@pytest.fixture
def claude(orc: Orchestra) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(api_key="unused", http_client=orc.http_client())


# OpenAI's responses


async def test_a_plain_response(gpt: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    reply = await gpt.responses.create(
        model="fast", input="Colour of a ripe banana?", instructions="Be brief.", max_output_tokens=20
    )
    assert (reply.output_text, reply.status, reply.model) == ("Yellow.", "completed", "local/small")
    assert (reply.instructions, reply.max_output_tokens, reply.incomplete_details) == ("Be brief.", 20, None)
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.total_tokens) == (5, 2, 7)
    assert reply.usage.input_tokens_details.cached_tokens == 1
    ((prompt, sampling, _),) = engine.asked
    assert (prompt, sampling.max_tokens) == ([SYSTEM, *ASK], 20)


async def test_a_streamed_response(gpt: openai.AsyncOpenAI) -> None:
    events = [event async for event in await gpt.responses.create(model="fast", input=ASK, stream=True)]
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(10))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Yellow."
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "Yellow."
    assert last.response.usage is not None
    assert last.response.usage.total_tokens == 7
    assert len({event.response.id for event in events if hasattr(event, "response")}) == 1


async def test_the_sdks_own_stream_helper_follows(gpt: openai.AsyncOpenAI) -> None:
    async with gpt.responses.stream(model="fast", input="Hello") as stream:
        final = await stream.get_final_response()
    assert final.output_text == "Yellow."


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_that_was_cut_by_its_length(
    gpt: openai.AsyncOpenAI, engine: FakeEngine, stream: bool
) -> None:
    engine.reason = "length"
    reply: Any = await gpt.responses.create(model="fast", input="Hello", stream=stream)
    if stream:
        last = [event async for event in reply][-1]
        assert last.type == "response.incomplete"
        reply = last.response
    assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert reply.output[0].status == "incomplete"


async def test_what_a_response_brought_can_be_sent_back(gpt: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    first = await gpt.responses.create(model="fast", input=ASK)
    history: Any = [*ASK, *(item.model_dump(exclude_none=True) for item in first.output)]
    history.append({"role": "user", "content": [{"type": "input_text", "text": "And an apple?"}]})
    await gpt.responses.create(model="fast", input=history)
    assert engine.asked[-1][0] == [
        *ASK,
        {"role": "assistant", "content": "Yellow."},
        {"role": "user", "content": "And an apple?"},
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"background": True}, "background"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": []}, "input"),
        ({"input": [{"type": "reasoning", "id": "r", "summary": []}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
    ],
)
async def test_what_a_response_cannot_do_is_told_by_its_field(
    gpt: openai.AsyncOpenAI, engine: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await gpt.responses.create(**{"model": "fast", "input": "Hello", **fields})
    assert caught.value.param == param
    assert param.partition("[")[0].partition(".")[0] in caught.value.message
    assert engine.asked == []


def test_what_cannot_change_a_response_is_left_aside() -> None:
    plain = read_request("responses", {"model": "m", "input": "Hello"})
    fields = {
        "store": True,
        "metadata": {"a": "b"},
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "tools": [],
        "include": ["reasoning.encrypted_content"],
        "truncation": "disabled",
        "temperature": None,
    }
    assert read_request("responses", {"model": "m", "input": "Hello", **fields}) == plain


# Anthropic's messages


async def test_a_plain_message(claude: anthropic.AsyncAnthropic, engine: FakeEngine) -> None:
    content = [{"type": "text", "text": "Colour of"}, {"type": "text", "text": "a ripe banana?"}]
    asked: Any = [{"role": "user", "content": content}]
    reply = await claude.messages.create(model="fast", max_tokens=20, system="Be brief.", messages=asked)
    assert [block.text for block in reply.content if block.type == "text"] == ["Yellow."]
    assert (reply.model, reply.stop_reason, reply.stop_sequence) == ("local/small", "end_turn", None)
    assert (reply.usage.input_tokens, reply.usage.cache_read_input_tokens, reply.usage.output_tokens) == (4, 1, 2)
    ((prompt, sampling, traffic),) = engine.asked
    assert prompt == [SYSTEM, {"role": "user", "content": "Colour of\na ripe banana?"}]
    assert (sampling.max_tokens, traffic) == (20, "interactive")


async def test_a_streamed_message(claude: anthropic.AsyncAnthropic) -> None:
    stream = await claude.messages.create(model="fast", max_tokens=20, messages=ASK, stream=True)
    events = [event async for event in stream]
    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start, end = events[0], events[-2]
    assert start.type == "message_start"
    assert (start.message.usage.input_tokens, start.message.usage.output_tokens) == (5, 0)
    assert end.type == "message_delta"
    assert (end.delta.stop_reason, end.usage.output_tokens) == ("end_turn", 2)


async def test_the_anthropic_sdks_own_stream_helper_follows(claude: anthropic.AsyncAnthropic) -> None:
    async with claude.messages.stream(model="fast", max_tokens=20, messages=ASK) as stream:
        assert [text async for text in stream.text_stream] == ["Yel", "low."]
        final = await stream.get_final_message()
    assert (final.usage.input_tokens, final.usage.cache_read_input_tokens, final.usage.output_tokens) == (4, 1, 2)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reason", "stop", "told"),
    [
        ("stop", "END", ("stop_sequence", "END")),
        ("stop", None, ("end_turn", None)),
        ("length", None, ("max_tokens", None)),
    ],
)
async def test_why_a_message_ended(
    claude: anthropic.AsyncAnthropic,
    engine: FakeEngine,
    reason: Any,
    stop: str | None,
    told: tuple[str, str | None],
    stream: bool,
) -> None:
    engine.reason, engine.stop = reason, stop
    options: Any = {"model": "fast", "max_tokens": 20, "messages": ASK, "stop_sequences": ["END", "FIN"]}
    if stream:
        async with claude.messages.stream(**options) as events:
            reply = await events.get_final_message()
    else:
        reply = await claude.messages.create(**options)
    assert (reply.stop_reason, reply.stop_sequence) == told
    assert engine.asked[0][1].stop == ("END", "FIN")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [*ASK, {"role": "assistant", "content": "Yel"}]}, "messages[1]"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        ({"messages": []}, "messages"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_message_cannot_do_is_told_by_its_field(
    claude: anthropic.AsyncAnthropic, engine: FakeEngine, fields: dict[str, Any], named: str, stream: bool
) -> None:
    options: Any = {"model": "fast", "max_tokens": 20, "messages": ASK, "stream": stream, **fields}
    with pytest.raises(anthropic.BadRequestError) as caught:
        await claude.messages.create(**options)
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert named in body["error"]["message"]
    assert engine.asked == []


def test_what_cannot_change_a_message_is_left_aside() -> None:
    plain = read_request("messages", {"model": "m", "max_tokens": 9, "messages": ASK})
    fields = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "thinking": {"type": "disabled"},
        "tools": [],
        "tool_choice": {"type": "auto"},
        "output_config": {"effort": "low"},
        "system": [],
    }
    assert read_request("messages", {"model": "m", "max_tokens": 9, "messages": ASK, **fields}) == plain
    cached = [{"role": "user", "content": [{**part, "cache_control": {"type": "ephemeral"}}]} for part in _parts()]
    assert read_request("messages", {"model": "m", "max_tokens": 9, "messages": cached}) == plain


def _parts() -> list[dict[str, Any]]:
    return [{"type": "text", "text": message["content"]} for message in ASK]


def test_a_message_needs_a_bound() -> None:
    with pytest.raises(InputError) as caught:
        read_request("messages", {"model": "m", "messages": ASK})
    assert caught.value.param == "max_tokens"


def test_a_field_of_another_wire_is_refused() -> None:
    for endpoint, field in (("chat", "prompt"), ("completions", "messages"), ("messages", "stop")):
        payload = {"model": "m", "messages": ASK, "prompt": "x", "max_tokens": 9, "stop": "x"}
        with pytest.raises(InputError, match="cannot do"):
            read_request(endpoint, payload)  # type: ignore[arg-type]
        assert field in payload


@pytest.mark.parametrize("wire", ["responses", "messages"])
async def test_an_engine_that_breaks_in_the_midst_of_a_stream_breaks_the_sdks(
    gpt: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic, engine: FakeEngine, wire: str
) -> None:
    engine.pieces = ["Yel", RuntimeError("out of memory")]
    stream: Any
    if wire == "responses":
        stream = await gpt.responses.create(model="fast", input="Hello", stream=True)
    else:
        stream = await claude.messages.create(model="fast", max_tokens=9, messages=ASK, stream=True)
    with pytest.raises((openai.APIConnectionError, httpx2.RemoteProtocolError)) as caught:
        [event async for event in stream]
    assert "broke off: out of memory" in f"{caught.value} {caught.value.__cause__}"
    assert engine.open_streams == 0


async def test_events_of_local_answers(orc: Orchestra, claude: anthropic.AsyncAnthropic) -> None:
    events: list[Any] = []
    stop = orc.events.subscribe(events.append)
    await claude.messages.create(model="fast", max_tokens=9, messages=ASK)
    assert [event.kind for event in events] == ["sent", "settled"]
    assert (events[1].route, events[1].input_tokens, events[1].output_tokens) == ("local/small", 5, 2)
    events.clear()
    async with claude.messages.stream(model="fast", max_tokens=9, messages=ASK) as stream:
        await stream.get_final_message()
    assert [event.kind for event in events] == ["sent", "first_byte", "settled"]
    assert (events[2].output_tokens, events[2].ttft) == (2, events[1].ttft)
    events.clear()
    async with claude.messages.stream(model="fast", max_tokens=9, messages=ASK) as stream:
        pass
    assert [(event.kind, event.reason) for event in events][-1] == ("interrupted", "dropped")
    events.clear()
    stop()
    await claude.messages.create(model="fast", max_tokens=9, messages=ASK)
    assert events == []


@pytest.mark.parametrize("wire", ["messages", "responses"])
async def test_a_dead_provider_of_either_wire_gives_way_to_the_engine(
    settings: dict[str, Any], engine: FakeEngine, wire: str
) -> None:
    kind = "anthropic" if wire == "messages" else "openai"
    settings["providers"] = {"dead": {"kind": kind, "base_url": "http://127.0.0.1:9", "api_key": "k"}}
    settings["models"]["fast"]["routes"] = ["dead/large", "local/small"]
    async with Orchestra.from_config(settings) as orc:
        if wire == "messages":
            claude = anthropic.AsyncAnthropic(api_key="unused", http_client=orc.http_client())
            message = await claude.messages.create(model="fast", max_tokens=9, messages=ASK)
            assert [block.text for block in message.content if block.type == "text"] == ["Yellow."]
        else:
            gpt = openai.AsyncOpenAI(api_key="unused", http_client=orc.http_client())
            assert (await gpt.responses.create(model="fast", input=ASK)).output_text == "Yellow."
        assert orc.snapshot()["routes"]["dead/large"]["fault"]
