"""Calls in other wires than OpenAI's on their way: where their model stands, who has them, what they carry."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dispatch_lab import chat, running
from gemini_server import Answer, GeminiServer, quota_error

from orchestra.call import Call
from orchestra.config import parse_config
from orchestra.dispatch.accounts import Account
from orchestra.errors import InputError
from orchestra.testing import Reply, ScriptedProvider

CONTENT = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
OWN = (("x-goog-api-key", "callers-own"), ("x-goog-user-project", "p"), ("content-type", "application/json"))


def post(url: str, payload: dict[str, Any], headers: tuple[tuple[str, str], ...] = OWN) -> Call:
    return Call("id", "POST", url, headers, json.dumps(payload).encode(), payload)


def account(kind: str, base_url: str, key: str | None = "ours") -> Account:
    config = {"kind": kind, "base_url": base_url, **({"api_key": key} if key else {})}
    return Account("one", parse_config({"providers": {"one": config}}).providers["one"])


@pytest.mark.parametrize(
    ("query", "sent"),
    [("?alt=sse", "?alt=sse"), ("?key=callers-own&alt=sse", "?alt=sse"), ("?key=callers-own", ""), ("?x=1", "")],
)
def test_elsewhere_a_query_is_cut_down_to_the_form_of_the_answer(query: str, sent: str):
    call = post(f"https://a.example/v1beta/models/m:streamGenerateContent{query}", CONTENT)
    request = account("gemini", "https://b.example").request(call, "/v1beta/models/m:streamGenerateContent", None)
    assert request.url == f"https://b.example/v1beta/models/m:streamGenerateContent{sent}"
    assert dict(request.headers) == {"content-type": "application/json", "x-goog-api-key": "ours"}


@pytest.mark.parametrize(("key", "sent"), [("ours", "?alt=sse&x=1"), (None, "?key=callers-own&alt=sse&x=1")])
def test_at_home_a_key_in_the_query_gives_way_to_ours(key: str | None, sent: str):
    call = post("https://a.example/v1beta/models/m:generateContent?key=callers-own&alt=sse&x=1", CONTENT)
    request = account("gemini", "https://a.example", key).request(call, "/v1beta/models/m:generateContent", None)
    assert request.url.endswith(f":generateContent{sent}")
    assert ("x-goog-user-project" in dict(request.headers)) is (key is None)


def test_callers_with_keys_of_their_own_have_budgets_of_their_own():
    here = account("gemini", "https://a.example", None)
    url = "https://a.example/v1beta/models/m:generateContent"
    calls = [
        post(url, CONTENT, (("x-goog-api-key", "a"),)),
        post(url, CONTENT, (("x-goog-api-key", "b"),)),
        post(f"{url}?key=c", CONTENT, ()),
        post(url, CONTENT, ()),
    ]
    assert len({here.fingerprint(call) for call in calls}) == 4
    assert here.fingerprint(calls[3]) == "no-key"


@pytest.mark.parametrize(
    ("own", "sent"),
    [
        ((), "2023-06-01"),
        ((("anthropic-version", "2026-10-21"), ("anthropic-beta", "b")), "2026-10-21"),
    ],
)
def test_the_version_of_the_caller_is_kept_and_one_is_given_where_there_is_none(own: Any, sent: str):
    call = post("https://orchestra.invalid/v1/messages", {"model": "m", "messages": []}, own)
    headers = account("anthropic", "https://b.example").request(call, "/v1/messages", None).headers
    assert [value for name, value in headers if name == "anthropic-version"] == [sent]
    assert [value for name, value in headers if name == "anthropic-beta"] == (["b"] if own else [])


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        ("anthropic", "https://a.example/v1/chat/completions"),
        ("gemini", "https://a.example/v1/messages"),
        ("openai-compatible", "https://a.example/v1/messages"),
        ("openai-compatible", "https://a.example/v1beta/models/m:generateContent"),
    ],
)
def test_a_route_of_another_wire_is_refused_in_so_many_words(kind: str, url: str):
    there = account(kind, "https://b.example")
    call = post(url, {"model": "m"})
    with pytest.raises(InputError, match=f"kind '{kind}'.* has no endpoint"):
        there.request(call, there.path_for(url), None)


async def test_a_call_of_ours_takes_the_route_that_speaks_its_wire():
    async with ScriptedProvider() as provider:
        providers = {
            "claude": {"kind": "anthropic", "base_url": provider.origin, "api_key": "k"},
            "other": {"kind": "openai-compatible", "base_url": provider.base_url, "api_key": "k"},
        }
        models = {"fast": {"routes": ["claude/a", "other/b"]}, "claude": {"routes": ["claude/a"]}}
        async with running({"providers": providers, "models": models}) as lab:
            outcome = await lab.dispatcher.send(chat())
            await outcome.read()
            assert outcome.route == "other/b"
            assert lab.in_flight() == 0
            with pytest.raises(InputError, match="has no endpoint '/chat/completions'"):
                await lab.dispatcher.send(chat("claude"))


async def test_a_model_in_the_url_is_found_and_replaced():
    async with GeminiServer() as server:
        providers = {"g": {"kind": "gemini", "base_url": server.origin, "api_key": "k"}}
        config = {"providers": providers, "models": {"fast": {"routes": ["g/gemini-x"]}}}
        async with running(config) as lab:
            for url in (
                "https://nobody.invalid/v1/models/fast:generateContent",
                "https://nobody.invalid/v1beta1/projects/p/locations/l/publishers/google/models/fast:generateContent",
                f"{server.origin}/v1beta/models/fast:generateContent",
                "https://nobody.invalid/v1beta/models/g%2Fgemini-x:generateContent",
            ):
                await (await lab.dispatcher.send(post(url, CONTENT))).read()
        assert [hit.path for hit in server.log] == [
            "/v1/models/gemini-x:generateContent",
            "/v1beta/models/gemini-x:generateContent",
            "/v1beta/models/gemini-x:generateContent",
            "/v1beta/models/gemini-x:generateContent",
        ]
        assert lab.kinds().count("settled") == 4


async def test_an_unmetered_call_carries_the_routes_model_and_our_key():
    async with GeminiServer() as server:
        providers = {"g": {"kind": "gemini", "base_url": server.origin, "api_key": "k"}}
        config = {"providers": providers, "models": {"fast": {"routes": ["g/gemini-x"]}}}
        async with running(config) as lab:
            call = post("https://nobody.invalid/v1beta/models/fast:countTokens", CONTENT)
            assert b"totalTokens" in await (await lab.dispatcher.send(call)).read()
        assert server.log[0].path == "/v1beta/models/gemini-x:countTokens"
        assert server.log[0].headers["x-goog-api-key"] == "k"
        assert lab.kinds() == []


async def test_a_body_that_is_no_object_is_forwarded():
    async with GeminiServer() as server:
        config = {"providers": {"g": {"kind": "gemini", "base_url": server.origin, "api_key": "k"}}}
        async with running(config) as lab:
            url = f"{server.origin}/v1beta/models/m:generateContent"
            outcome = await lab.dispatcher.send(Call("id", "POST", url, (), b"", None))
            await outcome.read()
        assert (outcome.status, len(server.log)) == (200, 1)


async def test_a_days_quota_of_one_model_leaves_the_others_alone():
    spent = Answer(429, quota_error("GenerateRequestsPerDayPerProjectPerModel", "0.1s"))
    async with GeminiServer([spent]) as server:
        config = {"providers": {"g": {"kind": "gemini", "base_url": server.origin, "api_key": "k"}}}
        async with running(config) as lab:
            for model, status in (("a", 429), ("b", 200)):
                call = post(f"{server.origin}/v1beta/models/{model}:generateContent", CONTENT)
                outcome = await lab.dispatcher.send(call)
                await outcome.read()
                assert outcome.status == status
        assert len(server.log) == 2


@pytest.mark.parametrize(
    ("path", "route"), [("/v1/messages", "claude/m"), ("/v1/chat/completions", "compatible/m")]
)
async def test_of_two_accounts_at_a_host_the_one_that_speaks_the_wire_is_meant(path: str, route: str):
    async with ScriptedProvider() as provider:
        providers = {
            "claude": {"kind": "anthropic", "base_url": provider.origin, "api_key": "a"},
            "compatible": {"kind": "openai-compatible", "base_url": provider.base_url, "api_key": "b"},
        }
        async with running({"providers": providers}) as lab:
            payload = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
            outcome = await lab.dispatcher.send(post(provider.origin + path, payload))
            await outcome.read()
        assert (outcome.status, outcome.route, outcome.usage.certainty) == (200, route, "known")


@pytest.mark.parametrize("model", ["..", "../../v1/files", "a/../b", ".", "a/./b", "a//b", ""])
@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("gemini", "/v1beta/models/fast:generateContent"),
        ("azure", "/openai/deployments/fast/chat/completions"),
    ],
)
def test_a_models_name_leads_to_no_other_endpoint(kind: str, path: str, model: str):
    with pytest.raises(InputError, match="cannot be part of an address"):
        account(kind, "https://a.example").provider.path_for(path, model)


def test_a_models_name_is_quoted_in_a_path():
    provider = account("gemini", "https://a.example").provider
    for model in ("m:delete?x", "a#b", "a%2f..", "x\r\ny", "\u00e9"):
        path = provider.path_for("/v1beta/models/fast:generateContent", model)
        assert path.isascii()
        assert not set("?#\r\n") & set(path)
        assert path.count(":") == 1
        assert provider.model_in(path) == model


async def test_a_cookie_of_another_host_than_the_callers_is_not_handed_on():
    async with ScriptedProvider() as here, ScriptedProvider() as there:
        providers = {
            "here": {"kind": "openai-compatible", "base_url": here.base_url},
            "there": {"kind": "openai-compatible", "base_url": there.base_url, "api_key": "k"},
        }
        models = {"fast": {"routes": ["here/a"]}, "other": {"routes": ["there/b"]}}
        async with running({"providers": providers, "models": models}) as lab:
            for model, given in (("fast", True), ("other", False)):
                for provider in (here, there):
                    provider.script.append(Reply(headers={"set-cookie": "a=b"}))
                call = post(f"{here.base_url}/chat/completions", {"model": model, "messages": []}, ())
                outcome = await lab.dispatcher.send(call)
                await outcome.read()
                assert (outcome.header("set-cookie") is not None) is given


async def test_an_address_that_is_none_is_the_callers_fault():
    config = {"providers": {"one": {"kind": "openai-compatible", "base_url": "http://a.example", "api_key": "k"}}}
    async with running(config) as lab:
        with pytest.raises(InputError, match="malformed"):
            await lab.dispatcher.send(post("http://a.example:99999/v1/x", {"model": "m"}))
