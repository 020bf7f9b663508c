"""The unmodified google-genai SDK over our transport, against a server of its wire."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from dispatch_lab import NOBODY, Lab, eventually, running
from gemini_server import Answer, GeminiServer, error, quota_error

from orchestra.transports import make_client

genai = pytest.importorskip("google.genai")

PROMPT = "Colour of a ripe banana?"
UNAVAILABLE = error(503, "UNAVAILABLE", "The model is overloaded.")


def settings(*servers: tuple[str, str], **sections: Any) -> dict[str, Any]:
    """Return settings of Gemini accounts, and a model ``fast`` that all of them serve in this order."""
    return {
        "providers": {
            name: {"kind": "gemini", "base_url": origin, "api_key": f"key-of-{name}"} for name, origin in servers
        },
        "models": {"fast": {"routes": [f"{name}/{name}-model" for name, _ in servers]}},
        **sections,
    }


@asynccontextmanager
async def sdk(
    config: dict[str, Any], *, base_url: str = "http://nobody.invalid"
) -> AsyncIterator[tuple[Any, Lab]]:
    """Yield the models of an SDK client that points at nobody, over our transport."""
    async with running(config) as lab, make_client("httpx2", lab.core) as http:
        options = genai.types.HttpOptions(base_url=base_url, api_version="v1beta", httpx_async_client=http)
        client = genai.Client(api_key="callers-own", http_options=options)
        try:
            yield client.aio.models, lab
        finally:
            client.close()


async def read(stream: Any) -> str:
    return "".join([part.text or "" async for part in stream])


async def test_plain_and_stream():
    async with GeminiServer() as server, sdk(settings(("one", server.origin))) as (models, lab):
        answer = await models.generate_content(model="fast", contents=PROMPT)
        assert answer.text == "Hello, world."
        assert answer.usage_metadata.prompt_token_count == 11
        assert await read(await models.generate_content_stream(model="fast", contents=PROMPT)) == "Hello, world."
        assert [hit.path for hit in server.log] == [
            "/v1beta/models/one-model:generateContent",
            "/v1beta/models/one-model:streamGenerateContent",
        ]
        assert server.log[1].query == {"alt": "sse"}
        assert lab.in_flight() == 0
        settled = [event for event in lab.events if event.kind == "settled"]
        assert [(one.certainty, one.input_tokens, one.output_tokens) for one in settled] == [("known", 11, 5)] * 2


async def test_what_goes_to_another_host_than_the_sdk_was_pointed_at():
    async with GeminiServer() as server, sdk(settings(("one", server.origin))) as (models, _):
        await models.generate_content(model="fast", contents=PROMPT)
        (hit,) = server.log
        assert hit.headers["x-goog-api-key"] == "key-of-one"
        assert "callers-own" not in str(hit)
        assert "x-goog-api-client" not in hit.headers


async def test_the_callers_own_key_goes_to_its_own_host():
    async with GeminiServer() as server:
        config = settings(("one", server.origin))
        del config["providers"]["one"]["api_key"]
        async with sdk(config, base_url=server.origin) as (models, lab):
            await models.generate_content(model="gemini-x", contents=PROMPT)
            assert server.log[0].headers["x-goog-api-key"] == "callers-own"
            assert server.log[0].path == "/v1beta/models/gemini-x:generateContent"
            assert lab.kinds().count("settled") == 1


async def test_a_route_by_its_own_name():
    async with GeminiServer() as server, sdk(settings(("one", server.origin))) as (models, lab):
        await models.generate_content(model="one/gemini-x", contents=PROMPT)
        assert server.log[0].path == "/v1beta/models/gemini-x:generateContent"
        assert lab.kinds().count("settled") == 1


async def test_embeddings():
    async with GeminiServer() as server, sdk(settings(("one", server.origin))) as (models, lab):
        answer = await models.embed_content(model="fast", contents=["a", "b"])
        assert len(answer.embeddings) == 2
        (hit,) = server.log
        assert hit.path == "/v1beta/models/one-model:batchEmbedContents"
        assert {one["model"] for one in hit.json["requests"]} == {"models/one-model"}
        assert lab.kinds().count("settled") == 1


async def test_token_counting_and_lists_pass_unmetered():
    async with (
        GeminiServer() as server,
        sdk(settings(("one", server.origin)), base_url=server.origin) as (models, lab),
    ):
        counted = await models.count_tokens(model="fast", contents=PROMPT)
        assert counted.total_tokens == 7
        assert server.log[0].path == "/v1beta/models/one-model:countTokens"
        assert [one.name async for one in await models.list()] == ["models/scripted"]
        assert {hit.headers["x-goog-api-key"] for hit in server.log} == {"key-of-one"}
        assert "admitted" not in lab.kinds()
        assert lab.budget.snapshot() == []


@pytest.mark.parametrize(
    ("status", "word"),
    [(400, "INVALID_ARGUMENT"), (403, "PERMISSION_DENIED"), (404, "NOT_FOUND"), (500, "INTERNAL")],
)
async def test_errors_are_typed_and_tried_by_our_count_alone(status: int, word: str):
    wrong = Answer(status, error(status, word))
    async with (
        GeminiServer(default=wrong) as server,
        sdk(settings(("one", server.origin))) as (models, lab),
    ):
        kind = genai.errors.ClientError if status < 500 else genai.errors.ServerError
        with pytest.raises(kind, match="look here") as caught:
            await models.generate_content(model="fast", contents=PROMPT)
        assert (caught.value.code, caught.value.status) == (status, word)
        stream = await models.generate_content_stream(model="fast", contents=PROMPT)  # is sent when it is read
        with pytest.raises(kind, match="look here"):
            await read(stream)
        assert len(server.log) == 2 * (3 if status == 500 else 1)
        assert lab.in_flight() == 0


async def test_503_then_success():
    busy = Answer(503, [UNAVAILABLE])
    async with (
        GeminiServer([busy, busy]) as server,
        sdk(settings(("one", server.origin))) as (models, lab),
    ):
        assert (await models.generate_content(model="fast", contents=PROMPT)).text == "Hello, world."
        assert lab.kinds().count("retried") == 2


async def test_a_minutes_quota_is_waited_for():
    refused = Answer(429, quota_error("GenerateContentInputTokensPerModelPerMinute", "0.3s"))
    async with (
        GeminiServer([refused]) as server,
        sdk(settings(("one", server.origin))) as (models, _),
    ):
        assert (await models.generate_content(model="fast", contents=PROMPT)).text == "Hello, world."
        first, second = server.log
        assert second.at - first.at >= 0.3


async def test_a_days_quota_moves_on_at_once_and_is_not_asked_again():
    spent = Answer(429, quota_error("GenerateRequestsPerDayPerProjectPerModel", "0.1s"))
    async with (
        GeminiServer(default=spent) as first,
        GeminiServer() as second,
        sdk(settings(("one", first.origin), ("two", second.origin))) as (models, lab),
    ):
        for _ in range(2):
            assert (await models.generate_content(model="fast", contents=PROMPT)).text == "Hello, world."
        assert (len(first.log), len(second.log)) == (1, 2)
        paused = next(event for event in lab.events if event.kind == "paused")
        assert 60 < paused.duration <= 25 * 3600
        first.default = Answer()
        await models.generate_content(model="one/another-model", contents=PROMPT)
        assert len(first.log) == 2  # that quota is the model's


async def test_our_own_errors_are_typed_too():
    async with sdk(settings(("dead", NOBODY))) as (models, _):
        with pytest.raises(genai.errors.ServerError, match="no route answered") as caught:
            await models.generate_content(model="fast", contents=PROMPT)
        assert caught.value.code == 503


async def test_a_refused_connection_takes_the_next_route():
    async with (
        GeminiServer() as server,
        sdk(settings(("dead", NOBODY), ("two", server.origin))) as (models, _),
    ):
        assert await read(await models.generate_content_stream(model="fast", contents=PROMPT)) == "Hello, world."


@pytest.mark.parametrize("how", [{"drop_after": 0}, {"error_after": 0, "error": UNAVAILABLE}])
async def test_a_break_before_content_is_not_seen(how: dict[str, Any]):
    async with (
        GeminiServer([Answer(**how)]) as server,
        sdk(settings(("one", server.origin))) as (models, _),
    ):
        assert await read(await models.generate_content_stream(model="fast", contents=PROMPT)) == "Hello, world."
        assert len(server.log) == 2


@pytest.mark.parametrize("how", [{"drop_after": 2, "gap": 0.02}, {"finish": None}])
async def test_a_cut_stream_is_an_error(how: dict[str, Any]):
    async with (
        GeminiServer(default=Answer(**how)) as server,
        sdk(settings(("one", server.origin))) as (models, lab),
    ):
        seen = []
        # as the SDK raises it of itself: what breaks while it iterates, it does not wrap
        with pytest.raises(httpx2.RemoteProtocolError, match="broke off"):  # noqa: PT012
            async for part in await models.generate_content_stream(model="fast", contents=PROMPT):
                seen.append(part.text)
        assert seen[:2] == ["Hello", ", "]
        assert len(server.log) == 1
        assert lab.in_flight() == 0


async def test_an_error_after_content_is_the_sdks_to_tell():
    broken = Answer(error_after=2, error=UNAVAILABLE)
    async with (
        GeminiServer(default=broken) as server,
        sdk(settings(("one", server.origin))) as (models, lab),
    ):
        stream = await models.generate_content_stream(model="fast", contents=PROMPT)
        with pytest.raises(genai.errors.ServerError, match="overloaded"):
            await read(stream)
        assert len(server.log) == 1
        await eventually(lambda: lab.in_flight() == 0)


async def test_a_list_in_place_of_events():
    async with GeminiServer() as server, running(settings(("one", server.origin))) as lab:
        async with make_client("httpx2", lab.core) as http:
            url = f"{server.origin}/v1beta/models/m:streamGenerateContent?key=callers-own"
            async with http.stream("POST", url, json={"contents": []}) as response:
                await response.aread()
        assert len(response.json()) == 3
        assert server.log[0].query == {}
        assert server.log[0].headers["x-goog-api-key"] == "key-of-one"
        assert next(one for one in lab.events if one.kind == "settled").output_tokens == 5


async def test_a_success_in_another_form_is_tried_again():
    async with (
        GeminiServer([Answer(body="<html>busy</html>"), Answer(body={"choices": []})]) as server,
        sdk(settings(("one", server.origin))) as (models, _),
    ):
        assert (await models.generate_content(model="fast", contents=PROMPT)).text == "Hello, world."
        assert len(server.log) == 3


@pytest.mark.parametrize("how", ["cancel", "drop"])
async def test_a_stream_given_up_returns_its_lease(how: str):
    async with (
        GeminiServer(default=Answer(gap=60)) as server,
        sdk(settings(("one", server.origin))) as (models, lab),
    ):
        entered = asyncio.Event()

        async def consume() -> None:
            async for _ in await models.generate_content_stream(model="fast", contents=PROMPT):
                entered.set()
                if how == "drop":
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
            return lab.in_flight() == 0 and server.in_flight == 0

        await eventually(ended)
