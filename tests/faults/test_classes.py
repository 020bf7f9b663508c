"""Priorities that had no effect, queues that leaked, slots held too long. Each test names its report."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import httpx2
import openai
import pytest
from faults_lab import MESSAGES, Front, fronted, said, until
from holding_provider import HoldingProvider

from orchestra import bulk, interactive
from orchestra.observe.events import Event
from orchestra.policies.traffic import TrafficClass
from orchestra.testing import Limits, Reply, ScriptedProvider, StreamScript


def start_bulk(front: Front, calls: int) -> list[asyncio.Task[Any]]:
    with bulk():
        return [asyncio.create_task(front.ask("bulk")) for _ in range(calls)]


def start_people(front: Front, calls: int) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(front.ask("person")) for _ in range(calls)]


async def test_people_go_before_all_bulk_that_waits_for_a_slot():
    """BerriAI/litellm#6867: the priority queue never holds more than one entry, so its order has no effect."""
    async with HoldingProvider() as provider, fronted(provider, max_concurrency=1) as front:
        gate = provider.hold()
        tasks = start_bulk(front, 20)
        await until(lambda: provider.in_flight == 1 and front.waiting() == 19)
        tasks += start_people(front, 5)
        await until(lambda: front.waiting() == 24)
        gate.set()
        await asyncio.gather(*tasks)
        assert [said(hit) for hit in provider.log] == ["bulk"] + ["person"] * 5 + ["bulk"] * 19


@pytest.mark.parametrize("limit", ["requests_per_minute", "tokens_per_minute"])
async def test_people_go_before_all_bulk_that_waits_for_the_refill(limit: str):
    """BerriAI/litellm#6867, with a rate as the bottleneck: fifty of bulk, then five people."""
    size = 1 if limit == "requests_per_minute" else 200
    bounds = {limit: 40 * 60 * size, "burst_seconds": 0.025}
    async with ScriptedProvider() as provider, fronted(provider, kind="openai", **bounds) as front:
        with bulk():
            tasks = [asyncio.create_task(front.ask("bulk", max_tokens=200)) for _ in range(50)]
        await until(lambda: len(provider.log) >= 2 and len(provider.log) + front.waiting() == 50)
        (pool,) = front.orc._budget._pools.values()
        pool.pause(time.monotonic() + 200, "until all people are in the queue")
        await until(lambda: front.in_flight() == 0)
        gone = len(provider.log)
        with interactive(timeout=300):
            people = [asyncio.create_task(front.ask("person", max_tokens=200)) for _ in range(5)]
        await until(lambda: gone + front.waiting() == 55)
        pool.resume()
        await asyncio.gather(*people)
        order = [said(hit) for hit in provider.log]
        assert order[: gone + 5] == ["bulk"] * gone + ["person"] * 5
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_those_who_gave_up_are_out_of_the_queue():
    """BerriAI/litellm#20059: timed-out waiters stay in the queue, leak, and block its head."""
    async with (
        ScriptedProvider([Reply(delay=30)]) as provider,
        fronted(provider, max_concurrency=1) as front,
    ):
        first = asyncio.create_task(front.ask())
        await until(lambda: provider.in_flight == 1)
        with interactive(timeout=0.05):
            crowd = [asyncio.create_task(front.ask()) for _ in range(50)]
        with bulk(deadline=0.05):
            crowd += [asyncio.create_task(front.ask()) for _ in range(50)]
        results = await asyncio.gather(*crowd, return_exceptions=True)
        assert {type(result) for result in results} == {openai.APITimeoutError}
        assert (front.waiting(), front.in_flight(), len(provider.log)) == (0, 1, 1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await front.ask()
        assert len(provider.log) == 2


async def test_under_more_load_than_fits_people_hardly_wait_and_bulk_gets_the_rest():
    """BerriAI/litellm#31830: interactive before batch, and bulk delayed while the quota is scarce."""
    limits = Limits(requests_per_minute=6000, burst_seconds=0.4, headers="none")
    async with (
        ScriptedProvider(limits=limits) as provider,
        fronted(provider, traffic={}, requests_per_minute=6000, burst_seconds=0.1) as front,
    ):
        granted: list[TrafficClass] = []
        overtaken = []  # how many of bulk went while a person was in the queue

        def note(event: Event) -> None:
            if event.kind == "admitted":
                granted.append(event.traffic)
            elif event.kind == "queued" and event.traffic is TrafficClass.INTERACTIVE:
                granted.clear()

        tasks = start_bulk(front, 100)
        await until(lambda: len(provider.log) >= 5)
        front.orc.events.subscribe(note)
        for _ in range(20):
            await front.ask("person")
            overtaken.append(granted.index(TrafficClass.INTERACTIVE))
            await asyncio.sleep(0.01)
        served = sum(said(hit) == "bulk" for hit in provider.log)
        assert max(overtaken) < 50, "behind the bulk that came first it were nearly a hundred"
        assert statistics.median(overtaken) < 10
        assert served >= 15, "what people leave is used"
        await asyncio.gather(*tasks)
        assert {hit.status for hit in provider.log} == {200}, "never beyond the limit"


async def test_bulk_does_not_eat_the_quota_of_others_on_the_account():
    """meridianlabs-ai/inspect_scout#495: a bulk job takes the team's quota, and everybody is refused."""
    limits = Limits(requests_per_minute=6000, burst_seconds=0.5)
    async with (
        ScriptedProvider(limits=limits) as provider,
        fronted(provider, traffic={}) as front,
        httpx2.AsyncClient(base_url=provider.base_url) as colleague,
    ):
        tasks = start_bulk(front, 150)
        await until(lambda: len(provider.log) >= 10)
        asked = refused = 0
        async with asyncio.timeout(40):
            # until bulk was at work meanwhile, too
            while asked < 30 or sum(said(hit) == "bulk" for hit in provider.log) < 50:
                response = await colleague.post("/chat/completions", json={"model": "m", "messages": MESSAGES})
                refused += response.status_code == 429
                asked += 1
                await asyncio.sleep(0.02)
        assert refused == 0
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_parents_hold_no_slot_while_their_children_wait_for_one():
    """can1357/oh-my-pi#3749: a slot is held for an agent's life, and parents and children deadlock."""
    async with HoldingProvider() as provider, fronted(provider, max_concurrency=3) as front:

        async def agent() -> None:
            await front.ask()
            await asyncio.gather(front.ask(), front.ask())
            await front.ask()

        gate = provider.hold(3)
        agents = asyncio.gather(*(agent() for _ in range(5)))
        await until(lambda: provider.in_flight == 3)
        gate.set()
        async with asyncio.timeout(30):
            await agents
        assert (len(provider.log), provider.peak) == (20, 3)


async def test_a_stream_that_was_read_holds_nothing_though_it_is_kept():
    """zed-industries/zed PR 47494: the guard of a stream lives on while its tools run, and deadlocks them."""
    async with (
        ScriptedProvider(default=Reply(stream=StreamScript(chunks=["a", "b"]))) as provider,
        fronted(provider, max_concurrency=1) as front,
        asyncio.timeout(30),
    ):
        stream = await front.ask(stream=True)
        async for _ in stream:
            pass
        async with front.orc.stream("fast", MESSAGES) as deltas:
            assert [text async for text in deltas] == ["a", "b"]
            response = await front.sdk.chat.completions.with_raw_response.create(model="fast", messages=MESSAGES)
            parsed = response.parse()
            await front.ask()
        assert (len(provider.log), provider.peak) == (4, 1)
        assert stream.response.status_code == 200
        assert parsed.choices
