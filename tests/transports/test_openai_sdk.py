"""The unmodified openai SDK over both transports, against a scripted provider."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import httpx2
import openai
import pytest
from dispatch_lab import NOBODY, Lab, config_for, eventually, running
from raw_server import read_request, saying

from orchestra.call import Call, Outcome
from orchestra.tagging import bulk, interactive
from orchestra.testing import Reply, ScriptedProvider, StreamScript
from orchestra.transports import Family, make_client, make_transport
from orchestra.transports.core import TransportCore

MESSAGES: Any = [{"role": "user", "content": "hi"}]
REFUSED = Reply.error(429, "rate_limit_exceeded", kind="requests", headers={"retry-after": "0.01"})
FAMILIES: dict[Family, Any] = {"httpx2": httpx2, "httpx": httpx}


@pytest.fixture(params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> Family:
    return request.param  # type: ignore[no-any-return]


@asynccontextmanager
async def sdk(
    family: Family, config: dict[str, Any], **options: Any
) -> AsyncIterator[tuple[openai.AsyncOpenAI, Lab]]:
    """Yield an SDK client that points at nobody, over our transport."""
    async with running(config) as lab:
        options = {"base_url": "http://nobody.invalid/v1", "api_key": "callers-own", **options}
        client: Any = make_client(family, lab.core)
        async with openai.AsyncOpenAI(http_client=client, **options) as sdk_client:
            yield sdk_client, lab


async def read(stream: Any) -> str:
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


async def test_plain_and_stream(family: Family):
    async with ScriptedProvider() as provider, sdk(family, config_for({"one": provider})) as (client, lab):
        answer = await client.chat.completions.create(model="fast", messages=MESSAGES)
        assert answer.choices[0].message.content == "Hello, world."
        assert answer.usage is not None
        assert answer.usage.total_tokens > 0
        stream = await client.chat.completions.create(model="fast", messages=MESSAGES, stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello, world."
        assert all(chunk.choices and chunk.usage is None for chunk in chunks)
        options: Any = {"include_usage": True}
        stream = await client.chat.completions.create(
            model="fast", messages=MESSAGES, stream=True, stream_options=options
        )
        last = [chunk async for chunk in stream][-1]
        assert last.usage is not None
        assert lab.in_flight() == 0
        assert len({hit.headers["authorization"] for hit in provider.log}) == 1


async def test_other_endpoints(family: Family):
    async with (
        ScriptedProvider() as provider,
        sdk(family, config_for({"one": provider}), base_url=provider.base_url) as (client, lab),
    ):
        assert [model.id async for model in client.models.list()] == ["scripted"]
        vectors = await client.embeddings.create(model="fast", input=["a", "b"], encoding_format="float")
        assert len(vectors.data) == 2
        completion = await client.completions.create(model="fast", prompt="hi")
        assert completion.choices[0].text == "Hello, world."
        assert lab.kinds().count("settled") == 2


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (404, openai.NotFoundError),
        (422, openai.UnprocessableEntityError),
        (500, openai.InternalServerError),
        (429, openai.RateLimitError),
    ],
)
async def test_errors_are_typed_and_tried_by_our_count_alone(family: Family, status: int, error: type[Exception]):
    wrong = Reply.error(status, "some_code", headers={"retry-after": "0.01"}, message="look here")
    async with (
        ScriptedProvider(default=wrong) as provider,
        sdk(family, config_for({"one": provider}), max_retries=5) as (client, _),
    ):
        for stream in (False, True):
            with pytest.raises(error, match="look here") as caught:
                await client.chat.completions.create(model="fast", messages=MESSAGES, stream=stream)
            assert caught.value.code == "some_code"  # type: ignore[attr-defined]
        assert len(provider.log) == 2 * (3 if status in (429, 500) else 1)


async def test_bulk_is_tried_more_often(family: Family):
    async with (
        ScriptedProvider(default=REFUSED) as provider,
        sdk(family, config_for({"one": provider}), max_retries=5) as (client, _),
    ):
        with bulk(), pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model="fast", messages=MESSAGES)
        assert len(provider.log) == 8


async def test_the_header_tags_and_is_stripped(family: Family):
    async with ScriptedProvider() as provider, sdk(family, config_for({"one": provider})) as (client, lab):
        tag = {"x-orchestra-traffic": "bulk; job=nightly"}
        await client.chat.completions.create(model="fast", messages=MESSAGES, extra_headers=tag)
        assert {event.traffic.value for event in lab.events} == {"bulk"}
        assert "x-orchestra-traffic" not in provider.log[0].headers


async def test_our_own_errors_are_typed_too(family: Family):
    async with sdk(family, config_for({"dead": NOBODY}), max_retries=5) as (client, lab):
        with pytest.raises(openai.InternalServerError, match="no route answered"):
            await client.chat.completions.create(model="fast", messages=MESSAGES)
        assert lab.kinds().count("sent") == 3
    limits = {"requests_per_minute": 1.0, "burst_seconds": 60.0}
    async with ScriptedProvider() as provider:
        config = config_for({"one": provider}, traffic={"interactive_reserve": 0.0})
        config["providers"]["one"]["limits"] = [limits]
        async with sdk(family, config, max_retries=5) as (client, lab):
            await client.chat.completions.create(model="fast", messages=MESSAGES)
            with interactive(timeout=0.1), pytest.raises(openai.RateLimitError) as caught:
                await client.chat.completions.create(model="fast", messages=MESSAGES)
            assert caught.value.code == "orchestra_deadline"
            assert len(provider.log) == 1


async def test_a_refused_connection_takes_the_next_route(family: Family):
    async with (
        ScriptedProvider() as provider,
        sdk(family, config_for({"dead": NOBODY, "two": provider})) as (client, _),
    ):
        stream = await client.chat.completions.create(model="fast", messages=MESSAGES, stream=True)
        assert await read(stream) == "Hello, world."
        assert provider.log[0].headers["authorization"] == "Bearer key-of-two"
        assert "callers-own" not in json.dumps(dict(provider.log[0].headers))


async def test_a_drop_before_content_is_not_seen(family: Family):
    dropped = Reply(stream=StreamScript(drop_after=0))
    async with (
        ScriptedProvider([dropped]) as provider,
        sdk(family, config_for({"one": provider})) as (client, _),
    ):
        stream = await client.chat.completions.create(model="fast", messages=MESSAGES, stream=True)
        assert await read(stream) == "Hello, world."
        assert len(provider.log) == 2


@pytest.mark.parametrize("how", [{"drop_after": 3, "gap": 0.01}, {"finished": False, "done": False}])
async def test_a_break_after_content_is_a_typed_error(family: Family, how: dict[str, Any]):
    broken = Reply(stream=StreamScript(**how))
    async with (
        ScriptedProvider(default=broken) as provider,
        sdk(family, config_for({"one": provider}), max_retries=5) as (client, lab),
    ):
        stream = await client.chat.completions.create(model="fast", messages=MESSAGES, stream=True)
        seen = []
        with pytest.raises(openai.APIConnectionError):  # noqa: PT012
            async for chunk in stream:
                seen.append(chunk.choices[0].delta.content)
        assert [text for text in seen if text][:3] == ["Hello", ", ", "world"]
        assert len(provider.log) == 1
        assert lab.in_flight() == 0


async def test_an_error_event_is_the_sdks_own_error(family: Family):
    broken = Reply(stream=StreamScript(error_after=2))
    async with (
        ScriptedProvider(default=broken) as provider,
        sdk(family, config_for({"one": provider})) as (client, _),
    ):
        stream = await client.chat.completions.create(model="fast", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="the server broke"):
            await read(stream)


@pytest.mark.parametrize("how", ["close", "cancel", "cancel between chunks", "drop"])
async def test_a_stream_given_up_returns_its_lease(family: Family, how: str):
    slow = Reply(stream=StreamScript(gap=60))
    async with (
        ScriptedProvider(default=slow) as provider,
        sdk(family, config_for({"one": provider})) as (client, lab),
    ):
        entered = asyncio.Event()

        async def consume() -> None:
            stream = await client.chat.completions.create(model="fast", messages=MESSAGES, stream=True)
            async for _ in stream:
                entered.set()
                if how == "close":
                    await stream.close()
                    return
                if how == "cancel between chunks":
                    await asyncio.sleep(600)
                if how == "drop":
                    return

        task = asyncio.create_task(consume())
        await entered.wait()
        if how.startswith("cancel"):
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await task
        del task

        def ended() -> bool:
            gc.collect()  # a stream that the SDK was left with is a reference cycle, and takes more than one pass
            return lab.in_flight() == 0 and provider.in_flight == 0

        await eventually(ended)


async def test_closing_a_client_leaves_the_rest_usable(family: Family):
    async with ScriptedProvider() as provider, running(config_for({"one": provider})) as lab:
        for _ in range(2):
            client: Any = make_client(family, lab.core)
            async with openai.AsyncOpenAI(http_client=client, base_url="http://x.invalid/v1", api_key="k") as one:
                answer = await one.chat.completions.create(model="fast", messages=MESSAGES)
                assert answer.choices[0].message.content == "Hello, world."


async def test_an_unmetered_host_keeps_the_sdks_own_retries(family: Family):
    busy = Reply.error(500, headers={"retry-after-ms": "1"})
    async with ScriptedProvider([busy]) as provider, sdk(family, {}, base_url=provider.base_url) as (client, _):
        answer = await client.chat.completions.create(model="any", messages=MESSAGES)
        assert answer.choices[0].message.content == "Hello, world."
        assert len(provider.log) == 2
    async with sdk(family, {}, base_url=f"{NOBODY}/v1", max_retries=0) as (client, _):
        with pytest.raises(openai.APIConnectionError):
            await client.chat.completions.create(model="any", messages=MESSAGES)


async def test_clients_have_the_defaults_of_the_official_ones(family: Family):
    async with running({}) as lab:
        client = make_client(family, lab.core)
        assert client.timeout == FAMILIES[family].Timeout(600, connect=5)
        assert client.follow_redirects
        await client.aclose()
        assert isinstance(make_transport(family, lab.core), FAMILIES[family].AsyncBaseTransport)
        for make in (make_client, make_transport):
            with pytest.raises(ValueError, match="requests"):
                make("requests", lab.core)  # type: ignore[call-overload]


@pytest.mark.parametrize("value", ["café".encode("latin-1"), "€".encode()])
async def test_header_bytes_pass_in_both_directions_as_they_are(family: Family, value: bytes):
    text = value.decode("latin-1")

    async def echo(call: Call) -> Outcome:
        assert ("x-title", text) in call.headers
        return Outcome(200, (("x-title", text),), aiter_of(b"{}"), "")

    async with make_client(family, TransportCore(echo)) as client:
        response = await client.post("http://x.invalid/v1/chat/completions", headers={"x-title": value})
        assert (b"x-title", value) in response.headers.raw


async def aiter_of(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def test_the_bound_of_an_unmetered_call_is_not_tried_again(family: Family):
    async with (
        ScriptedProvider(default=Reply(delay=60)) as provider,
        sdk(family, config_for({"one": provider}), base_url=provider.base_url) as (client, _),
    ):
        with interactive(timeout=1), pytest.raises(openai.APITimeoutError, match=r"timeout of 1\.0s"):
            await client.models.list()
        assert len(provider.log) == 1


async def test_chunks_are_handed_on_as_they_come(family: Family):
    seen = asyncio.Semaphore(0)

    async def one_after_another(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for text, finish in (("a", None), ("b", None), ("c", "stop")):
            choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
            chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
            writer.write(f"data: {json.dumps(chunk)}\n\n".encode())
            await writer.drain()
            await seen.acquire()  # the next comes when this one was seen
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()
        writer.close()

    async with (
        asyncio.timeout(30),
        saying(one_after_another) as url,
        sdk(family, config_for({"one": f"{url}/v1"})) as (client, _),
    ):
        texts = []
        async for chunk in await client.chat.completions.create(model="fast", messages=MESSAGES, stream=True):
            texts.append(chunk.choices[0].delta.content)
            seen.release()
        assert texts == ["a", "b", "c"]
