"""The unmodified SDKs of those who speak the OpenAI wire with differences, each pointed at its own provider.

The scripted provider stands for all of them: it serves the wire below any path.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import openai
import pytest
from dispatch_lab import Lab, eventually, running

from orchestra.testing import Reply, ScriptedProvider, StreamScript
from orchestra.transports import Family, make_client

MESSAGES: Any = [{"role": "user", "content": "hi"}]
TEXT = "Hello, world."
API_VERSION = "2024-10-21"


class Sdk:
    """One SDK: how its client is made over ours, and how it is asked, whole and streamed."""

    kind: str
    family: Family
    errors: ModuleType

    def client(self, http: Any, origin: str) -> Any:
        raise NotImplementedError

    async def ask(self, client: Any, model: str) -> str:
        answer = await client.chat.completions.create(model=model, messages=MESSAGES)
        return str(answer.choices[0].message.content)

    async def open(self, client: Any, model: str) -> Any:
        return await client.chat.completions.create(model=model, messages=MESSAGES, stream=True)

    def text(self, chunk: Any) -> str:
        return "".join(choice.delta.content or "" for choice in chunk.choices)

    async def close(self, stream: Any) -> None:
        await stream.close()

    def too_many(self) -> type[Exception]:
        return self.errors.RateLimitError  # type: ignore[no-any-return]


class AzureSdk(Sdk):
    kind, family, errors = "azure", "httpx2", openai

    def client(self, http: Any, origin: str) -> Any:
        return openai.AsyncAzureOpenAI(
            azure_endpoint=origin, api_key="callers-own", api_version=API_VERSION, http_client=http, max_retries=5
        )


class GroqSdk(Sdk):
    kind, family = "groq", "httpx"

    def __init__(self) -> None:
        self.errors = pytest.importorskip("groq")

    def client(self, http: Any, origin: str) -> Any:
        return self.errors.AsyncGroq(base_url=origin, api_key="callers-own", http_client=http, max_retries=5)


class TogetherSdk(Sdk):
    kind, family = "together", "httpx"

    def __init__(self) -> None:
        self.errors = pytest.importorskip("together")

    def client(self, http: Any, origin: str) -> Any:
        return self.errors.AsyncTogether(base_url=origin, api_key="callers-own", http_client=http, max_retries=5)


class MistralSdk(Sdk):
    kind, family = "mistral", "httpx2"

    def __init__(self) -> None:
        self._module = pytest.importorskip("mistralai.client")
        self.errors = pytest.importorskip("mistralai.client.errors")

    def client(self, http: Any, origin: str) -> Any:
        return self._module.Mistral(server_url=origin, api_key="callers-own", async_client=http)

    async def ask(self, client: Any, model: str) -> str:
        answer = await client.chat.complete_async(model=model, messages=MESSAGES)
        return str(answer.choices[0].message.content)

    async def open(self, client: Any, model: str) -> Any:
        return await client.chat.stream_async(model=model, messages=MESSAGES)

    def text(self, chunk: Any) -> str:
        return super().text(chunk.data)

    async def close(self, stream: Any) -> None:
        await stream.__aexit__(None, None, None)

    def too_many(self) -> type[Exception]:
        return self.errors.SDKError  # type: ignore[no-any-return]


@pytest.fixture(params=[AzureSdk, GroqSdk, TogetherSdk, MistralSdk], ids=lambda one: str(one.kind))
def sdk(request: pytest.FixtureRequest) -> Sdk:
    return request.param()  # type: ignore[no-any-return]


@asynccontextmanager
async def using(sdk: Sdk, provider: ScriptedProvider, **account: Any) -> AsyncIterator[tuple[Any, Lab]]:
    """Yield the SDK's client, pointed at the provider, over our transport; ``fast`` is a model of ours there."""
    config = {
        "providers": {"one": {"kind": sdk.kind, "base_url": provider.origin, **account}},
        "models": {"fast": {"routes": ["one/its-model"]}},
    }
    async with running(config) as lab:
        http: Any = make_client(sdk.family, lab.core)
        async with http:
            yield sdk.client(http, provider.origin), lab


async def read(sdk: Sdk, stream: Any) -> str:
    return "".join([sdk.text(chunk) async for chunk in stream])


@pytest.mark.parametrize("model", ["its-model", "fast"])
async def test_whole_and_streamed(sdk: Sdk, model: str):
    async with ScriptedProvider() as provider, using(sdk, provider, api_key="key-of-one") as (client, lab):
        assert await sdk.ask(client, model) == TEXT
        assert await read(sdk, await sdk.open(client, model)) == TEXT
        assert lab.kinds().count("settled") == 2
        assert lab.in_flight() == 0
        for hit in provider.log:
            assert hit.path.endswith("/chat/completions")
            assert "callers-own" not in json.dumps(dict(hit.headers))
            assert "key-of-one" in json.dumps(dict(hit.headers))
            named = hit.path.split("/")[3] if sdk.kind == "azure" else hit.json["model"]
            assert named == "its-model"
        sent = provider.log[1].json
        assert ("stream_options" in sent) is (sdk.kind in ("azure", "together"))


async def test_the_caller_s_own_key_is_used_where_there_is_no_other(sdk: Sdk):
    async with ScriptedProvider() as provider, using(sdk, provider) as (client, lab):
        assert await sdk.ask(client, "its-model") == TEXT
        assert "callers-own" in json.dumps(dict(provider.log[0].headers))
        assert "no-key" not in {pool["key"] for pool in lab.budget.snapshot()}


async def test_refusals_are_tried_by_our_count_alone_and_raise_the_sdk_s_error(sdk: Sdk):
    wrong = Reply.error(429, "1300", headers={"retry-after": "0.01"}, message="too many")
    async with ScriptedProvider(default=wrong) as provider, using(sdk, provider) as (client, _):
        with pytest.raises(sdk.too_many()):
            await sdk.ask(client, "fast")
        assert len(provider.log) == 3


async def test_a_refusal_at_first_is_not_seen(sdk: Sdk):
    wrong = Reply.error(503, message="busy", headers={"retry-after": "0.01"})
    async with ScriptedProvider([wrong]) as provider, using(sdk, provider) as (client, _):
        assert await read(sdk, await sdk.open(client, "fast")) == TEXT
        assert len(provider.log) == 2


async def test_a_stream_given_up_returns_its_lease(sdk: Sdk):
    slow = Reply(stream=StreamScript(gap=60))
    async with ScriptedProvider(default=slow) as provider, using(sdk, provider) as (client, lab):
        stream = await sdk.open(client, "fast")
        async for chunk in stream:
            if sdk.text(chunk):
                break
        await sdk.close(stream)
        await eventually(lambda: lab.in_flight() == 0 and provider.in_flight == 0)


async def test_azure_s_other_endpoints():
    sdk = AzureSdk()
    async with ScriptedProvider() as provider, using(sdk, provider) as (client, lab):
        vectors = await client.embeddings.create(model="fast", input=["a", "b"], encoding_format="float")
        assert len(vectors.data) == 2
        assert [model.id async for model in client.models.list()] == ["scripted"]
        assert [hit.path for hit in provider.log] == [
            "/openai/deployments/its-model/embeddings",
            "/openai/models",
        ]
        assert lab.kinds().count("settled") == 1


async def test_an_openai_client_may_be_pointed_at_azure_s_v1():
    async with ScriptedProvider() as provider, using(AzureSdk(), provider, api_key="key-of-one") as (_, lab):
        client = openai.AsyncOpenAI(
            base_url=f"{provider.origin}/openai/v1/", api_key="x", http_client=make_client("httpx2", lab.core)
        )
        answer = await client.chat.completions.create(model="fast", messages=MESSAGES)
        assert answer.choices[0].message.content == TEXT
        hit = provider.log[0]
        assert (hit.path, hit.json["model"]) == ("/openai/v1/chat/completions", "its-model")
        assert hit.headers["api-key"] == "key-of-one"
        assert "authorization" not in hit.headers
