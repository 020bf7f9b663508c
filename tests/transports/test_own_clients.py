"""Our transport in clients that others have made: with their address, parameters, headers, keys and hooks."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import httpx
import httpx2
import openai
import pytest
from dispatch_lab import config_for, running
from plain_server import serving

from orchestra.testing import ScriptedProvider
from orchestra.transports import Family, make_transport

FAMILIES: dict[Family, Any] = {"httpx2": httpx2, "httpx": httpx}
MESSAGES: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture(params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> Family:
    return request.param  # type: ignore[no-any-return]


async def test_what_a_client_adds_arrives_and_its_hooks_run(family: Family):
    http, heard = FAMILIES[family], []

    class Signed(http.Auth):  # type: ignore[misc]
        requires_response_body = True

        def auth_flow(self, request: Any) -> Generator[Any, Any, None]:
            request.headers["x-signed"] = "first"
            response = yield request
            assert response.json()["id"] == "file-1"
            request.headers["x-signed"] = "second"
            yield request

    async def on_request(request: Any) -> None:
        request.headers["x-hooked"] = "yes"
        heard.append("request")

    async def on_response(response: Any) -> None:
        heard.append(f"response {response.status_code} to {response.request.method}")

    async with serving() as server, running({}) as lab:
        client = http.AsyncClient(
            transport=make_transport(family, lab.core),
            base_url=server.url,
            params={"api-version": "1"},
            headers={"x-mine": "café".encode()},
            auth=Signed(),
            cookies={"session": "s"},
            event_hooks={"request": [on_request], "response": [on_response]},
        )
        async with client:
            response = await client.post("/files", json={"a": 1}, params={"q": "ü"})
        assert (response.status_code, response.http_version) == (200, "HTTP/1.1")
        assert response.request.url.query == b"api-version=1&q=%C3%BC"
        assert [seen.headers["x-signed"] for seen in server.log] == ["first", "second"]
        assert {seen.headers["x-hooked"] for seen in server.log} == {"yes"}
        assert {seen.headers["cookie"] for seen in server.log} == {"session=s"}
        assert {seen.body for seen in server.log} == {b'{"a":1}'}
        assert heard.count("request") == heard.count("response 200 to POST") >= 1


async def test_one_transport_serves_some_of_a_clients_addresses(family: Family):
    http = FAMILIES[family]
    async with ScriptedProvider() as provider, running(config_for({"one": provider})) as lab:
        mounts = {"all://nobody.invalid": make_transport(family, lab.core)}
        async with http.AsyncClient(mounts=mounts, trust_env=False) as client:
            body = {"model": "fast", "messages": MESSAGES}
            ours = await client.post("http://nobody.invalid/v1/chat/completions", json=body)
            direct = await client.post(f"{provider.base_url}/chat/completions", json=body)
        assert ours.json()["choices"] == direct.json()["choices"]
        assert [hit.json["model"] for hit in provider.log] == ["one-model", "fast"]


async def test_the_sdks_default_client_over_our_transport():
    async with ScriptedProvider() as provider, running(config_for({"one": provider})) as lab:
        http_client = openai.DefaultAsyncHttpxClient(transport=make_transport("httpx2", lab.core))
        options: Any = {"base_url": "http://nobody.invalid/v1", "api_key": "k", "http_client": http_client}
        async with openai.AsyncOpenAI(**options) as client:
            answer = await client.chat.completions.create(
                model="fast", messages=MESSAGES, extra_body={"x-orchestra-traffic": "bulk"}
            )
            assert answer.choices[0].message.content == "Hello, world."
            assert "x-orchestra-traffic" not in provider.log[0].json
            with pytest.raises(openai.BadRequestError, match="job=nightly") as caught:
                await client.chat.completions.create(
                    model="fast", messages=MESSAGES, extra_headers={"x-orchestra-traffic": "bluk"}
                )
            assert caught.value.param == "x-orchestra-traffic"
        assert len(provider.log) == 1
        assert {event.traffic.value for event in lab.events} == {"bulk"}
