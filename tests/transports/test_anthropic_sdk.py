"""The unmodified anthropic SDK over our transport, against a scripted provider."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from dispatch_lab import NOBODY, Lab, config_for, eventually, running

from orchestra.tagging import interactive
from orchestra.testing import Reply, ScriptedProvider, StreamScript
from orchestra.transports import make_client

anthropic = pytest.importorskip("anthropic")

MESSAGES: Any = [{"role": "user", "content": "hi"}]
ASK: Any = {"model": "fast", "max_tokens": 64, "messages": MESSAGES}
OVERLOADED = Reply.anthropic_error(529, "overloaded_error", "Overloaded", headers={"x-should-retry": "true"})
BUSY = {"type": "overloaded_error", "message": "Overloaded"}


def settings(providers: dict[str, ScriptedProvider | str], **sections: Any) -> dict[str, Any]:
    """Return settings of Anthropic accounts, and a model ``fast`` that all of them serve in this order."""
    config = config_for(
        {name: one if isinstance(one, str) else one.origin for name, one in providers.items()}, **sections
    )
    for account in config["providers"].values():
        account["kind"] = "anthropic"
    return config


@asynccontextmanager
async def sdk(config: dict[str, Any], **options: Any) -> AsyncIterator[tuple[Any, Lab]]:
    """Yield an SDK client that points at nobody, over our transport."""
    async with running(config) as lab:
        options = {"base_url": "http://nobody.invalid", "api_key": "callers-own", **options}
        async with anthropic.AsyncAnthropic(http_client=make_client("httpx2", lab.core), **options) as client:
            yield client, lab


async def read(stream: Any) -> str:
    return "".join([one.delta.text async for one in stream if one.type == "content_block_delta"])


async def test_plain_and_stream():
    async with ScriptedProvider() as provider, sdk(settings({"one": provider})) as (client, lab):
        message = await client.messages.create(**ASK)
        assert message.content[0].text == "Hello, world."
        assert await read(await client.messages.create(**ASK, stream=True)) == "Hello, world."
        async with client.messages.stream(**ASK) as stream:
            assert await stream.get_final_text() == "Hello, world."
            final = await stream.get_final_message()
        assert final.stop_reason == "end_turn"
        assert final.usage.output_tokens > 0
        assert lab.in_flight() == 0
        settled = [event.told() for event in lab.events if event.kind == "settled"]
        assert [one["certainty"] for one in settled] == ["known"] * 3
        assert settled[0]["input_tokens"] == message.usage.input_tokens
        assert settled[2]["output_tokens"] == final.usage.output_tokens


async def test_what_goes_to_another_host_than_the_sdk_was_pointed_at():
    async with ScriptedProvider() as provider, sdk(settings({"one": provider})) as (client, _):
        await client.beta.messages.create(**ASK, betas=["output-300k-2026-03-24"])
        (hit,) = provider.log
        assert hit.path == "/v1/messages"
        assert hit.json["model"] == "one-model"
        assert hit.headers["x-api-key"] == "key-of-one"
        assert hit.headers["anthropic-version"] == client.default_headers["anthropic-version"]
        assert hit.headers["anthropic-beta"] == "output-300k-2026-03-24"
        assert "callers-own" not in json.dumps(dict(hit.headers))
        assert not any(name.startswith("x-stainless") for name in hit.headers)


async def test_the_callers_own_key_goes_to_its_own_host():
    async with ScriptedProvider() as provider:
        config = settings({"one": provider})
        del config["providers"]["one"]["api_key"]
        async with sdk(config, base_url=provider.origin) as (client, lab):
            await client.messages.create(**{**ASK, "model": "claude"})
            assert provider.log[0].headers["authorization"] == "Bearer callers-own"
            assert provider.log[0].json["model"] == "claude"
            assert lab.kinds().count("settled") == 1


@pytest.mark.parametrize("base", ["/v1", "/v1/", ""])
async def test_a_base_url_may_end_with_the_version(base: str):
    async with ScriptedProvider() as provider, sdk(settings({"one": provider.origin + base})) as (client, _):
        await client.messages.create(**ASK)
        assert provider.log[0].path == "/v1/messages"


async def test_token_counting_passes_unmetered_for_the_routes_model():
    async with ScriptedProvider() as provider, sdk(settings({"one": provider})) as (client, lab):
        counted = await client.messages.count_tokens(model="fast", messages=MESSAGES)
        assert counted.input_tokens > 0
        assert provider.log[0].json["model"] == "one-model"
        assert provider.log[0].headers["x-api-key"] == "key-of-one"
        assert "admitted" not in lab.kinds()
        assert lab.budget.snapshot() == []


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (400, "invalid_request_error", "BadRequestError"),
        (401, "authentication_error", "AuthenticationError"),
        (403, "permission_error", "PermissionDeniedError"),
        (404, "not_found_error", "NotFoundError"),
        (500, "api_error", "InternalServerError"),
        (529, "overloaded_error", "OverloadedError"),
    ],
)
async def test_errors_are_typed_and_tried_by_our_count_alone(status: int, kind: str, error: str):
    wrong = Reply.anthropic_error(status, kind, "look here", headers={"x-should-retry": "true"})
    async with (
        ScriptedProvider(default=wrong) as provider,
        sdk(settings({"one": provider}), max_retries=5) as (client, lab),
    ):
        for stream in (False, True):
            with pytest.raises(getattr(anthropic, error), match="look here") as caught:
                await client.messages.create(**ASK, stream=stream)
            assert caught.value.type == kind
        assert len(provider.log) == 2 * (3 if status >= 500 else 1)
        assert lab.in_flight() == 0


async def test_529_then_success():
    async with (
        ScriptedProvider([OVERLOADED, OVERLOADED]) as provider,
        sdk(settings({"one": provider}), max_retries=0) as (client, lab),
    ):
        assert (await client.messages.create(**ASK)).content[0].text == "Hello, world."
        assert lab.kinds().count("retried") == 2


async def test_429_with_limits_is_waited_out_and_learned_from():
    refused = Reply.anthropic_error(
        429,
        "rate_limit_error",
        headers={
            "retry-after": "0.05",
            "anthropic-ratelimit-requests-limit": "1000",
            "anthropic-ratelimit-requests-remaining": "900",
            "anthropic-ratelimit-requests-reset": "2099-01-01T00:00:00Z",
            "anthropic-ratelimit-input-tokens-limit": "50000",
            "anthropic-ratelimit-input-tokens-remaining": "40000",
            "anthropic-ratelimit-input-tokens-reset": "2099-01-01T00:00:00Z",
        },
    )
    async with (
        ScriptedProvider([refused]) as provider,
        sdk(settings({"one": provider}), max_retries=5) as (client, lab),
    ):
        assert (await client.messages.create(**ASK)).content[0].text == "Hello, world."
        first, second = provider.log
        assert second.at - first.at >= 0.05
        (pool,) = lab.budget.snapshot()
        assert {"requests", "input_tokens"} <= set(json.dumps(pool).replace('"', " ").split())


async def test_a_spent_account_is_not_asked_again():
    error = {
        "type": "rate_limit_error",
        "message": "spent",
        "details": {"error_code": "enforced_spend_limit_reached"},
    }
    spent = Reply(429, {}, {"type": "error", "error": error})
    async with (
        ScriptedProvider(default=spent) as provider,
        sdk(settings({"one": provider}), max_retries=5) as (client, lab),
    ):
        with pytest.raises(anthropic.RateLimitError) as caught:
            await client.messages.create(**ASK)
        assert caught.value.error_code == "enforced_spend_limit_reached"
        assert len(provider.log) == 1
        assert "paused" in lab.kinds()


async def test_always_429_with_the_sdks_own_retries_at_default():
    refused = Reply.anthropic_error(429, "rate_limit_error", headers={"retry-after": "0.01"})
    async with (
        ScriptedProvider(default=refused) as provider,
        sdk(settings({"one": provider})) as (client, _),
    ):
        with pytest.raises(anthropic.RateLimitError):
            await client.messages.create(**ASK)
        assert len(provider.log) == 3


async def test_our_own_errors_are_typed_too():
    async with sdk(settings({"dead": NOBODY}), max_retries=5) as (client, lab):
        with pytest.raises(anthropic.InternalServerError, match="no route answered"):
            await client.messages.create(**ASK)
        assert lab.kinds().count("sent") == 3
    slow = Reply(delay=60)
    async with (
        ScriptedProvider(default=slow) as provider,
        sdk(settings({"one": provider}), max_retries=5) as (client, _),
    ):
        with interactive(timeout=1), pytest.raises(anthropic.APITimeoutError, match=r"timeout of 1\.0s"):
            await client.messages.create(**ASK)
        assert len(provider.log) == 1


async def test_the_next_route_must_speak_the_same_wire():
    async with ScriptedProvider() as provider:
        config = settings({"dead": NOBODY, "two": provider})
        config["providers"]["other"] = {"kind": "openai-compatible", "base_url": provider.base_url}
        config["models"]["fast"]["routes"].insert(1, "other/some-model")
        config["models"]["gpt"] = {"routes": ["other/some-model"]}
        async with sdk(config) as (client, _):
            assert (await client.messages.create(**ASK)).model == "two-model"
            assert [hit.path for hit in provider.log] == ["/v1/messages"]
            with pytest.raises(anthropic.BadRequestError, match="has no endpoint '/messages'"):
                await client.messages.create(**{**ASK, "model": "gpt"})


@pytest.mark.parametrize("how", [{"drop_after": 0}, {"error_after": 0, "error": BUSY}])
async def test_a_break_before_content_is_not_seen(how: dict[str, Any]):
    broken = Reply(stream=StreamScript(**how))
    async with ScriptedProvider([broken]) as provider, sdk(settings({"one": provider})) as (client, _):
        assert await read(await client.messages.create(**ASK, stream=True)) == "Hello, world."
        assert len(provider.log) == 2


@pytest.mark.parametrize("how", [{"drop_after": 3, "gap": 0.01}, {"done": False}])
async def test_a_cut_stream_is_an_error(how: dict[str, Any]):
    broken = Reply(stream=StreamScript(**how))
    async with (
        ScriptedProvider(default=broken) as provider,
        sdk(settings({"one": provider}), max_retries=5) as (client, lab),
    ):
        seen = []
        # as the SDK raises it of itself: what breaks while it iterates, it does not wrap
        with pytest.raises(httpx2.RemoteProtocolError, match="broke off"):  # noqa: PT012
            async for one in await client.messages.create(**ASK, stream=True):
                if one.type == "content_block_delta":
                    seen.append(one.delta.text)
        assert seen[:3] == ["Hello", ", ", "world"]
        assert len(provider.log) == 1
        assert lab.in_flight() == 0
        assert "interrupted" in lab.kinds()


async def test_an_error_event_after_content_is_the_sdks_own_error():
    broken = Reply(stream=StreamScript(error_after=2, error=BUSY))
    async with (
        ScriptedProvider(default=broken) as provider,
        sdk(settings({"one": provider}), max_retries=5) as (client, lab),
    ):
        stream = await client.messages.create(**ASK, stream=True)
        with pytest.raises(anthropic.APIStatusError, match="Overloaded") as caught:
            await read(stream)
        assert caught.value.type == "overloaded_error"
        assert len(provider.log) == 1
        await eventually(lambda: lab.in_flight() == 0)


async def test_a_success_in_another_form_is_tried_again():
    html = Reply(body="<html>busy</html>")
    async with (
        ScriptedProvider([html, Reply(body={"choices": []})]) as provider,
        sdk(settings({"one": provider}), max_retries=0) as (client, _),
    ):
        assert (await client.messages.create(**ASK)).content[0].text == "Hello, world."
        assert len(provider.log) == 3


@pytest.mark.parametrize("how", ["close", "cancel", "drop"])
async def test_a_stream_given_up_returns_its_lease(how: str):
    slow = Reply(stream=StreamScript(gap=1.0))
    async with (
        ScriptedProvider(default=slow) as provider,
        sdk(settings({"one": provider})) as (client, lab),
    ):
        entered = asyncio.Event()

        async def consume() -> None:
            stream = await client.messages.create(**ASK, stream=True)
            async for one in stream:
                if one.type != "content_block_delta":
                    continue
                entered.set()
                if how == "close":
                    await stream.close()
                if how != "cancel":
                    return

        task = asyncio.create_task(consume())
        await entered.wait()
        if how == "cancel":
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await task
        del task

        def ended() -> bool:
            gc.collect()
            return lab.in_flight() == 0 and provider.in_flight == 0

        await eventually(ended)
