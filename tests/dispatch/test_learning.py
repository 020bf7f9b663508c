"""What the dispatch hands on of what answers say about limits."""

from __future__ import annotations

import asyncio
import time

import pytest
from dispatch_lab import chat, config_for, eventually, running
from hand_clock import HandClock

from orchestra.policies.traffic import TrafficClass
from orchestra.testing import Limits, Reply, ScriptedProvider

BULK = TrafficClass.BULK


def dimensions(lab):
    return lab.budget.snapshot()[0]["dimensions"]


async def test_limits_are_learned_from_the_headers_of_any_answer():
    limits = Limits(requests_per_minute=600, tokens_per_minute=90_000, burst_seconds=10)
    async with (
        ScriptedProvider(limits=limits) as provider,
        running(config_for({"one": provider}), clock=HandClock()) as lab,
    ):
        await lab.dispatcher.send(chat())
        learned = dimensions(lab)
        assert learned["requests (learned)"]["source"] == "learned"
        assert learned["requests (learned)"]["limit"] == pytest.approx(600)
        assert learned["requests (learned)"]["capacity"] == pytest.approx(100, abs=1)
        assert learned["requests (learned)"]["available"] == pytest.approx(99, abs=1.5)
        assert learned["tokens (learned)"]["limit"] == pytest.approx(90_000)


async def test_limits_are_learned_from_streams_and_errors_too():
    headers = {"x-ratelimit-limit-requests": "600", "x-ratelimit-remaining-requests": "7"}
    for reply, fields in ((Reply(headers=headers), {"stream": True}), (Reply(400, headers), {})):
        async with (
            ScriptedProvider(default=reply) as provider,
            running(config_for({"one": provider}), clock=HandClock()) as lab,
        ):
            outcome = await lab.dispatcher.send(chat(**fields))
            await outcome.read()
            assert dimensions(lab)["requests (learned)"]["available"] == pytest.approx(7, abs=1.5)


async def test_retry_after_holds_back_all_calls_of_the_account():
    refused = Reply.error(429, "rate_limit_exceeded", headers={"retry-after": "20"})
    clock = HandClock()
    async with (
        ScriptedProvider([refused]) as provider,
        running(config_for({"one": provider}), clock=clock) as lab,
    ):
        calls = [asyncio.create_task(lab.dispatcher.send(chat(traffic=BULK)))]
        await eventually(lambda: any(pool["paused"] for pool in lab.budget.snapshot()))
        assert lab.budget.snapshot()[0]["paused"]["reason"] == "Retry-After"
        calls += [asyncio.create_task(lab.dispatcher.send(chat(traffic=traffic))) for traffic in TrafficClass]
        await eventually(lambda: sum(lab.budget.snapshot()[0]["waiting"].values()) == 2)
        clock.advance(19.9)
        await asyncio.sleep(0.05)
        assert lab.kinds().count("sent") == 1
        await eventually(lambda: clock.advance(0.1) or all(call.done() for call in calls))
        assert [(await call).status for call in calls] == [200] * 3
        assert [hit.status for hit in provider.log] == [429, 200, 200, 200]


async def test_a_reset_alone_pauses_nobody():
    headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "60s"}
    refused = Reply.error(429, "rate_limit_exceeded", headers=headers)
    async with ScriptedProvider([refused]) as provider, running(config_for({"one": provider})) as lab:
        await lab.dispatcher.send(chat(expires_at=time.monotonic() + 30))
        assert lab.budget.snapshot()[0]["paused"] is None
        assert (await lab.dispatcher.send(chat())).status == 200


async def test_an_error_of_the_server_does_not_slow_us_down():
    broken = [Reply.error(500)] * 3
    async with ScriptedProvider(broken) as provider, running(config_for({"one": provider})) as lab:
        await lab.dispatcher.send(chat(traffic=BULK))
        assert dimensions(lab)["concurrency (learned)"]["limit"] >= 8
        assert "send rate (learned)" not in dimensions(lab)
