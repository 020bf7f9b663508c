"""A late first attempt, a second one beside it, and what becomes of both."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from dispatch_lab import Lab, chat, config_for, eventually, running, text_of
from hand_clock import HandClock
from holding_provider import HoldingProvider

from orchestra.policies.traffic import TrafficClass
from orchestra.testing import Reply, ScriptedProvider, StreamScript

PRICES = [{"models": ["*"], "input": 1000.0, "output": 1000.0}]


def hedged(providers: Any, *, share: float = 0.5, limits: dict[str, Any] | None = None) -> dict[str, Any]:
    config = config_for(providers, traffic={"hedge_share": share, "interactive_reserve": 0.0})
    for one in config["providers"].values():
        one |= {"prices": PRICES, "limits": [limits] if limits else []}
    return config


def learn(lab: Lab, *, stream: bool = False, usual: float = 0.15, calls: int = 6) -> None:
    """Let the lab have seen calls whose answers took as long as that."""
    hedger = lab.dispatcher._hedger
    assert hedger is not None
    for _ in range(calls):
        hedger._hedging.enter()
        hedger._hedging.observe(("one/one-model", stream), usual)


def check_ends(lab: Lab) -> None:
    """Check that each attempt that was sent has one end: its own, or what follows a failure of the first."""
    sent = {one.attempt for one in lab.events if one.kind == "sent"}
    own = [one.attempt for one in lab.events if one.kind in ("settled", "interrupted") and one.attempt is not None]
    after = [one.kind for one in lab.events if one.kind in ("retried", "fell_back", "failed")]
    assert len(set(own)) == len(own), "no attempt ends twice"
    assert set(own) <= sent
    assert len(own) + len(after) == len(sent)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_second_answer_counts_where_the_first_is_late(stream: bool):
    async with HoldingProvider() as provider, running(hedged({"one": provider})) as lab:
        learn(lab, stream=stream)
        provider.hold()
        outcome = await lab.dispatcher.send(chat(stream=stream))
        assert await text_of(outcome) == "Hello, world."
        await eventually(lambda: lab.in_flight() == 0)
        late, second = provider.log[-2:]
        await eventually(lambda: provider.in_flight == 0)
        assert late.answered_at is None
        assert not late.completed
        assert second.completed
        await eventually(lambda: [one.reason for one in lab.events if one.kind == "interrupted"] == ["outrun"])
        (told,) = [one for one in lab.events if one.kind == "hedged"]
        assert (told.attempt, told.route, told.from_route) == (2, "one/one-model", "one/one-model")
        assert told.duration is not None
        assert [one.attempt for one in lab.events if one.kind == "sent"] == [1, 2]
        assert [one.attempt for one in lab.events if one.kind == "settled"] == [2]


async def test_both_are_charged():
    async with HoldingProvider() as provider, running(hedged({"one": provider})) as lab:
        learn(lab)
        provider.hold()
        await text_of(await lab.dispatcher.send(chat(max_tokens=50)))
        await eventually(lambda: lab.in_flight() == 0)
        (pool,) = lab.budget.snapshot()
    spent = pool["spent"]
    (settled,) = [one for one in lab.events if one.kind == "settled"]
    (given_up,) = [one for one in lab.events if one.kind == "interrupted"]
    assert spent["requests"] == 2
    assert settled.usd is not None
    assert given_up.estimated_usd is not None
    assert spent["usd"] == pytest.approx(settled.usd + given_up.estimated_usd)


async def test_the_first_still_counts_where_it_comes_before_the_second():
    async with HoldingProvider() as provider, running(hedged({"one": provider})) as lab:
        learn(lab)
        first, _ = provider.hold(), provider.hold()
        call = asyncio.create_task(lab.dispatcher.send(chat()))
        await eventually(lambda: len(provider.log) == 2)
        first.set()
        assert await text_of(await call) == "Hello, world."
        await eventually(lambda: lab.in_flight() == 0)
        assert [one.attempt for one in lab.events if one.kind == "settled"] == [1]
        assert [one.attempt for one in lab.events if one.kind == "interrupted"] == [2]


@pytest.mark.parametrize("second", [Reply.error(500), Reply.error(429), Reply(drop=True), Reply.error(400)])
async def test_a_second_attempt_that_fails_changes_nothing(second: Reply):
    async with HoldingProvider() as provider, running(hedged({"one": provider})) as lab:
        learn(lab)
        first = provider.hold()
        provider.script.append(second)
        call = asyncio.create_task(lab.dispatcher.send(chat()))
        await eventually(lambda: len(provider.log) == 2 and lab.in_flight() == 1)
        first.set()
        assert await text_of(await call) == "Hello, world."
        assert lab.kinds().count("sent") == 2
        assert "retried" not in lab.kinds()
        check_ends(lab)
        (lost,) = [one for one in lab.events if one.kind == "interrupted"]
        assert (lost.attempt, lost.reason, lost.status) == (2, "outrun", None if second.drop else second.status)


BROKEN = Reply(500, body={"error": {"message": "x"}})


async def test_a_first_attempt_that_fails_late_leaves_the_second_its_chance():
    async with HoldingProvider([BROKEN]) as provider, running(hedged({"one": provider})) as lab:
        learn(lab)
        first, second = provider.hold(), provider.hold()
        call = asyncio.create_task(lab.dispatcher.send(chat()))
        await eventually(lambda: len(provider.log) == 2)
        first.set()
        await eventually(lambda: lab.in_flight() == 1)
        second.set()
        assert await text_of(await call) == "Hello, world."
        assert "retried" not in lab.kinds()
        assert lab.kinds().count("sent") == 2
        check_ends(lab)
        (lost,) = [one for one in lab.events if one.kind == "interrupted"]
        assert (lost.attempt, lost.reason, lost.status) == (1, "outrun", 500)


async def test_a_first_attempt_that_failed_has_its_end_where_the_call_is_given_up():
    async with HoldingProvider([BROKEN]) as provider, running(hedged({"one": provider})) as lab:
        learn(lab)
        first, _ = provider.hold(), provider.hold()
        call = asyncio.create_task(lab.dispatcher.send(chat()))
        await eventually(lambda: len(provider.log) == 2)
        first.set()
        await eventually(lambda: lab.in_flight() == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        check_ends(lab)


async def test_where_both_fail_the_call_is_retried_by_its_policy_and_not_hedged_again():
    async with HoldingProvider([BROKEN] * 2) as provider, running(hedged({"one": provider})) as lab:
        learn(lab)
        both = provider.hold(2)
        call = asyncio.create_task(lab.dispatcher.send(chat()))
        await eventually(lambda: len(provider.log) == 2)
        both.set()
        assert await text_of(await call) == "Hello, world."
        assert [lab.kinds().count(kind) for kind in ("hedged", "retried", "sent")] == [1, 1, 3]
        assert [one.attempt for one in lab.events if one.kind in ("sent", "retried")] == [1, 2, 3, 3]
        check_ends(lab)


async def test_what_the_call_itself_is_to_blame_for_ends_both():
    wrong = Reply(400, body={"error": {"message": "no"}})
    async with HoldingProvider([wrong]) as provider, running(hedged({"one": provider})) as lab:
        learn(lab)
        first, _ = provider.hold(), provider.hold()
        call = asyncio.create_task(lab.dispatcher.send(chat()))
        await eventually(lambda: len(provider.log) == 2)
        first.set()
        assert (await call).status == 400
        await eventually(lambda: lab.in_flight() == 0)


async def test_bulk_is_never_sent_twice():
    async with ScriptedProvider() as provider, running(hedged({"one": provider})) as lab:
        learn(lab)
        provider.script.append(Reply(delay=0.4))
        await text_of(await lab.dispatcher.send(chat(traffic=TrafficClass.BULK)))
        assert "hedged" not in lab.kinds()
        assert lab.kinds().count("sent") == 1


async def test_it_is_off_unless_asked_for():
    async with ScriptedProvider() as provider, running(config_for({"one": provider})) as lab:
        assert lab.dispatcher._hedger is None
        assert lab.dispatcher._attempts is not None


async def test_no_second_attempt_after_content_was_shown():
    clock = HandClock()
    async with ScriptedProvider() as provider, running(hedged({"one": provider}), clock=clock) as lab:
        learn(lab, stream=True)
        provider.script.append(Reply(stream=StreamScript(gap=0.02)))
        outcome = await lab.dispatcher.send(chat(stream=True))
        clock.advance(10.0)
        assert await text_of(outcome) == "Hello, world."
        assert "hedged" not in lab.kinds()


async def test_a_second_attempt_takes_no_turn_that_somebody_waits_for():
    limits = {"max_concurrency": 1}
    async with ScriptedProvider() as provider, running(hedged({"one": provider}, limits=limits)) as lab:
        learn(lab)
        provider.script.append(Reply(delay=0.4))
        await text_of(await lab.dispatcher.send(chat()))
        assert lab.kinds() == ["queued", "admitted", "sent", "settled"]


async def test_where_its_own_route_has_no_room_the_next_takes_it():
    async with HoldingProvider() as first, ScriptedProvider() as second:
        config = hedged({"one": first, "two": second})
        config["providers"]["one"]["limits"] = [{"max_concurrency": 1}]
        async with running(config) as lab:
            learn(lab)
            first.hold()
            outcome = await lab.dispatcher.send(chat())
            assert (outcome.route, await text_of(outcome)) == ("two/two-model", "Hello, world.")
            (told,) = [one for one in lab.events if one.kind == "hedged"]
            assert (told.route, told.from_route) == ("two/two-model", "one/one-model")
            await eventually(lambda: lab.in_flight() == 0)


@pytest.mark.parametrize("attempts", [1, 2])
async def test_cancelling_the_caller_ends_both(attempts: int):
    async with HoldingProvider() as provider, running(hedged({"one": provider})) as lab:
        learn(lab, usual=0.15 if attempts == 2 else 1000.0)
        provider.hold(2)
        task = asyncio.create_task(lab.dispatcher.send(chat()))
        await eventually(lambda: len(provider.log) == attempts)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert lab.in_flight() == 0
        assert not any(hit.completed for hit in provider.log)
        assert lab.kinds().count("interrupted") == lab.kinds().count("sent") == attempts


async def test_the_share_holds_however_late_they_are():
    async with ScriptedProvider() as provider, running(hedged({"one": provider}, share=0.05)) as lab:
        learn(lab, calls=40, usual=0.05)
        provider.default = Reply(delay=0.4)
        await asyncio.gather(*(lab.dispatcher.send(chat()) for _ in range(40)))
        assert 1 <= lab.kinds().count("hedged") <= 0.05 * 80


async def test_the_time_in_our_own_queue_is_not_lateness():
    limits = {"max_concurrency": 1}
    clock = HandClock()
    async with ScriptedProvider() as first, ScriptedProvider() as second:
        config = hedged({"one": first, "two": second})
        config["providers"]["one"]["limits"] = [limits]
        async with running(config, clock=clock) as lab:
            learn(lab)
            first.script.append(Reply(stream=StreamScript(gap=0.02)))
            held = await lab.dispatcher.send(chat(stream=True))
            waiting = asyncio.create_task(lab.dispatcher.send(chat()))
            await eventually(lambda: lab.kinds()[-1] == "queued")
            clock.advance(0.5)
            await asyncio.sleep(0.05)
            assert second.log == []
            await held.aclose()
            assert (await waiting).route == "one/one-model"
