"""The stream of events, and what the log says of it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from itertools import pairwise

import pytest
from dispatch_lab import NOBODY, REFUSED, chat, config_for, eventually, running, text_of
from hand_clock import HandClock

from orchestra.dispatch.exchange import QUOTA_PAUSE
from orchestra.errors import AdmissionTimeout, AllRoutesFailed
from orchestra.observe.events import Event, EventBus
from orchestra.policies.breaker import CircuitBreaker
from orchestra.policies.traffic import TrafficClass
from orchestra.testing import Reply, ScriptedProvider, StreamScript

EVENT = Event(
    kind="retried",
    call="call-1",
    traffic=TrafficClass.BULK,
    at=12.5,
    route="one/m",
    attempt=2,
    from_route="one/m",
    reason="429",
    status=429,
)
PRICES = [{"models": ["*"], "input": 1000.0, "output": 1000.0}]


def test_every_subscriber_sees_every_event_until_it_leaves():
    bus, first, second = EventBus(), [], []
    assert not bus.listening
    leave = bus.subscribe(first.append)
    bus.subscribe(second.append)
    assert bus.listening
    bus.emit(EVENT)
    leave()
    leave()
    bus.emit(EVENT)
    assert (len(first), len(second)) == (1, 2)


def test_a_subscriber_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture):
    bus, seen = EventBus(), []

    def broken(event: Event) -> None:
        raise RuntimeError("broken subscriber")

    bus.subscribe(broken)
    bus.subscribe(seen.append)
    bus.emit(EVENT)
    assert seen == [EVENT]
    assert "failed on retried" in caplog.text


def test_events_go_to_the_debug_log_with_their_fields(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.DEBUG, "orchestra.events"):
        assert EventBus().listening
        EventBus().emit(EVENT)
    told = "retried call=call-1 traffic=bulk route=one/m attempt=2 from_route=one/m reason=429 status=429"
    assert caplog.messages == [told]
    (record,) = caplog.records
    assert (record.event, record.status, record.traffic) == ("retried", 429, "bulk")
    assert not hasattr(record, "ttft")


def test_what_is_told_can_be_written_as_json():
    told = EVENT.told()
    assert json.loads(json.dumps(told)) == told
    assert told == {
        "kind": "retried",
        "call": "call-1",
        "traffic": "bulk",
        "at": 12.5,
        "route": "one/m",
        "attempt": 2,
        "from_route": "one/m",
        "reason": "429",
        "status": 429,
    }


async def test_a_plain_call_tells_its_waits_its_tokens_and_its_cost():
    async with ScriptedProvider() as provider:
        config = config_for({"one": provider})
        config["providers"]["one"]["prices"] = PRICES
        async with running(config) as lab:
            await text_of(await lab.dispatcher.send(chat(job="nightly", max_tokens=64)))
            queued, admitted, sent, settled = lab.events
    assert [one.kind for one in lab.events] == ["queued", "admitted", "sent", "settled"]
    assert {(one.route, one.model, one.job, one.attempt) for one in lab.events} == {
        ("one/one-model", "fast", "nightly", 1)
    }
    assert all(before.at <= after.at for before, after in pairwise(lab.events))
    assert queued.estimated_input_tokens is not None
    assert queued.estimated_input_tokens > 0
    assert admitted.estimated_usd is not None
    assert admitted.waited is not None
    assert 0 <= admitted.waited < 1
    assert sent.status is None
    assert (settled.status, settled.certainty, settled.ttft) == (200, "known", None)
    assert settled.estimated_usd == admitted.estimated_usd
    assert settled.input_tokens is not None
    assert settled.output_tokens is not None
    assert settled.usd == pytest.approx((settled.input_tokens + settled.output_tokens) / 1000)
    assert settled.duration is not None
    assert settled.duration > 0


async def test_a_stream_tells_the_time_to_its_first_content():
    slow = Reply(delay=0.05, stream=StreamScript(gap=0.02))
    async with ScriptedProvider(default=slow) as provider, running(config_for({"one": provider})) as lab:
        await text_of(await lab.dispatcher.send(chat(stream=True)))
        first, settled = lab.events[-2:]
    assert (first.kind, settled.kind) == ("first_byte", "settled")
    assert first.ttft == settled.ttft
    assert first.ttft is not None
    assert settled.duration is not None
    assert 0.05 <= first.ttft < settled.duration


async def test_retries_and_fallbacks_are_counted_with_what_they_followed():
    busy = Reply.error(503, "server_is_overloaded")
    async with (
        ScriptedProvider([REFUSED, busy]) as first,
        ScriptedProvider() as second,
        running(config_for({"one": first, "two": second})) as lab,
    ):
        await text_of(await lab.dispatcher.send(chat()))
    again = [one for one in lab.events if one.kind in ("retried", "fell_back")]
    assert [(one.kind, one.attempt, one.status, one.from_route, one.route) for one in again] == [
        ("retried", 2, 429, "one/one-model", "one/one-model"),
        ("fell_back", 3, 503, "one/one-model", "two/two-model"),
    ]
    assert all(one.reason for one in again)
    assert [one.attempt for one in lab.events if one.kind == "sent"] == [1, 2, 3]
    assert lab.events[-1].attempt == 3


async def test_a_call_without_an_answer_tells_how_often_it_was_tried():
    async with ScriptedProvider(default=REFUSED) as provider, running(config_for({"one": provider})) as lab:
        await lab.dispatcher.send(chat())
        failed = lab.events[-1]
    assert (failed.kind, failed.attempt, failed.status) == ("failed", 3, 429)
    assert lab.kinds().count("retried") == 2


async def test_a_refusal_tells_how_long_it_waited():
    async with ScriptedProvider() as provider:
        config = config_for({"one": provider}, traffic={"interactive_reserve": 0.0})
        config["providers"]["one"]["limits"] = [{"max_concurrency": 1}]
        async with running(config) as lab:
            provider.script.append(Reply(stream=StreamScript(gap=0.5)))
            held = await lab.dispatcher.send(chat(stream=True))
            with pytest.raises(AdmissionTimeout):
                await lab.dispatcher.send(chat(queue_bound=0.05))
            await held.aclose()
            refused = next(one for one in lab.events if one.kind == "refused")
    assert refused.reason == "AdmissionTimeout"
    assert refused.waited is not None
    assert refused.waited >= 0.04


async def test_a_call_that_is_given_up_in_the_queue_says_so():
    async with ScriptedProvider() as provider:
        config = config_for({"one": provider}, traffic={"interactive_reserve": 0.0})
        config["providers"]["one"]["limits"] = [{"max_concurrency": 1}]
        async with running(config) as lab:
            provider.script.append(Reply(stream=StreamScript(gap=0.5)))
            held = await lab.dispatcher.send(chat(stream=True))
            waiting = asyncio.create_task(lab.dispatcher.send(chat()))
            await eventually(lambda: lab.kinds()[-1] == "queued")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            given_up = lab.events[-1]
            await held.aclose()
    assert (given_up.kind, given_up.reason, given_up.duration) == ("interrupted", "cancelled", None)


async def test_a_call_that_is_given_up_between_two_attempts_says_so():
    busy = Reply.error(429, headers={"retry-after": "20"})
    async with ScriptedProvider(default=busy) as provider, running(config_for({"one": provider})) as lab:
        waiting = asyncio.create_task(lab.dispatcher.send(chat()))
        await eventually(lambda: lab.kinds()[-1:] == ["sent"] and len(provider.log) == 1 and not lab.in_flight())
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    given_up = lab.events[-1]
    assert (given_up.kind, given_up.reason) == ("interrupted", "cancelled")
    assert given_up.waited < given_up.duration, "since the attempt, and since the call began"


@pytest.mark.parametrize("stream", [False, True])
async def test_every_attempt_that_is_sent_ends_once(stream: bool):
    slow = Reply(delay=30)
    async with ScriptedProvider(default=slow) as provider, running(config_for({"one": provider})) as lab:
        waiting = asyncio.create_task(lab.dispatcher.send(chat(stream=stream)))
        await eventually(lambda: "sent" in lab.kinds())
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [lab.kinds()[-1], lab.events[-1].reason] == ["interrupted", "cancelled"]
        provider.default = Reply(stream=StreamScript(drop_after=2, gap=0.01))
        outcome = await lab.dispatcher.send(chat(stream=True))
        await anext(outcome.body)
        await outcome.aclose()
        assert [lab.kinds()[-1], lab.events[-1].reason] == ["interrupted", "dropped"]
    ends = [one for one in lab.events if one.kind in ("settled", "interrupted")]
    assert len(ends) == lab.kinds().count("sent") == 2


async def test_a_pause_is_warned_of_once_until_the_account_answers_again(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "orchestra.dispatch")
    spent = Reply.error(429, "insufficient_quota", kind="insufficient_quota")
    clock = HandClock()
    async with (
        ScriptedProvider([spent] * 2) as provider,
        running(config_for({"one": provider}), clock=clock) as lab,
    ):
        await lab.dispatcher.send(chat())
        assert lab.dispatcher.snapshot()["one/one-model"]["paused_for"] > 0
        clock.advance(2 * QUOTA_PAUSE)
        await lab.dispatcher.send(chat())
        clock.advance(2 * QUOTA_PAUSE)
        assert (await lab.dispatcher.send(chat())).status == 200
        provider.script.append(spent)
        await lab.dispatcher.send(chat())
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING", "INFO", "WARNING"]
    assert "the account of one/one-model is spent" in caplog.messages[0]
    assert (caplog.records[0].event, caplog.records[0].status) == ("paused", 429)
    assert caplog.messages[1] == "one/one-model answers again"
    assert lab.kinds().count("paused") == 3


async def test_a_fallback_is_warned_of_once_until_the_route_answers_again(caplog: pytest.LogCaptureFixture):
    async with ScriptedProvider() as second, running(config_for({"dead": NOBODY, "two": second})) as lab:
        for _ in range(3):
            assert (await lab.dispatcher.send(chat())).status == 200
        assert lab.kinds().count("fell_back") == 3
    (record,) = caplog.records
    assert record.name == "orchestra.dispatch"
    assert record.getMessage() == "dead/dead-model fails (no usable answer): calls take two/two-model meanwhile"
    assert (record.event, record.from_route) == ("fell_back", "dead/dead-model")


async def test_nothing_is_made_where_nobody_listens(monkeypatch: pytest.MonkeyPatch):
    def never(*args: object, **fields: object) -> None:
        raise AssertionError("an event was made for nobody")

    async with ScriptedProvider() as provider, running(config_for({"one": provider})) as lab:
        lab.dispatcher.events._subscribers = ()
        monkeypatch.setattr("orchestra.dispatch.attempts.Event", never)
        assert (await lab.dispatcher.send(chat())).status == 200


async def test_routes_tell_why_and_until_when_they_are_left_alone():
    async with running(config_for({"dead": NOBODY})) as lab:
        lab.dispatcher._health._breakers["dead/dead-model"] = CircuitBreaker(cooldown=1000.0)
        for _ in range(2):
            with pytest.raises(AllRoutesFailed):
                await lab.dispatcher.send(chat(expires_at=time.monotonic() + 60.0))
        (route,) = lab.dispatcher.snapshot().values()
    assert route["state"] == "open"
    assert 0 < route["next_try_in"] <= 1000
    assert "127.0.0.1:9" in route["fault"]
    assert route["paused_for"] is None
