"""The scripted provider does what it is told."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import time

import httpx2
import pytest
from batch_lab import CHAT as CHAT_PATH
from batch_lab import jsonl, line
from dispatch_lab import eventually
from holding_provider import HoldingProvider

from orchestra.testing import Limits, Reply, ScriptedProvider, StreamScript
from orchestra.testing.__main__ import read_options

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def ask(provider: ScriptedProvider, **fields: object) -> httpx2.Response:
    async with httpx2.AsyncClient(trust_env=False) as client:
        return await client.post(f"{provider.base_url}/chat/completions", json={**CHAT, **fields})


async def test_replies_come_in_turn_and_every_request_is_logged():
    async with ScriptedProvider([Reply(418, {"x-a": "b"}, {"error": {}})], text="hello") as provider:
        first, second = await ask(provider), await ask(provider)
        assert (first.status_code, first.headers["x-a"]) == (418, "b")
        assert second.json()["choices"][0]["message"]["content"] == "hello"
        assert second.json()["usage"]["total_tokens"] > 0
        assert [hit.status for hit in provider.log] == [418, 200]
        assert provider.log[0].json == CHAT


async def test_a_stream_follows_its_script():
    async with ScriptedProvider(default=Reply(stream=StreamScript(chunks=["a", "b"]))) as provider:
        body = (await ask(provider, stream=True)).text
        assert body.count('"content":') == 3
        assert '"usage"' not in body
        assert body.endswith("data: [DONE]\n\n")
        body = (await ask(provider, stream=True, stream_options={"include_usage": True})).text
        assert body.count('"usage":{') == 1


@pytest.mark.parametrize(
    ("hint", "header"),
    [
        ("seconds", "retry-after"),
        ("milliseconds", "retry-after-ms"),
        ("date", "retry-after"),
        ("reset", "x-ratelimit-reset-requests"),
        ("iso", "x-ratelimit-reset-requests"),
    ],
)
async def test_limits_are_enforced_and_told(hint: str, header: str):
    limits = Limits(requests_per_minute=60, burst_seconds=2, hint=hint)  # type: ignore[arg-type]
    async with ScriptedProvider(limits=limits, clock=lambda: 1000.0) as provider:
        answers = [await ask(provider) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[0].headers["x-ratelimit-remaining-requests"] == "1"
        assert header in answers[2].headers


async def test_too_many_at_once_are_refused():
    async with HoldingProvider(limits=Limits(max_concurrency=2)) as provider:
        gate = provider.hold(4)
        asked = asyncio.gather(*(ask(provider) for _ in range(4)))
        await eventually(lambda: provider.in_flight == 4)
        gate.set()
        answers = await asked
        assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429]
        assert provider.peak >= 3


async def test_killed_it_drops_everything_and_comes_back_on_the_same_port():
    async with ScriptedProvider(default=Reply(delay=60)) as provider:
        url = provider.base_url
        waiting = asyncio.create_task(ask(provider))
        await eventually(lambda: len(provider.log) == 1)
        await provider.kill()
        with pytest.raises(httpx2.TransportError):
            await waiting
        with pytest.raises(httpx2.ConnectError):
            await ask(provider)
        provider.default = Reply()
        await provider.restart()
        assert (await ask(provider)).status_code == 200
        assert provider.base_url == url


async def test_a_body_may_be_cut_short():
    async with ScriptedProvider([Reply(cut_after=20)]) as provider:
        with pytest.raises(httpx2.RemoteProtocolError, match="20 bytes"):
            await ask(provider)
        assert not provider.log[0].completed
        assert (await ask(provider)).status_code == 200


async def test_keys_open_accounts():
    async with ScriptedProvider(accounts={"good": "one"}) as provider:
        assert (await ask(provider)).json()["error"]["code"] == "invalid_api_key"
        async with httpx2.AsyncClient(trust_env=False) as client:
            for header in ({"authorization": "Bearer good"}, {"api-key": "good"}, {"x-api-key": "good"}):
                answer = await client.post(f"{provider.base_url}/chat/completions", json=CHAT, headers=header)
                assert answer.status_code == 200
            refused = await client.post(f"{provider.origin}/v1/messages", json=CHAT)
            assert refused.json()["error"]["type"] == "authentication_error"


async def test_single_routes_have_scripts_of_their_own():
    routes = {"POST */chat/*": [Reply.error(503)], "GET /v1/models": [Reply.error(404)]}
    async with ScriptedProvider([Reply.error(500)], routes=routes) as provider:
        assert [(await ask(provider)).status_code for _ in range(3)] == [503, 500, 200]


async def test_every_hit_tells_its_connection_query_and_hash():
    async with ScriptedProvider() as provider, httpx2.AsyncClient(trust_env=False) as client:
        for _ in range(2):
            await client.get(f"{provider.base_url}/models", params={"a": "b"})
        await ask(provider)
        first, second, other = provider.log
        assert first.connection == second.connection != other.connection
        assert (first.query, first.size) == ({"a": "b"}, 0)
        assert other.body_hash == hashlib.sha256(other.body).hexdigest()


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--requests-per-minute", "-3", "must be a number above 0, not '-3'"),
        ("--max-concurrency", "1.5", "must be a whole number of 1 or more"),
        ("--batch-end", "foo", "must be completed, expired, cancelled, failed, never or other:WORD, not 'foo'"),
        ("--lost-uploads", "nan", "must be a share from 0 to 1"),
        ("--port", "99999", "must be a port"),
    ],
)
def test_a_wrong_option_is_refused(capsys: pytest.CaptureFixture[str], option: str, value: str, told: str):
    with pytest.raises(SystemExit):
        read_options([option, value])
    assert f"{option}: {told}" in capsys.readouterr().err


def test_a_batch_may_end_as_no_client_knows():
    assert read_options(["--batch-end", "other:paused", "--batch-answered", "0"]).batch_end == "paused"
    assert read_options(["--batch-end", "never"]).batch_end is None


def test_it_serves_batches_from_a_process_of_its_own():
    options = ["--batch-seconds", "0.02", "--batch-end", "expired", "--batch-answered", "0.5", "--key", "k=mine"]
    command = [sys.executable, "-m", "orchestra.testing", "--echo", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["base_url"]
            with httpx2.Client(base_url=url, trust_env=False, headers={"authorization": "Bearer k"}) as client:
                answer = client.post("/chat/completions", json=CHAT)
                assert answer.json()["choices"][0]["message"]["content"] == "hi"
                one, two = (line(custom_id) for custom_id in "ab")
                file = client.post("/files", data={"purpose": "batch"}, files={"file": ("f", jsonl([one, two]))})
                asked = {"input_file_id": file.json()["id"], "endpoint": CHAT_PATH, "completion_window": "24h"}
                batch = client.post("/batches", json=asked).json()
                for _ in range(5000):
                    if batch["status"] == "expired":
                        break
                    time.sleep(0.005)
                    batch = client.get(f"/batches/{batch['id']}").json()
                assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
        finally:
            process.kill()


def test_it_serves_from_a_process_of_its_own():
    command = [sys.executable, "-m", "orchestra.testing", "--port", "0", "--chunks", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["base_url"]
            answer = httpx2.post(f"{url}/chat/completions", json={**CHAT, "stream": True}, trust_env=False)
            assert answer.text.count("word ") == 2
        finally:
            process.kill()
