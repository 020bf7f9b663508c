"""Where a call goes, with whose key, and where it goes next."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import openai
import pytest
from dispatch_lab import NOBODY, REFUSED, chat, config_for, eventually, pointed, running, text_of
from hand_clock import HandClock, LeapingClock

from orchestra.call import Call, Outcome
from orchestra.dispatch import health
from orchestra.errors import (
    AllRoutesFailed,
    ConfigError,
    ConnectionFailed,
    InputError,
    LocalEngineError,
    UnknownModelError,
)
from orchestra.policies.breaker import CircuitBreaker
from orchestra.policies.traffic import TrafficClass
from orchestra.testing import Reply, ScriptedProvider
from orchestra.transports import make_client


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_connection_takes_the_next_route(stream: bool):
    async with ScriptedProvider() as provider, running(config_for({"dead": NOBODY, "two": provider})) as lab:
        outcome = await lab.dispatcher.send(chat(stream=stream))
        assert (await text_of(outcome), outcome.route) == ("Hello, world.", "two/two-model")
        assert "fell_back" in lab.kinds()
        assert lab.in_flight() == 0


@pytest.mark.parametrize(
    "fault", [Reply.error(503, "server_is_overloaded"), Reply.error(429, "insufficient_quota"), Reply(drop=True)]
)
async def test_an_overloaded_or_spent_or_broken_provider_gives_way(fault: Reply):
    async with (
        ScriptedProvider(default=fault) as first,
        ScriptedProvider() as second,
        running(config_for({"one": first, "two": second})) as lab,
    ):
        assert (await lab.dispatcher.send(chat())).route == "two/two-model"
        assert (len(first.log), len(second.log)) == (1, 1)


async def test_a_short_refusal_stays_and_a_long_one_sends_interactive_on():
    short = Reply.error(429, "rate_limit_exceeded", headers={"retry-after": "0.02"})
    long = Reply.error(429, "rate_limit_exceeded", headers={"retry-after": "20"})
    async with (
        ScriptedProvider([short]) as first,
        ScriptedProvider() as second,
        running(config_for({"one": first, "two": second})) as lab,
    ):
        assert (await lab.dispatcher.send(chat())).route == "one/one-model"
        first.script.append(long)
        assert (await lab.dispatcher.send(chat())).route == "two/two-model"


async def test_all_failed_returns_the_last_answer_or_tells_each_ones_end():
    busy = Reply.error(503, "server_is_overloaded")
    async with (
        ScriptedProvider(default=busy) as provider,
        running(config_for({"one": provider, "dead": NOBODY})) as lab,
    ):
        outcome = await lab.dispatcher.send(chat())
        assert (outcome.status, outcome.route) == (503, "one/one-model")
    async with running(config_for({"dead": NOBODY, "gone": NOBODY})) as lab:
        with pytest.raises(AllRoutesFailed, match="no route answered") as caught:
            await lab.dispatcher.send(chat())
        assert {route for route, _ in caught.value.attempts} == {"dead/dead-model", "gone/gone-model"}
        assert all(isinstance(error, ConnectionFailed) and not error.sent for _, error in caught.value.attempts)


async def test_a_route_that_keeps_failing_is_skipped_until_a_probe_finds_it_back():
    clock = HandClock()
    async with (
        ScriptedProvider() as first,
        ScriptedProvider() as second,
        running(config_for({"one": first, "two": second}), clock=clock) as lab,
    ):
        await first.kill()
        for _ in range(6):
            assert (await lab.dispatcher.send(chat())).route == "two/two-model"
        assert lab.dispatcher.snapshot()["one/one-model"]["state"] == "open"
        await first.start()
        assert (await lab.dispatcher.send(chat())).route == "two/two-model"
        clock.advance(1.05)
        assert (await lab.dispatcher.send(chat())).route == "one/one-model"
        assert lab.dispatcher.snapshot()["one/one-model"]["state"] == "closed"


async def test_when_all_cool_a_call_waits_for_the_first_to_return_if_it_may():
    clock = LeapingClock()
    async with ScriptedProvider() as provider, running(config_for({"one": provider}), clock=clock) as lab:
        breaker = lab.dispatcher._health._breakers.setdefault("one/one-model", CircuitBreaker(cooldown=20.0))
        for _ in range(5):
            breaker.failed(clock())
        with pytest.raises(AllRoutesFailed, match="cooling down"):
            await lab.dispatcher.send(chat(expires_at=clock() + 5.0))
        assert (await lab.dispatcher.send(chat(expires_at=clock() + 200.0))).status == 200


async def test_a_key_goes_only_to_its_own_host():
    async with ScriptedProvider() as first, ScriptedProvider() as second:
        config = config_for({"one": first, "two": second})
        del config["providers"]["two"]["api_key"]
        async with running(config) as lab:
            first.script.append(Reply.error(503))
            secrets = {
                "authorization": "Bearer callers-own",
                "cookie": "session=secret",
                "x-company-token": "secret",
                "openai-organization": "org-secret",
            }
            outcome = await lab.dispatcher.send(
                pointed(f"{first.base_url}/chat/completions?key=secret", "fast", headers=secrets)
            )
            assert outcome.route == "two/two-model"
            assert first.log[0].headers["authorization"] == "Bearer key-of-one"
            told = json.dumps([second.log[0].headers, second.log[0].path])
            assert "secret" not in told
            assert "callers-own" not in told
            assert "key-of-one" not in told
            assert "authorization" not in second.log[0].headers


async def test_without_a_configured_key_the_callers_goes_to_the_host_it_named():
    async with ScriptedProvider() as provider:
        config = config_for({"one": provider})
        del config["providers"]["one"]["api_key"]
        async with running(config) as lab:
            await lab.dispatcher.send(pointed(f"{provider.base_url}/chat/completions"))
            assert provider.log[0].headers["authorization"] == "Bearer callers-own"
            assert "settled" in lab.kinds()


async def test_a_call_to_a_configured_host_is_metered_there_and_its_model_kept():
    async with ScriptedProvider() as provider, running(config_for({"one": provider})) as lab:
        outcome = await lab.dispatcher.send(pointed(f"{provider.base_url}/chat/completions", "any/thing"))
        assert outcome.route == "one/any/thing"
        assert provider.log[0].json["model"] == "any/thing"
        assert provider.log[0].headers["authorization"] == "Bearer key-of-one"


async def test_a_route_may_be_written_out():
    async with ScriptedProvider() as provider, running(config_for({"one": provider})) as lab:
        assert (await lab.dispatcher.send(chat("one/special/model"))).route == "one/special/model"
        assert provider.log[0].json["model"] == "special/model"


async def test_what_names_no_model_is_forwarded_with_the_accounts_key_and_not_metered():
    async with ScriptedProvider() as provider, running(config_for({"one": provider})) as lab:
        outcome = await lab.dispatcher.send(pointed(f"{provider.base_url}/models", method="GET"))
        assert json.loads(await outcome.read())["data"][0]["id"] == "scripted"
        assert provider.log[0].headers["authorization"] == "Bearer key-of-one"
        assert lab.kinds() == []
        provider.script.append(Reply.error(500))
        outcome = await lab.dispatcher.send(pointed(f"{provider.base_url}/models", method="GET"))
        assert (outcome.status, outcome.header("x-should-retry")) == (500, None)


async def test_a_host_that_nobody_serves_is_passed_through_untouched():
    async with ScriptedProvider() as provider, running({}) as lab:
        call = pointed(f"{provider.base_url}/chat/completions")
        assert (await lab.dispatcher.send(call)).status == 200
        assert provider.log[0].headers["authorization"] == "Bearer callers-own"
        assert provider.log[0].body == call.body
        assert lab.kinds() == ["passed_through"]
        with pytest.raises(ConnectionFailed):
            await lab.dispatcher.send(pointed(f"{NOBODY}/v1/chat/completions"))


async def test_a_redirect_carries_no_key_elsewhere():
    async with ScriptedProvider() as trap:
        moved = Reply(307, {"location": f"{trap.base_url}/chat/completions"}, {})
        async with ScriptedProvider(default=moved) as provider, running(config_for({"one": provider})) as lab:
            with pytest.raises(Exception, match="redirect"):
                await lab.dispatcher.send(chat())
            assert trap.log == []


async def test_an_unknown_model_of_our_own_call_is_told_with_the_nearest():
    async with running(config_for({"one": NOBODY})) as lab:
        with pytest.raises(UnknownModelError, match="did you mean 'fast'"):
            await lab.dispatcher.send(chat("fasst"))
        with pytest.raises(InputError, match="names no model"):
            await lab.dispatcher.send(Call.originate("/v1/chat/completions", {"messages": []}))
        lab.dispatcher.check("fast")
        lab.dispatcher.check("one/any")
        for wrong in ("fasst", "two/any", "one/", "local/x"):
            with pytest.raises(UnknownModelError):
                lab.dispatcher.check(wrong)


async def test_a_key_that_cannot_be_had_is_told_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    async with ScriptedProvider() as provider:
        config = config_for({"one": provider})
        config["providers"]["one"]["api_key"] = "env:NO_SUCH_KEY"
        async with running(config) as lab:
            with pytest.raises(ConfigError, match=r"providers\.one.*NO_SUCH_KEY"):
                lab.dispatcher.check("fast")
            with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
                await lab.dispatcher.send(chat())
            assert provider.log == []
            assert lab.in_flight() == 0


async def test_events_hold_no_secret_and_no_text():
    async with ScriptedProvider([REFUSED]) as provider, running(config_for({"one": provider})) as lab:
        await (await lab.dispatcher.send(chat(content="my-secret-prompt"))).read()
        attempt = ["queued", "admitted", "sent"]
        assert lab.kinds() == [*attempt, "retried", *attempt, "settled"]
        told = repr(lab.events)
        assert "my-secret-prompt" not in told
        assert "key-of-one" not in told


class FakeLocal:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.calls: list[Call] = []

    async def send(self, call: Call, tell: Any = None) -> Outcome:
        self.calls.append(call)
        if self.error is not None:
            raise self.error

        async def body() -> Any:
            yield b'{"choices": [{"message": {"content": "local"}}]}'

        return Outcome(200, (("content-type", "application/json"),), body(), "local/small")

    async def aclose(self) -> None:
        pass

    def snapshot(self) -> dict[str, Any]:
        return {}


def with_local(config: dict[str, Any]) -> dict[str, Any]:
    config["local"] = {"small": {"weights": "w"}}
    config["models"]["fast"]["routes"].append("local/small")
    return config


async def test_the_local_route_catches_what_no_provider_answers():
    async with running(with_local(config_for({"dead": NOBODY})), local={"small": FakeLocal()}) as lab:
        outcome = await lab.dispatcher.send(chat())
        assert (outcome.route, await text_of(outcome)) == ("local/small", "local")


async def test_a_provider_killed_under_load_hands_its_calls_to_the_local_route():
    provider = ScriptedProvider(service_time=60)
    await provider.start()
    async with running(with_local(config_for({"one": provider})), local={"small": FakeLocal()}) as lab:
        calls = [asyncio.create_task(lab.dispatcher.send(chat())) for _ in range(20)]
        await eventually(lambda: provider.in_flight == 20)
        await provider.kill()
        outcomes = await asyncio.gather(*calls)
        assert {outcome.route for outcome in outcomes} == {"local/small"}
        assert lab.in_flight() == 0


async def test_a_failing_engine_falls_back_to_a_provider():
    async with ScriptedProvider() as provider:
        config = with_local(config_for({"one": provider}))
        config["models"]["fast"]["routes"].reverse()
        async with running(config, local={"small": FakeLocal(LocalEngineError("no memory"))}) as lab:
            assert (await lab.dispatcher.send(chat())).route == "one/one-model"
            with pytest.raises(LocalEngineError, match="no memory"):
                await lab.dispatcher.send(chat("local/small"))


async def test_what_the_engine_cannot_serve_another_route_may():
    small = {"small": FakeLocal(InputError("the local engine cannot do 'tools'", param="tools"))}
    async with ScriptedProvider() as provider:
        config = with_local(config_for({"one": provider}))
        config["models"]["fast"]["routes"].reverse()
        async with running(config, local=small) as lab:
            assert (await lab.dispatcher.send(chat())).route == "one/one-model"
            with pytest.raises(InputError, match="tools"):
                await lab.dispatcher.send(chat("local/small"))


async def test_an_outage_is_not_told_as_the_callers_fault():
    small = {"small": FakeLocal(InputError("the local engine cannot do 'tools'", param="tools"))}
    busy = Reply.error(503, "server_is_overloaded")
    async with ScriptedProvider(default=busy) as provider:
        async with running(with_local(config_for({"one": provider})), local=small) as lab:
            assert (await lab.dispatcher.send(chat())).status == 503
        async with running(with_local(config_for({"dead": NOBODY})), local=small) as lab:
            with pytest.raises(AllRoutesFailed, match="tools"):
                await lab.dispatcher.send(chat())


async def test_a_header_that_cannot_be_sent_harms_nobody_else():
    """A provider is not ill because one caller's request can be written to no wire."""
    async with ScriptedProvider() as provider, running(config_for({"one": provider})) as lab:
        for _ in range(10):
            call = replace(pointed(provider.base_url + "/chat/completions"), headers=(("x-title", "a\nb"),))
            with pytest.raises(InputError, match="headers"):
                await lab.dispatcher.send(call)
        assert {one["state"] for one in lab.dispatcher.snapshot().values()} == {"closed"}
        assert provider.log == []
        (pool,) = [pool for pool in lab.budget.snapshot() if pool["granted"]["interactive"]]
        assert (pool["spent"]["requests"], lab.in_flight()) == (0, 0)


async def test_models_by_the_thousand_leave_no_breakers_behind(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(health, "_MANY", 8)
    async with ScriptedProvider() as provider, running(config_for({"one": provider})) as lab:
        provider.script.append(Reply.error(500))
        await lab.dispatcher.send(chat("one/ill", traffic=TrafficClass.BULK))
        for number in range(30):
            await lab.dispatcher.send(chat(f"one/{number}"))
        assert len(lab.dispatcher.snapshot()) <= 9


@pytest.mark.parametrize("depth", [300, 600, 900])
async def test_a_deeply_nested_request_is_sent_or_refused(depth: int):
    tools: Any = []
    for _ in range(depth):
        tools = [tools]
    async with ScriptedProvider() as provider, running(config_for({"one": provider})) as lab:
        body = json.dumps({"model": "fast", "messages": [], "tools": tools}).encode()
        url = "http://x.invalid/v1/chat/completions"
        outcome = await lab.core.handle("POST", url, (), body, {"connect": 1, "read": 1})
        assert outcome.status in (200, 400)
        assert (len(provider.log), lab.in_flight()) == (outcome.status == 200, 0)


async def test_a_local_model_that_is_not_here_goes_to_no_host():
    async with ScriptedProvider() as provider:
        config = with_local(config_for({"one": provider}))
        async with ScriptedProvider() as other, running(config, local={"small": FakeLocal()}) as lab:
            for host in (provider, other):
                call = pointed(f"{host.base_url}/chat/completions", "local/smal")
                with pytest.raises(UnknownModelError, match="did you mean 'local/small'"):
                    await lab.dispatcher.send(call)
                body = json.dumps(call.payload).encode()
                refused = await lab.core.handle("POST", call.url, (), body, {})
                assert refused.status == 404
            assert (provider.log, other.log) == ([], [])


async def test_a_slip_in_a_models_name_may_pass_with_a_warning(caplog: pytest.LogCaptureFixture):
    config = config_for({"one": NOBODY}, traffic={"unknown_models": "pass"})
    async with ScriptedProvider() as provider, running(config) as lab:
        url = f"{provider.base_url}/chat/completions"
        assert (await lab.dispatcher.send(pointed(url, "gpt-nano"))).status == 200
        assert caplog.messages == []
        assert (await lab.dispatcher.send(pointed(url, "fsat"))).status == 200
        told = "model 'fsat' is not one of [models] (did you mean 'fast'?); passed through to 127.0.0.1 unmetered"
        assert [(one.levelname, one.message) for one in caplog.records] == [("WARNING", told)]
        assert [event.reason for event in lab.events] == [None, told]


@pytest.mark.parametrize(
    ("unknown_models", "only_local", "model", "passes"),
    [
        ("auto", False, "gpt-nano", True),
        ("auto", False, "fsat", False),
        ("auto", True, "gpt-nano", False),
        ("refuse", False, "gpt-nano", False),
        ("pass", True, "fsat", True),
    ],
)
async def test_a_prompt_goes_to_no_strange_host_unless_it_may(
    unknown_models: str, only_local: bool, model: str, passes: bool
):
    config = with_local(config_for({"one": NOBODY}, traffic={"unknown_models": unknown_models}))
    if only_local:
        del config["providers"]
        config["models"] = {"fast": {"routes": ["local/small"]}}
    async with ScriptedProvider() as provider, running(config, local={"small": FakeLocal()}) as lab:
        options: Any = {"http_client": make_client("httpx2", lab.core), "base_url": provider.base_url}
        async with openai.AsyncOpenAI(api_key="callers-own", **options) as client:
            asking = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}])
            if passes:
                assert (await asking).choices[0].message.content == "Hello, world."
            else:
                hint = "did you mean 'fast'" if model == "fsat" else "nothing was sent"
                with pytest.raises(openai.NotFoundError, match=hint) as caught:
                    await asking
                assert caught.value.code == "model_not_found"
        assert len(provider.log) == passes
