"""Service tiers by class: who asks for which, what becomes of a tier without room, and what it all costs."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dispatch_lab import QUICK, Lab, chat, running, text_of
from gemini_server import Answer, GeminiServer, error, quota_error
from raw_server import read_request, saying

from orchestra.budget import Pool
from orchestra.call import Call, Usage
from orchestra.config import PriceConfig, parse_config
from orchestra.dispatch.accounts import Account
from orchestra.dispatch.tiers import LONGEST_FLEX, cost_at_least, leaves_tier, tier_cost
from orchestra.errors import PriceUnknown, StreamInterrupted
from orchestra.kinds import KINDS
from orchestra.policies.traffic import TrafficClass
from orchestra.providers import Endpoint, provider_of_kind
from orchestra.testing import Reply, ScriptedProvider, StreamScript

SAMPLES = Path(__file__).parent.parent / "samples"
BULK, INTERACTIVE = TrafficClass.BULK, TrafficClass.INTERACTIVE
FLEX = {"bulk": "flex"}
UNSUPPORTED = Reply.error(400, kind="invalid_request_error", message="Unsupported service_tier: flex")


def sampled(name: str) -> Reply:
    answer = json.loads((SAMPLES / f"{name}.json").read_text())
    return Reply(answer["status"], answer["headers"], answer["body"])


NO_ROOM = {"openai": sampled("openai_429_flex_unavailable"), "groq": sampled("groq_498_flex_capacity")}


def served(tier: str | None = None) -> Reply:
    """Return an answer of a hundred tokens of output, and ten of input, that names its tier."""
    message = {"role": "assistant", "content": "x"}
    body = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 100, "total_tokens": 110},
    }
    return Reply(body=body if tier is None else {**body, "service_tier": tier})


def config(kind: str, url: str, **account: Any) -> dict[str, Any]:
    """Return settings with a provider ``one`` of that kind, and a model ``fast`` that it serves."""
    return {
        "providers": {"one": {"kind": kind, "base_url": url, "api_key": "key-of-one", **account}},
        "models": {"fast": {"routes": ["one/its-model"]}},
    }


def account_of(kind: str, **settings: Any) -> Account:
    return Account("one", parse_config(config(kind, "http://x.invalid", **settings)).providers["one"])


def asked(provider: ScriptedProvider) -> list[str | None]:
    return [hit.json.get("service_tier") for hit in provider.log]


async def send(lab: Lab, **options: Any) -> int:
    outcome = await lab.dispatcher.send(chat(**options))
    await outcome.read()
    return outcome.status


@pytest.mark.parametrize("kind", ["openai", "groq", "azure", "openai-compatible"])
async def test_each_class_asks_for_its_own_tier_and_a_call_for_what_it_likes(kind: str):
    tiers = {"interactive": "auto", "bulk": "flex"}
    async with ScriptedProvider() as provider:
        url = provider.base_url if kind == "openai-compatible" else provider.origin
        async with running(config(kind, url, service_tiers=tiers)) as lab:
            for traffic in (INTERACTIVE, BULK):
                await send(lab, traffic=traffic)
                await send(lab, traffic=traffic, service_tier="default")
                await send(lab, traffic=traffic, service_tier=None)
        assert asked(provider) == ["auto", "default", None, "flex", "default", None]
        assert "service_tier" in provider.log[2].json, "the caller's null is the caller's"


async def test_who_sets_none_asks_for_none():
    async with ScriptedProvider() as provider:
        async with running(config("openai", provider.base_url, service_tiers=FLEX)) as lab:
            await send(lab)
        async with running(config("openai", provider.base_url)) as lab:
            await send(lab, traffic=BULK)
        assert not any("service_tier" in hit.json for hit in provider.log)


def test_only_endpoints_that_take_a_tier_are_given_one():
    account = account_of("openai", service_tiers={"interactive": "priority"})
    given = {one for one in Endpoint if "service_tier" in account.prepare(one, chat(), "m")}
    assert given == {Endpoint.CHAT, Endpoint.RESPONSES}


@pytest.mark.parametrize("kind", KINDS)
def test_the_kinds_with_tiers_have_endpoints_that_take_them(kind: str):
    provider = provider_of_kind(kind)
    assert bool(KINDS[kind].tiers) is bool(provider.tiered) is bool(KINDS[kind].billed_tiers)
    assert all(one is Endpoint.OTHER or provider.tier_field for one in provider.tiered)


@pytest.mark.parametrize("kind", NO_ROOM)
async def test_bulk_asks_a_full_tier_twice_and_then_goes_in_the_default_one(kind: str):
    full = NO_ROOM[kind]
    async with ScriptedProvider([full, full]) as provider:
        async with running(config(kind, provider.origin, service_tiers=FLEX)) as lab:
            assert await send(lab, traffic=BULK) == 200
            assert await send(lab, traffic=BULK) == 200
            assert lab.in_flight() == 0
        assert asked(provider) == ["flex", "flex", None, "flex"], "the next call asks anew"


@pytest.mark.parametrize(
    ("reply", "cuts"), [(NO_ROOM["openai"], 0), (NO_ROOM["groq"], 0), (Reply.error(429, "rate_limit_exceeded"), 2)]
)
async def test_a_tier_without_room_is_nothing_that_the_account_did(
    reply: Reply, cuts: int, monkeypatch: pytest.MonkeyPatch
):
    found = []
    throttled = Pool.throttled
    monkeypatch.setattr(Pool, "throttled", lambda *args, **named: found.append(1) or throttled(*args, **named))
    async with (
        ScriptedProvider([reply, reply]) as provider,
        running(config("openai", provider.origin, service_tiers=FLEX)) as lab,
    ):
        assert await send(lab, traffic=BULK) == 200
        assert len(found) == cuts
        assert "paused" not in lab.kinds()
        assert lab.dispatcher.snapshot()["one/its-model"] == {
            "state": "closed",
            "next_try_in": None,
            "fault": None,
            "paused_for": None,
        }


async def test_a_call_that_must_come_soon_does_not_wait_for_room():
    for bound in ({"traffic": BULK, "expires_at": time.monotonic() + 60.0}, {"traffic": INTERACTIVE}):
        tiers = {"interactive": "flex", "bulk": "flex"}
        async with ScriptedProvider([NO_ROOM["openai"]] * 2) as provider:
            async with running(config("openai", provider.base_url, service_tiers=tiers)) as lab:
                provider.script.pop()
                assert await send(lab, **bound) == 200
            assert asked(provider) == ["flex", None]


async def test_a_deadline_that_is_far_leaves_time_to_ask_twice():
    async with ScriptedProvider([NO_ROOM["openai"]] * 2) as provider:
        async with running(config("openai", provider.base_url, service_tiers=FLEX)) as lab:
            assert await send(lab, traffic=BULK, expires_at=time.monotonic() + 2 * LONGEST_FLEX) == 200
        assert asked(provider) == ["flex", "flex", None]


async def test_a_tier_that_the_call_names_is_kept_to_the_end():
    async with ScriptedProvider(default=NO_ROOM["openai"]) as provider:
        retry = replace(QUICK, bulk_attempts=4)
        async with running(config("openai", provider.base_url, service_tiers=FLEX), retry=retry) as lab:
            assert await send(lab, traffic=BULK, service_tier="flex") == 429
        assert asked(provider) == ["flex"] * 4


async def test_a_model_without_the_tier_is_not_asked_for_it_again(caplog: pytest.LogCaptureFixture):
    async with ScriptedProvider([UNSUPPORTED]) as provider:
        tiers = {"interactive": "priority", "bulk": "flex"}
        with caplog.at_level(logging.WARNING, "orchestra.dispatch"):
            async with running(config("openai", provider.base_url, service_tiers=tiers)) as lab:
                for call in (chat(traffic=BULK), chat(traffic=BULK), chat(), chat("one/other", traffic=BULK)):
                    assert await text_of(await lab.dispatcher.send(call)) == "Hello, world."
                assert "retried" not in lab.kinds()
                assert lab.in_flight() == 0
        assert asked(provider) == ["flex", None, None, "priority", "flex"]
        assert [record.getMessage() for record in caplog.records] == [
            "one/its-model has no service tier 'flex': its calls go in the provider's default one"
        ]


@pytest.mark.parametrize("message", ["Unsupported service_tier: flex", "Invalid schema: 'priority' is unknown"])
async def test_what_the_call_itself_is_refused_for_is_told(message: str):
    refusal = Reply.error(400, kind="invalid_request_error", message=message)
    own = {"service_tier": "flex"} if "tier" in message else {}
    async with ScriptedProvider(default=refusal) as provider:
        async with running(config("openai", provider.base_url, service_tiers=FLEX)) as lab:
            assert await send(lab, traffic=BULK, **own) == 400
        assert asked(provider) == ["flex"]


async def test_a_server_may_refuse_all_that_we_add():
    question = Reply.error(400, message="Unrecognized request argument supplied: stream_options")
    async with ScriptedProvider([question, UNSUPPORTED]) as provider:
        async with running(config("openai", provider.base_url, service_tiers=FLEX)) as lab:
            answer = await lab.dispatcher.send(chat(traffic=BULK, stream=True))
            assert await text_of(answer) == "Hello, world."
        assert [set(hit.json) - {"model", "messages", "stream"} for hit in provider.log] == [
            {"stream_options", "service_tier"},
            {"service_tier"},
            set(),
        ]


async def test_messages_have_a_tier():
    payload = {"model": "fast", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    async with ScriptedProvider() as provider:
        tiers = {"interactive": "auto", "bulk": "standard_only"}
        async with running(config("anthropic", provider.origin, service_tiers=tiers)) as lab:
            for traffic in (INTERACTIVE, BULK):
                answer = await lab.dispatcher.send(Call.originate("/v1/messages", payload, traffic=traffic))
                assert answer.status == 200
        assert asked(provider) == ["auto", "standard_only"]


# Gemini: another field, no word of its own for a tier without room, and the tier in a header


CONTENT = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
GENERATE = "/v1beta/models/fast:generateContent"
PRICES = [{"models": ["its-*"], "input": 0.0, "output": 3000.0}]
"""At these, a hundred tokens of output are 0.30 dollars."""


def tiers_of(server: GeminiServer) -> list[str | None]:
    return [request.json.get("serviceTier") for request in server.log]


@pytest.mark.parametrize(
    "shed", [error(503, "UNAVAILABLE"), error(429, "RESOURCE_EXHAUSTED")], ids=["unavailable", "exhausted"]
)
async def test_gemini_sheds_flex_in_the_words_of_an_overload(shed: dict[str, Any]):
    full = Answer(shed["error"]["code"], shed)
    async with GeminiServer([full, full]) as server:
        async with running(config("gemini", server.origin, service_tiers=FLEX)) as lab:
            call = Call.originate(GENERATE, CONTENT, traffic=BULK)
            assert (await lab.dispatcher.send(call)).status == 200
            health = lab.dispatcher.snapshot()["one/its-model"]
            assert (health["state"], health["fault"]) == ("closed", None)
        assert tiers_of(server) == ["flex", "flex", None]


async def test_a_quota_at_gemini_is_one_in_any_tier():
    spent = Answer(429, quota_error("GenerateRequestsPerMinute", "0.01s"))
    async with GeminiServer([spent]) as server:
        async with running(config("gemini", server.origin, service_tiers={"interactive": "flex"})) as lab:
            assert (await lab.dispatcher.send(Call.originate(GENERATE, CONTENT))).status == 200
            own = {**CONTENT, "service_tier": "standard"}
            assert (await lab.dispatcher.send(Call.originate(GENERATE, own))).status == 200
        assert tiers_of(server) == ["flex", "flex", None]
        assert "serviceTier" not in server.log[-1].json, "the caller named it in Google's other spelling"


async def test_a_header_tells_what_gemini_charges():
    prices = [{**PRICES[0], "tiers": {"flex": 0.5, "priority": 2.0}}]
    async with GeminiServer() as server:
        settings = config("gemini", server.origin, service_tiers={"interactive": "priority"}, prices=prices)
        async with running(settings) as lab:
            for told in ("priority", "STANDARD", "flex"):
                server.script.append(Answer(headers={"x-gemini-service-tier": told}))
                await (await lab.dispatcher.send(Call.originate(GENERATE, CONTENT))).read()
        told = [event.usd for event in lab.events if event.kind == "settled"]
        assert told == [pytest.approx(2 * told[1]), told[1], pytest.approx(told[1] / 2)]


# Dollars


def priced(
    url: str, tiers: dict[str, float] | None = None, cap: float | None = 10.0, **asked: str
) -> dict[str, Any]:
    limits = [] if cap is None else [{"usd_per_day": cap}]
    prices = [{**PRICES[0], **({} if tiers is None else {"tiers": tiers})}]
    return config("openai", url, limits=limits, prices=prices, service_tiers=asked)


def dollars(lab: Lab) -> list[tuple[float, float]]:
    """Return what was set aside for each call, and what it came to."""
    settled = [event for event in lab.events if event.kind == "settled"]
    return [(round(one.estimated_usd or 0.0, 6), round(one.usd or 0.0, 6)) for one in settled]


@pytest.mark.parametrize(
    ("factors", "ask", "told", "expected"),
    [
        ({"flex": 0.5}, "flex", "flex", (0.15, 0.15)),
        ({}, "flex", "flex", (0.3, 0.3)),
        ({"priority": 2.0}, "priority", "priority", (0.6, 0.6)),
        ({"priority": 2.0}, "fast", "priority", (0.6, 0.6)),
        ({"priority": 2.0}, "priority", "default", (0.6, 0.3)),
        ({"priority": 2.0}, "auto", "priority", (0.3, 0.6)),
        ({"default": 1.1}, "default", None, (0.33, 0.33)),
        ({"flex": 0.5}, None, None, (0.3, 0.3)),
    ],
)
async def test_set_aside_by_the_tier_asked_for_and_settled_by_the_one_told(
    factors: dict[str, float], ask: str | None, told: str | None, expected: tuple[float, float]
):
    async with (
        ScriptedProvider(default=served(told)) as provider,
        running(priced(provider.base_url, factors, **({"interactive": ask} if ask else {}))) as lab,
    ):
        assert await send(lab, max_tokens=100) == 200
        assert dollars(lab) == [expected]
        (pool,) = lab.budget.snapshot()
        assert pool["dimensions"]["usd_per_day"]["used"] == pytest.approx(expected[1])


async def test_a_stream_tells_its_tier_too():
    script = StreamScript(chunks=("word ",) * 20)
    async with (
        ScriptedProvider(default=Reply(stream=script)) as provider,
        running(priced(provider.base_url, {"flex": 0.5}, interactive="flex")) as lab,
    ):
        assert await send(lab, stream=True, max_tokens=100) == 200
        ((aside, spent),) = dollars(lab)
        usage = next(event for event in lab.events if event.kind == "settled")
        assert aside == pytest.approx(0.15)
        assert spent == pytest.approx((usage.output_tokens or 0) * 3000.0 / 1e6 / 2), "as asked: it tells none"


async def test_a_stream_that_is_cut_may_have_told_its_tier():
    chunk = {"choices": [{"index": 0, "delta": {"content": "word " * 800}}], "service_tier": "priority"}

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        writer.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await writer.drain()
        writer.close()

    async with saying(cut) as url:
        spent = []
        for factor in (1.0, 2.0):
            async with running(priced(f"{url}/v1", {"priority": factor}, cap=None)) as lab:
                outcome = await lab.dispatcher.send(chat(stream=True, max_tokens=1))
                with pytest.raises(StreamInterrupted):
                    await outcome.read()
                (pool,) = lab.budget.snapshot()
                spent.append(pool["spent"]["usd"])
        assert spent[0] > 2.0, "about a thousand tokens were seen"
        assert spent[1] == pytest.approx(2 * spent[0])


@pytest.mark.parametrize("tier", ["priority", "fast", "scale"])
@pytest.mark.parametrize("by", ["settings", "call"])
async def test_a_tier_that_may_cost_more_has_no_price_without_a_factor(tier: str, by: str):
    asked = {"interactive": tier} if by == "settings" else {}
    own = {"service_tier": tier} if by == "call" else {}
    name = "scale" if tier == "scale" else "priority"
    async with ScriptedProvider(default=served()) as provider:
        async with running(priced(provider.base_url, {"flex": 0.5}, **asked)) as lab:
            with pytest.raises(
                PriceUnknown, match=rf"tiers = {{ {name} = FACTOR }} to its \[\[providers.one.prices"
            ):
                await send(lab, max_tokens=100, **own)
            assert not provider.log
        async with running(priced(provider.base_url, cap=None, **asked)) as lab:
            assert await send(lab, max_tokens=100, **own) == 200


async def test_a_tier_at_a_server_that_has_none_is_no_matter_of_price():
    async with ScriptedProvider(default=served("priority")) as provider:
        settings = priced(provider.base_url)
        settings["providers"]["one"]["kind"] = "vllm"
        async with running(settings) as lab:
            assert await send(lab, max_tokens=100, service_tier="priority") == 200
            assert dollars(lab) == [(0.3, 0.3)]


async def test_a_dearer_tier_that_nobody_asked_for_is_told_once(caplog: pytest.LogCaptureFixture):
    async with ScriptedProvider(default=served("priority")) as provider:
        with caplog.at_level(logging.WARNING, "orchestra.dispatch"):
            async with running(priced(provider.base_url)) as lab:
                for _ in range(2):
                    await send(lab, max_tokens=100)
                assert dollars(lab) == [(0.3, 0.3)] * 2
        (record,) = caplog.records
        assert "add tiers = { priority = FACTOR }" in record.getMessage()


async def test_what_leaves_its_tier_is_set_aside_at_the_whole_price():
    script = [NO_ROOM["openai"]]
    async with (
        ScriptedProvider(script, default=served("default")) as provider,
        running(priced(provider.base_url, {"flex": 0.5}, interactive="flex")) as lab,
    ):
        assert await send(lab, max_tokens=100) == 200
        aside = [event.estimated_usd for event in lab.events if event.kind == "admitted"]
        assert aside == [pytest.approx(0.15), pytest.approx(0.3)]
        assert dollars(lab) == [(0.3, 0.3)]


PRICE = PriceConfig(input=1.0, output=2.0, tiers={"flex": 0.5, "priority": 0.0})


@pytest.mark.parametrize(
    ("tier", "known"), [(None, 4.0), ("auto", 4.0), ("flex", 2.0), ("fast", 0.0), ("scale", None), ("new", None)]
)
def test_what_a_tier_costs(tier: str | None, known: float | None):
    usage = Usage(2_000_000, 1_000_000)
    assert tier_cost(PRICE, usage, tier) == known
    assert cost_at_least(PRICE, usage, tier) == (4.0 if known is None else known)


def test_a_call_leaves_its_tier_only_after_a_refusal():
    for traffic in TrafficClass:
        assert not leaves_tier(0, traffic, 1.0)
    assert [leaves_tier(1, BULK, left) for left in (None, LONGEST_FLEX, LONGEST_FLEX - 1)] == [False, False, True]
    assert leaves_tier(2, BULK, None)
    assert leaves_tier(1, INTERACTIVE, None)
