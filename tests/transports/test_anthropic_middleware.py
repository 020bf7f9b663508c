"""The unmodified anthropic SDK with our middleware, and with its synchronous client over our transport."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from faults_lab import opened

import orchestra
from orchestra.testing import Reply, ScriptedProvider, StreamScript

anthropic = pytest.importorskip("anthropic")

MESSAGES: Any = [{"role": "user", "content": "hi"}]
ASK: Any = {"model": "fast", "max_tokens": 64, "messages": MESSAGES}
NOBODY = "http://nobody.invalid"
OVERLOADED = Reply.anthropic_error(529, "overloaded_error", "Overloaded", headers={"x-should-retry": "true"})


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    with ScriptedProvider() as serving:
        yield serving


@pytest.fixture
async def orc(provider: ScriptedProvider) -> Any:
    async with opened(settings(provider)) as made:
        yield made


def settings(provider: ScriptedProvider, **limits: Any) -> dict[str, Any]:
    account = {"kind": "anthropic", "base_url": provider.origin, "api_key": "our-key"}
    account["limits"] = [limits] if limits else []  # type: ignore[assignment]
    return {
        "providers": {"one": account},
        "models": {"fast": {"routes": ["one/m"]}},
        "traffic": {"interactive_reserve": 0.0},
    }


def text_of(message: Any) -> str:
    return str(message.content[0].text)


def calls(orc: orchestra.Orchestra) -> int:
    return sum(pool["granted"]["interactive"] for pool in orc.snapshot()["pools"])


async def test_plain_stream_and_raw(orc: orchestra.Orchestra, provider: ScriptedProvider):
    client = anthropic.AsyncAnthropic(
        base_url=NOBODY, api_key="callers-own", middleware=[orc.anthropic_middleware()]
    )
    async with client:
        assert text_of(await client.messages.create(**ASK)) == "Hello, world."
        stream = await client.messages.create(**ASK, stream=True)
        parts = [event.delta.text async for event in stream if event.type == "content_block_delta"]
        assert "".join(parts) == "Hello, world."
        async with client.messages.stream(**ASK) as streamed:
            assert await streamed.get_final_text() == "Hello, world."
        raw = await client.messages.with_raw_response.create(**ASK)
        assert text_of(await raw.parse()) == "Hello, world."
        async with client.messages.with_streaming_response.create(**ASK) as response:
            assert text_of(await response.parse()) == "Hello, world."
    assert {hit.headers["x-api-key"] for hit in provider.log} == {"our-key"}
    assert calls(orc) == len(provider.log) == 5


async def test_a_client_that_exists_can_have_it(orc: orchestra.Orchestra, provider: ScriptedProvider):
    plain = anthropic.AsyncAnthropic(base_url=provider.origin, api_key="callers-own", timeout=33.0)
    async with plain.with_options(middleware=[orc.anthropic_middleware()]) as client:
        with orchestra.bulk():
            await client.messages.create(**ASK, extra_body={"x-orchestra-traffic": "interactive"})
        assert calls(orc) == 1
        assert "x-orchestra-traffic" not in provider.log[0].json
        await client.messages.count_tokens(model="m", messages=MESSAGES)
        assert provider.log[1].headers["x-api-key"] == "our-key"
    await plain.close()


async def test_with_our_transport_too_nothing_happens_twice(orc: orchestra.Orchestra, provider: ScriptedProvider):
    client = anthropic.AsyncAnthropic(
        base_url=NOBODY, api_key="k", http_client=orc.http_client(), middleware=[orc.anthropic_middleware()] * 2
    )
    async with client:
        assert text_of(await client.messages.create(**ASK)) == "Hello, world."
    assert calls(orc) == len(provider.log) == 1


async def test_errors_are_typed_and_tried_by_our_count_alone(orc: orchestra.Orchestra, provider: ScriptedProvider):
    provider.default = OVERLOADED
    seen: list[int] = []

    async def outside(request: Any, call_next: Any) -> Any:
        response = await call_next(request)
        seen.append(response.status_code)
        return response

    middleware = [outside, orc.anthropic_middleware()]
    async with anthropic.AsyncAnthropic(
        base_url=NOBODY, api_key="k", max_retries=5, middleware=middleware
    ) as client:
        with pytest.raises(anthropic.APIStatusError, match="Overloaded") as caught:
            await client.messages.create(**ASK)
        assert (caught.value.status_code, len(provider.log), seen) == (529, 3, [529])
        with pytest.raises(anthropic.NotFoundError, match="no route answers") as missing:
            await client.messages.create(**{**ASK, "model": "local/nobody"})
        assert missing.value.body["error"]["type"] == "not_found_error"


async def test_a_stream_closed_early_returns_its_lease(orc: orchestra.Orchestra, provider: ScriptedProvider):
    provider.default = Reply(stream=StreamScript(chunks=["word "] * 500, gap=0.02))
    client = anthropic.AsyncAnthropic(base_url=NOBODY, api_key="k", middleware=[orc.anthropic_middleware()])
    async with client, client.messages.stream(**ASK) as stream:
        await anext(aiter(stream))
    await asyncio.sleep(0)
    assert all(not any(pool["in_use"].values()) for pool in orc.snapshot()["pools"])


def test_the_synchronous_client(provider: ScriptedProvider):
    with opened(settings(provider, max_concurrency=1)) as orc:
        over = {"http_client": orc.sync_http_client()}, {"middleware": [orc.anthropic_middleware()]}
        for options in over:
            with anthropic.Anthropic(base_url=NOBODY, api_key="k", max_retries=5, **options) as client:
                provider.default = Reply()
                assert text_of(client.messages.create(**ASK)) == "Hello, world."
                with client.messages.stream(**ASK) as stream:
                    assert stream.get_final_text() == "Hello, world."
                before = len(provider.log)
                provider.default = OVERLOADED
                with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
                    client.messages.create(**ASK)
                assert len(provider.log) - before == 3


def test_a_wait_that_is_too_long_is_a_rate_limit_error(provider: ScriptedProvider):
    with opened(settings(provider, requests_per_minute=1, burst_seconds=60)) as orc:
        with anthropic.Anthropic(base_url=NOBODY, api_key="k", http_client=orc.sync_http_client()) as client:
            client.messages.create(**ASK)
            with orchestra.interactive(timeout=0.1), pytest.raises(anthropic.RateLimitError) as caught:
                client.messages.create(**ASK)
        assert caught.value.body["error"]["type"] == "rate_limit_error"
        assert caught.value.body["error"]["details"] == {"error_code": "orchestra_deadline"}
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 61


async def test_the_sdks_default_client_over_our_transport(orc: orchestra.Orchestra):
    http = anthropic.DefaultAsyncHttpxClient(transport=orc.transport())
    assert http.timeout == httpx2.Timeout(600, connect=5)
    async with anthropic.AsyncAnthropic(base_url=NOBODY, api_key="k", http_client=http) as client:
        assert text_of(await client.messages.create(**ASK)) == "Hello, world."


async def test_the_shared_one(provider: ScriptedProvider):
    middleware = [orchestra.anthropic_middleware()]
    async with anthropic.AsyncAnthropic(
        base_url=provider.origin, api_key="callers-own", middleware=middleware
    ) as one:
        assert text_of(await one.messages.create(**ASK)) == "Hello, world."
    assert "callers-own" in str(provider.log[0].headers)
