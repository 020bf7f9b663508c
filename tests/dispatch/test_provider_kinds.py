"""What the kinds of providers change in dispatch: addresses, keys, models in paths, priorities, pauses."""

from __future__ import annotations

from typing import Any

import pytest
from dispatch_lab import chat, config_for, pointed, running, text_of
from hand_clock import LeapingClock

from orchestra.config import parse_config
from orchestra.dispatch.accounts import Account
from orchestra.policies.traffic import TrafficClass
from orchestra.testing import Reply, ScriptedProvider

GROQ_DAY = "Rate limit reached on tokens per day (TPD): Limit 9, Used 9, Requested 2. Please try again in 30s."


def config(kind: str, url: str, **account: Any) -> dict[str, Any]:
    """Return settings with a provider ``one`` of that kind, and a model ``fast`` that it serves."""
    return {
        "providers": {"one": {"kind": kind, "base_url": url, "api_key": "key-of-one", **account}},
        "models": {"fast": {"routes": ["one/its-model"]}},
    }


ROOTS = {
    "azure": "/openai/v1",
    "mistral": "/v1",
    "groq": "/openai/v1",
    "together": "/v1",
    "fireworks": "/inference/v1",
    "vllm": "/v1",
    "sglang": "/v1",
    "llamacpp": "/v1",
}


@pytest.mark.parametrize(("kind", "root"), ROOTS.items())
async def test_a_base_url_is_written_as_the_sdk_or_as_the_documentation_has_it(kind: str, root: str):
    needs_root = kind in ("vllm", "sglang", "llamacpp")
    async with ScriptedProvider() as provider:
        for base in [root] if needs_root else ["", root]:
            async with running(config(kind, provider.origin + base)) as lab:
                assert await text_of(await lab.dispatcher.send(chat())) == "Hello, world."
                answer = await lab.dispatcher.send(pointed(f"{provider.origin}{root}/chat/completions"))
                assert await text_of(answer) == "Hello, world."
                models = pointed(f"{provider.origin}{root}/models", method="GET")
                assert (await lab.dispatcher.send(models)).status == 200
                assert lab.kinds().count("settled") == 2
                assert lab.in_flight() == 0
        assert {hit.path for hit in provider.log} == {f"{root}/chat/completions", f"{root}/models"}
        name, value = ("api-key", "key-of-one") if kind == "azure" else ("authorization", "Bearer key-of-one")
        assert {hit.headers[name] for hit in provider.log} == {value}
        assert not any("callers-own" in str(hit.headers) for hit in provider.log)


async def test_a_deployment_s_path_names_its_model():
    async with ScriptedProvider() as provider:
        deployments = f"{provider.origin}/openai/deployments"
        async with running(config("azure", provider.origin)) as lab:
            for model in ("mine", "fast"):
                call = pointed(f"{deployments}/{model}/chat/completions?api-version=2024-10-21", model)
                await (await lab.dispatcher.send(call)).read()
            without = pointed(f"{deployments}/other/chat/completions?api-version=2024-10-21", "whatever")
            await (await lab.dispatcher.send(without)).read()
            assert {pool["models"][0] for pool in lab.budget.snapshot()} == {"mine", "its-model", "other"}
        paths = [hit.path.removeprefix("/openai/deployments/") for hit in provider.log]
        assert paths == [f"{model}/chat/completions" for model in ("mine", "its-model", "other")]


def test_the_query_goes_with_the_path():
    account = Account("one", parse_config(config("azure", "http://x.invalid")).providers["one"])
    call = pointed("http://x.invalid/openai/deployments/fast/chat/completions?api-version=1")
    path = account.provider.path_for(account.path_for(call.url), "mine")
    assert account.request(call, path, None).url == call.url.replace("fast", "mine")
    elsewhere = pointed("http://y.invalid/openai/deployments/fast/chat/completions?api-version=1")
    url = account.request(elsewhere, account.path_for(elsewhere.url), None).url
    assert url == "http://x.invalid/openai/v1/chat/completions"


def test_the_caller_s_own_azure_key_tells_its_pool():
    settings = config("azure", "http://x.invalid")
    del settings["providers"]["one"]["api_key"]
    account = Account("one", parse_config(settings).providers["one"])
    url = "http://x.invalid/openai/v1/chat/completions"
    prints = {account.fingerprint(pointed(url, headers={"api-key": key})) for key in "abb"}
    assert len(prints) == 2
    assert "no-key" not in prints


@pytest.mark.parametrize(("kind", "interactive", "bulk"), [("vllm", 0, 10), ("sglang", 10, 0)])
async def test_the_class_is_told_only_where_the_settings_ask_for_it(kind: str, interactive: int, bulk: int):
    async with ScriptedProvider() as provider:
        for asked in (True, False):
            async with running(config(kind, provider.base_url, priority=asked)) as lab:
                for traffic in (TrafficClass.INTERACTIVE, TrafficClass.BULK):
                    await (await lab.dispatcher.send(chat(traffic=traffic))).read()
                await (await lab.dispatcher.send(chat(priority=3))).read()
        told = [hit.json.get("priority") for hit in provider.log]
        assert told == [interactive, bulk, 3, None, None, 3]


@pytest.mark.parametrize("status", [400, 422])
async def test_a_server_that_does_not_know_the_question_for_usage_is_not_asked_again(status: int):
    refusal = Reply.error(status, message="Unrecognized request argument supplied: stream_options")
    async with ScriptedProvider([refusal]) as provider, running(config_for({"one": provider})) as lab:
        for _ in range(2):
            assert await text_of(await lab.dispatcher.send(chat(stream=True))) == "Hello, world."
        asked = ["stream_options" in hit.json for hit in provider.log]
        assert asked == [True, False, False]
        assert "retried" not in lab.kinds()
        assert lab.in_flight() == 0


async def test_what_the_caller_asked_for_is_the_caller_s_to_answer_for():
    refusal = Reply.error(400, message="Unrecognized request argument supplied: stream_options")
    async with ScriptedProvider(default=refusal) as provider, running(config_for({"one": provider})) as lab:
        outcome = await lab.dispatcher.send(chat(stream=True, stream_options={"include_usage": True}))
        assert outcome.status == 400
        assert len(provider.log) == 1
        outcome = await lab.dispatcher.send(chat(stream=True))  # refused without the question too: no loop
        assert outcome.status == 400
        assert len(provider.log) == 3


async def test_a_day_s_limit_at_groq_leaves_its_other_models_alone():
    spent = Reply.error(429, "rate_limit_exceeded", kind="tokens", message=GROQ_DAY)
    async with ScriptedProvider([spent]) as provider:
        settings = config("groq", provider.origin)
        settings["models"]["fast"]["routes"] = ["one/first", "one/second"]
        clock = LeapingClock()
        async with running(settings, clock=clock) as lab:
            for _ in range(2):
                assert await text_of(await lab.dispatcher.send(chat())) == "Hello, world."
            assert [hit.json["model"] for hit in provider.log] == ["first", "second", "second"]
            assert lab.kinds().count("paused") == 1
            settled = clock()
            bulk = chat("one/first", traffic=TrafficClass.BULK)
            assert await text_of(await lab.dispatcher.send(bulk)) == "Hello, world."
            assert clock() - settled > 10


async def test_a_full_server_is_asked_again_and_stays_in_use():
    full = Reply.error(503, message="The request queue of this server is full.")
    async with ScriptedProvider([full, full]) as provider, running(config("vllm", provider.base_url)) as lab:
        assert await text_of(await lab.dispatcher.send(chat())) == "Hello, world."
        assert {name: one["state"] for name, one in lab.dispatcher.snapshot().items()} == {
            "one/its-model": "closed"
        }


async def test_batches_and_files_are_not_metered():
    async with ScriptedProvider() as provider, running(config("mistral", provider.origin)) as lab:
        await (await lab.dispatcher.send(pointed(f"{provider.base_url}/batch/jobs"))).read()
        assert lab.kinds() == []
        await (await lab.dispatcher.send(pointed(f"{provider.base_url}/chat/completions"))).read()
        assert "settled" in lab.kinds()


@pytest.mark.parametrize(
    ("kind", "group", "window"),
    [
        ("azure", {}, "fixed"),
        ("azure", {"window": "refill"}, "refill"),
        ("azure", {"burst_seconds": 6.0}, "refill"),
        ("groq", {}, "refill"),
    ],
)
def test_a_limit_counts_as_the_provider_does_unless_the_settings_say(
    kind: str, group: dict[str, Any], window: str
):
    limits = [{"tokens_per_minute": 600.0, **group}]
    account = Account("one", parse_config(config(kind, "http://x.invalid", limits=limits)).providers["one"])
    found = account.limits("m")
    assert found is not None
    assert found.window == window
