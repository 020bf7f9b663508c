"""Which attempts follow on a fault, and when."""

from __future__ import annotations

import asyncio
import json
import time
from email.utils import formatdate
from typing import Any

import pytest
from dispatch_lab import NOBODY, REFUSED, chat, config_for, running, text_of
from hand_clock import HandClock, LeapingClock

from orchestra.dispatch.bounds import Bounds
from orchestra.errors import (
    AdmissionTimeout,
    AllRoutesFailed,
    DeadlineExceeded,
    StreamInterrupted,
)
from orchestra.policies.breaker import CircuitBreaker
from orchestra.policies.retry import RetryPolicy
from orchestra.policies.retry_budget import RetryBudget
from orchestra.policies.traffic import TrafficClass
from orchestra.testing import Reply, ScriptedProvider, StreamScript

BULK = TrafficClass.BULK


@pytest.mark.parametrize(("traffic", "count"), [(TrafficClass.INTERACTIVE, 3), (BULK, 8)])
async def test_a_refusal_without_end_is_tried_as_often_as_the_class_allows(traffic: TrafficClass, count: int):
    clock = LeapingClock()
    async with (
        ScriptedProvider(default=REFUSED) as provider,
        running(config_for({"one": provider}), clock=clock) as lab,
    ):
        outcome = await lab.dispatcher.send(chat(traffic=traffic))
        assert (outcome.status, outcome.header("x-should-retry")) == (429, "false")
        assert len(provider.log) == count
        assert lab.in_flight() == 0


async def test_bulk_with_a_deadline_tries_until_it():
    clock = LeapingClock()
    async with (
        ScriptedProvider(default=REFUSED, clock=clock) as provider,
        running(config_for({"one": provider}), clock=clock) as lab,
    ):
        started = clock()
        outcome = await lab.dispatcher.send(chat(traffic=BULK, expires_at=started + 2.0))
        assert outcome.status == 429
        # Ever more slowly, since an account that only refuses is asked for too much.
        assert len(provider.log) >= 4
        assert provider.log[-1].at - started > 0.8
        assert clock() - started < 2.001


@pytest.mark.parametrize(
    ("headers", "body", "floor"),
    [
        ({"retry-after": "0.06"}, {}, 0.06),
        ({"retry-after-ms": "60"}, {}, 0.06),
        ({"retry-after-ms": "60", "retry-after": "9"}, {}, 0.06),
        ({"retry-after": formatdate(time.time() - 5, usegmt=True)}, {}, 0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "60ms"}, {}, 0.06),
        ({}, {"retry_after": 0.06}, 0.06),
        ({}, {"message": "Please try again in 60ms."}, 0.06),
    ],
)
async def test_every_form_of_retry_after_is_a_floor(headers: dict[str, str], body: dict[str, Any], floor: float):
    refused = Reply(429, headers, {"error": {"message": "no", "type": "requests", **body}})
    clock = LeapingClock()
    async with (
        ScriptedProvider([refused], clock=clock) as provider,
        running(config_for({"one": provider}), clock=clock) as lab,
    ):
        assert (await lab.dispatcher.send(chat())).status == 200
        first, second = provider.log
        assert floor - 1e-6 <= second.at - first.at < floor + 0.5


async def test_a_demanded_wait_beyond_the_timeout_is_not_waited_for():
    refused = Reply.error(429, "rate_limit_exceeded", headers={"retry-after": "3000"})
    clock = LeapingClock()
    async with (
        ScriptedProvider(default=refused) as provider,
        running(config_for({"one": provider}), clock=clock) as lab,
    ):
        started = clock()
        outcome = await lab.dispatcher.send(chat(expires_at=started + 100))
        assert (outcome.status, len(provider.log)) == (429, 1)
        assert clock() == started


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_an_error_of_the_request_is_returned_as_it_is(status: int):
    wrong = Reply.error(status, "bad", kind="invalid_request_error", message="look here")
    async with (
        ScriptedProvider(default=wrong) as provider,
        ScriptedProvider() as other,
        running(config_for({"one": provider, "two": other})) as lab,
    ):
        outcome = await lab.dispatcher.send(chat())
        assert outcome.status == status
        assert json.loads(await outcome.read())["error"]["message"] == "look here"
        assert (len(provider.log), len(other.log)) == (1, 0)


async def test_a_success_in_another_format_is_retried():
    page = Reply(body="<html>please log in</html>")
    async with ScriptedProvider([page]) as provider, running(config_for({"one": provider})) as lab:
        assert await text_of(await lab.dispatcher.send(chat())) == "Hello, world."
        assert len(provider.log) == 2


async def test_a_stream_in_another_format_is_retried():
    page = Reply(body="<html>please log in</html>")
    async with ScriptedProvider([page]) as provider, running(config_for({"one": provider})) as lab:
        assert await text_of(await lab.dispatcher.send(chat(stream=True))) == "Hello, world."
        assert len(provider.log) == 2


async def test_an_empty_retry_budget_fails_interactive_at_once_and_makes_bulk_wait():
    clock = LeapingClock()
    async with (
        ScriptedProvider(default=REFUSED) as provider,
        running(config_for({"one": provider}), clock=clock) as lab,
    ):
        for traffic, per_second in ((TrafficClass.INTERACTIVE, 0.01), (BULK, 20)):
            empty = RetryBudget(ratio=0, per_second=per_second, capacity=1)
            assert empty.take(clock())
            lab.dispatcher._health._retries[traffic] = empty
        assert (await lab.dispatcher.send(chat())).status == 429
        assert len(provider.log) == 1
        started = clock()
        assert (await lab.dispatcher.send(chat(traffic=BULK))).status == 429
        assert len(provider.log) == 1 + 8
        assert clock() - started > 6 / 20


async def test_a_spent_account_is_paused_and_not_retried():
    spent = Reply.error(429, "insufficient_quota", kind="insufficient_quota")
    async with ScriptedProvider(default=spent) as provider, running(config_for({"one": provider})) as lab:
        assert (await lab.dispatcher.send(chat())).status == 429
        assert len(provider.log) == 1
        assert "paused" in lab.kinds()
        for traffic, bound in ((TrafficClass.INTERACTIVE, None), (BULK, time.monotonic() + 0.2)):
            with pytest.raises(AllRoutesFailed, match="paused"):
                await lab.dispatcher.send(chat(traffic=traffic, expires_at=bound))
        assert len(provider.log) == 1


async def test_while_an_account_is_spent_its_calls_take_the_next_route():
    spent = Reply.error(429, "insufficient_quota", kind="insufficient_quota")
    async with (
        ScriptedProvider(default=spent) as first,
        ScriptedProvider() as second,
        running(config_for({"one": first, "two": second})) as lab,
    ):
        for traffic in TrafficClass:
            assert (await lab.dispatcher.send(chat(traffic=traffic))).route == "two/two-model"
        assert (len(first.log), len(second.log)) == (1, 2)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_deadline_bounds_the_wait_for_an_answer(stream: bool):
    clock = HandClock()  # so that it is not over before the call is sent
    async with (
        ScriptedProvider(service_time=60) as provider,
        running(config_for({"one": provider}), clock=clock) as lab,
    ):
        with pytest.raises(DeadlineExceeded, match=r"no answer within the call's timeout of 100ms"):
            await lab.dispatcher.send(chat(stream=stream, expires_at=clock() + 0.1))
        assert lab.in_flight() == 0


async def test_the_deadline_bounds_a_stream_under_way():
    endless = Reply(stream=StreamScript(chunks=["x"] * 50, gap=60))
    clock = HandClock()
    async with (
        ScriptedProvider(default=endless) as provider,
        running(config_for({"one": provider}), clock=clock) as lab,
    ):
        outcome = await lab.dispatcher.send(chat(expires_at=clock() + 60.0, stream=True))
        clock.advance(59.9)
        with pytest.raises(StreamInterrupted, match="no more within the call's timeout of"):
            await outcome.read()
        assert lab.in_flight() == 0


async def test_a_full_budget_refuses_before_anything_is_sent():
    config = config_for({"one": "http://x"})
    async with ScriptedProvider() as provider:
        limits = {"requests_per_minute": 1.0, "burst_seconds": 60.0}
        config["providers"]["one"] |= {"base_url": provider.base_url, "limits": [limits]}
        config["traffic"] = {"interactive_reserve": 0.0}
        async with running(config) as lab:
            assert (await lab.dispatcher.send(chat())).status == 200
            with pytest.raises(AdmissionTimeout):
                await lab.dispatcher.send(chat(expires_at=time.monotonic() + 0.1))
            assert len(provider.log) == 1
            assert "refused" in lab.kinds()


async def test_bulk_without_a_deadline_gives_up_on_a_dead_provider_and_names_each_reason_once():
    retry = RetryPolicy(base=0.01, cap=0.02, bulk_attempts=4)
    clock = LeapingClock()
    async with running(config_for({"dead": NOBODY}), retry=retry, clock=clock) as lab:
        calls = (lab.dispatcher.send(chat(traffic=BULK)) for _ in range(10))
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(error) for error in errors} == {AllRoutesFailed}
        told = [str(error) for error in errors]
        assert all(one.count("dead/dead-model: ") == 1 for one in told)
        with pytest.raises(AllRoutesFailed, match=r"cooling down.*dead/dead-model in .*refused"):
            await lab.dispatcher.send(chat(traffic=BULK, expires_at=clock() + 0.1))


async def test_a_reason_that_recurs_is_told_once_with_its_count():
    async with running(config_for({"dead": NOBODY})) as lab:
        with pytest.raises(AllRoutesFailed, match=r"dead/dead-model: .*127\.0\.0\.1:9 .*\(3 times\)$") as caught:
            await lab.dispatcher.send(chat())
        assert str(caught.value).count("dead/dead-model") == 1
        assert len(caught.value.attempts) == 3


def test_the_bound_on_waiting_is_one_for_all_attempts_together():
    now = [5.0]
    bounds = Bounds(chat(queue_bound=10), started=5.0, clock=lambda: now[0])
    left = []
    for now[0] in (5.0, 9.0, 15.0, 16.0):
        left.append(bounds.queue_left())
    assert left == [10.0, 6.0, 0.0, 0.0]
    assert Bounds(chat(), started=5.0, clock=lambda: now[0]).queue_left() is None


def test_a_route_that_is_back_is_found_within_ten_seconds():
    breaker, now, waits = CircuitBreaker(), 0.0, []
    for _ in range(breaker.threshold):
        breaker.failed(now)
    for _ in range(12):
        waits.append(breaker.ready_at(now) - now)
        now = breaker.ready_at(now)
        assert breaker.try_pass(now)
        breaker.failed(now)
    assert max(waits) == 10
