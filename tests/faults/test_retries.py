"""Retries that multiplied, came too soon, or never ended. Each test names where the fault was reported."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import httpx2
import openai
import pytest
from faults_lab import MESSAGES, answer, events, fronted, until
from holding_provider import HoldingProvider

from orchestra import ProviderError, StreamInterrupted, bulk, interactive
from orchestra.budget.admission import Admission
from orchestra.budget.ticket import Ticket
from orchestra.call import Charge
from orchestra.policies.retry import RetryPolicy
from orchestra.policies.traffic import TrafficClass
from orchestra.testing import Reply, ScriptedProvider


def refused(headers: dict[str, str] | None = None) -> Reply:
    return Reply.error(429, "rate_limit_exceeded", kind="requests", headers=headers)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("options", [{}, {"max_retries": 5}])
@pytest.mark.parametrize("fault", [refused(), Reply.error(500), Reply.error(503), Reply(drop=True)])
async def test_tries_are_not_multiplied_by_the_layers(fault: Reply, options: dict[str, Any], stream: bool):
    """HKUDS/nanobot#2760, mpfaffenberger/code_puppy PR 317: retries times retries make 45 requests of three."""
    async with ScriptedProvider(default=fault) as provider, fronted(provider, sdk=options) as front:
        with pytest.raises(openai.APIError):
            await front.ask(stream=stream)
        assert len(provider.log) == 3


async def test_no_layer_comes_back_before_the_server_said():
    """earendil-works/pi#9595: the server says 30 s, and an outer layer tries again after two."""
    hint = {"retry-after": "0.12"}
    async with (
        ScriptedProvider([refused(hint)] * 3) as provider,
        fronted(provider, sdk={"max_retries": 5}) as front,
    ):
        with pytest.raises(openai.RateLimitError):
            await front.ask()
        await front.ask()  # somebody else's call is no way around it either
        assert len(provider.log) == 4
        gaps = [later.at - sooner.at for sooner, later in itertools.pairwise(provider.log)]
        assert all(gap >= 0.12 for gap in gaps)


async def test_the_demanded_wait_reaches_the_application():
    """tinyhumansai/openhuman#6504: the transport drops the header, so that no policy above ever sees it."""
    told = {"retry-after": "77", "x-ratelimit-reset-tokens": "6m0s", "x-request-id": "req-1"}
    async with ScriptedProvider(default=refused(told)) as provider, fronted(provider) as front:
        with interactive(timeout=60), pytest.raises(openai.RateLimitError) as caught:
            await front.ask()
        assert told.items() <= dict(caught.value.response.headers).items()
        assert caught.value.code == "rate_limit_exceeded"
    async with ScriptedProvider(default=refused(told)) as provider, fronted(provider) as front:
        with interactive(timeout=60), pytest.raises(ProviderError) as ours:
            await front.orc.chat("fast", MESSAGES)
        assert (ours.value.status, ours.value.retry_after) == (429, 77)
    other = Reply.anthropic_error(429, "rate_limit_error", headers={"retry-after": "77"})
    async with ScriptedProvider(default=other) as provider, fronted(provider) as front:
        async with front.orc.http_client() as client:
            body = {"model": "c", "messages": MESSAGES}
            with interactive(timeout=60):
                response = await client.post(f"{provider.origin}/v1/messages", json=body)
        assert (response.status_code, response.headers["retry-after"]) == (429, "77")
        assert response.json()["error"]["type"] == "rate_limit_error"


async def test_of_several_limits_the_one_that_is_spent_tells_the_wait():
    """anthropics/anthropic-sdk-typescript#357: no Retry-After, but the spent limit says when it is back."""
    told = {
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "150ms",
        "x-ratelimit-remaining-tokens": "9000",
        "x-ratelimit-reset-tokens": "40s",
    }
    async with ScriptedProvider([refused(told)]) as provider, fronted(provider) as front:
        await front.ask()
        first, second = provider.log
        assert 0.15 <= second.at - first.at < 30


async def test_a_spent_account_is_asked_once_and_people_are_told_at_once():
    """langchain-ai/langchainjs#1929: insufficient_quota is tried again for minutes."""
    spent = Reply.error(429, "insufficient_quota", kind="insufficient_quota")
    async with (
        ScriptedProvider([spent]) as provider,
        fronted(provider, sdk={"max_retries": 5}) as front,
    ):
        with pytest.raises(openai.RateLimitError) as caught:
            await front.ask()
        assert caught.value.code == "insufficient_quota"
        with bulk():
            waiting = asyncio.create_task(front.ask())
        async with asyncio.timeout(20):  # a pause is a minute
            with pytest.raises(openai.APIStatusError, match=r"insufficient_quota|paused"):
                await front.ask()
        assert front.pool()["paused"]["reason"] == "429 insufficient_quota"
        assert not waiting.done()
        assert len(provider.log) == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert front.waiting() == 0


async def test_those_who_are_refused_together_come_back_apart():
    """matt-house-e/accrue#44: backoff in near lockstep makes a herd."""
    window = 0.6
    script = [refused() for _ in range(30)]
    async with (
        HoldingProvider(script) as provider,
        fronted(provider, retry=RetryPolicy(base=window, cap=window), max_concurrency=30) as front,
    ):
        together = provider.hold(30)
        calls = asyncio.gather(*(front.ask() for _ in range(30)))
        await until(lambda: provider.in_flight == 30)
        together.set()
        await calls
        again = [hit.at for hit in provider.log[30:]]
        assert len(again) == 30
        assert max(again) - min(again) >= window / 2


def test_hints_delay_calls_and_not_the_controller():
    """UKGovernmentBEIS/inspect_ai PR 5138: hints stretch the controller's own cooldown, and the limit freezes."""
    admission, now = Admission(careful=True), 0.0
    rates = []
    for _ in range(12):
        ticket = Ticket(Charge(), TrafficClass.BULK)
        admission.enqueue(ticket, now)
        while not admission.decide(now).granted:
            now = max(now + 0.01, admission.paused_until)
        other = Ticket(Charge(), TrafficClass.BULK)
        admission.enqueue(other, now)
        while not admission.decide(now).granted:
            now += 0.01
        admission.answered(other, [], now, ok=True)
        admission.end(other, Charge(), now)
        admission.end(ticket, Charge(), now)
        admission.throttled(ticket, [], 10.0, now)
        assert admission.paused_until == now + 10.0
        rates.append(admission.learning.send_rate.rate)
    assert all(later < sooner for sooner, later in itertools.pairwise(rates)), "every episode cuts"
    assert rates[-1] < rates[0] / 8


TOOL = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "run", "arguments": ""}}


async def test_a_tool_call_is_never_put_together_of_two_tries():
    """endolith/open-interpreter#291: a retried stream merges into a valid, different command.

    HKUDS/nanobot#4038, aden-hive/hive#5923, NuGuardAI/nuguard#455: the text of a retried stream comes twice.
    """
    broken = events(
        {"role": "assistant", "tool_calls": [TOOL]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"cmd": "rm '}}]},
        done=False,
    )
    whole = events(
        {"role": "assistant", "tool_calls": [TOOL]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"cmd": "ls"}'}}]},
    )
    async with (
        ScriptedProvider([broken, whole]) as provider,
        fronted(provider, sdk={"max_retries": 5}) as front,
    ):
        pieces = []
        with pytest.raises(openai.APIConnectionError):  # noqa: PT012
            async for chunk in await front.ask(stream=True):
                pieces += [call.function.arguments for call in chunk.choices[0].delta.tool_calls or []]
        assert "".join(pieces) == '{"cmd": "rm '
        assert len(provider.log) == 1
        provider.script.appendleft(broken)
        with pytest.raises(StreamInterrupted):
            async with front.orc.stream("fast", MESSAGES) as deltas:
                assert len([chunk async for chunk in deltas.chunks]) == 2
        assert len(provider.log) == 2
        assert front.in_flight() == 0


async def test_before_its_first_content_a_stream_is_tried_again_unseen():
    """HKUDS/nanobot#4038, the other half: nothing was shown, so nothing can come twice."""
    opening = events({"role": "assistant", "content": ""}, done=False)
    async with (
        ScriptedProvider([opening, events({"role": "assistant", "content": "once"})]) as provider,
        fronted(provider) as front,
    ):
        seen = [chunk async for chunk in await front.ask(stream=True)]
        assert [chunk.choices[0].delta.content for chunk in seen] == ["once"]
        assert [chunk.choices[0].delta.role for chunk in seen] == ["assistant"]
        assert len(provider.log) == 2


async def test_an_error_of_the_request_is_not_tried_again_under_any_sdk():
    """matt-house-e/accrue#44: 400, 401 and 404 are tried again."""
    for status in (400, 401, 403, 404, 413, 422):
        async with (
            ScriptedProvider(default=Reply.error(status)) as provider,
            fronted(provider, sdk={"max_retries": 5}) as front,
        ):
            for traffic in (interactive, bulk):
                with traffic(), pytest.raises(openai.APIStatusError):
                    await front.ask()
            assert len(provider.log) == 2


async def test_a_retry_uses_none_of_what_the_first_try_holds():
    """Kin of BerriAI/litellm#27955: a refused call that waits for its retry must hold no slot."""
    async with (
        ScriptedProvider([refused({"retry-after-ms": "50"})], default=answer()) as provider,
        fronted(provider, max_concurrency=1) as front,
    ):
        held = []

        async def sleep(seconds: float) -> None:
            held.append(front.in_flight())
            await asyncio.sleep(seconds)

        front.orc._dispatcher._sleep = sleep
        with bulk():
            await front.ask()
        assert len(provider.log) == 2
        assert held
        assert set(held) == {0}, "while it waits for its retry it holds nothing"
        assert front.in_flight() == 0


async def test_what_the_sdk_is_handed_says_that_it_was_tried_enough():
    """mpfaffenberger/code_puppy PR 317: the transport has to tell the SDK to stop."""
    async with (
        ScriptedProvider(default=Reply.error(500, headers={"x-should-retry": "true"})) as provider,
        fronted(provider) as front,
        front.orc.http_client() as client,
    ):
        response: httpx2.Response = await client.post(
            "http://nobody.invalid/v1/chat/completions",
            content=json.dumps({"model": "fast", "messages": MESSAGES}),
        )
        assert response.status_code == 500
        assert response.headers.get_list("x-should-retry") == ["false"]
