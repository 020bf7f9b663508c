"""Streams and cancelled calls whose usage or slot was lost. Each test names where the fault was reported."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import openai
import pytest
from faults_lab import MESSAGES, answer, fronted, opened, said, sdk_over, settings, until
from holding_provider import HoldingProvider

from orchestra import bulk
from orchestra.testing import Reply, ScriptedProvider, StreamScript

SLOW = Reply(stream=StreamScript(chunks=["x"] * 6, gap=0.003))


async def test_what_a_stream_used_is_known_though_nobody_asked_for_it():
    """ferro-labs/ai-gateway#281: usage is not asked for on streams, so that all they spend reads zero."""
    stream = Reply(stream=StreamScript(chunks=["word"] * 30))
    async with ScriptedProvider(default=stream) as provider, fronted(provider, tokens_per_minute=9000) as front:
        chunks = [chunk async for chunk in await front.ask(stream=True)]
        assert all(chunk.choices and chunk.usage is None for chunk in chunks)
        spent = front.pool()["spent"]
        assert spent["output_tokens"] == 30
        assert spent["tokens"] == spent["input_tokens"] + 30 > 30
        options: Any = {"include_usage": True}
        last = [chunk async for chunk in await front.ask(stream=True, stream_options=options)][-1]
        assert last.usage.completion_tokens == 30, "who asks for it gets it"
        assert front.pool()["spent"]["output_tokens"] == 60


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_cancelled_call_used_is_unknown_and_not_nothing(stream: bool):
    """PostHog/posthog-js PR 4664: a cancelled call is reported as zero. What was sent is kept as spent."""
    slow = Reply(delay=30) if not stream else Reply(stream=StreamScript(gap=30))
    limits = {"tokens_per_minute": 60, "burst_seconds": 9000}  # so slowly that nothing comes back meanwhile
    async with ScriptedProvider(default=slow) as provider, fronted(provider, **limits) as front:

        async def call() -> None:
            answered = await front.ask("word" * 400, stream=stream, max_tokens=50)
            async for _ in answered:
                pass

        task = asyncio.create_task(call())
        await until(lambda: provider.in_flight == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: front.in_flight() == 0)
        assert front.pool()["spent"]["tokens"] == pytest.approx(450, abs=20)
        assert front.pool()["dimensions"]["tokens"]["used"] == pytest.approx(450, abs=20)


async def test_what_never_left_us_is_not_spent():
    """PostHog/posthog-js PR 4664, the other half: known to be nothing is not unknown."""
    config = settings("http://127.0.0.1:9/v1", tokens_per_minute=9000)
    async with opened(config) as orc, sdk_over(orc) as sdk:
        with pytest.raises(openai.APIStatusError, match="no route answered"):
            await sdk.chat.completions.create(model="fast", messages=MESSAGES)
        (pool,) = orc.snapshot()["pools"]
        assert pool["spent"]["tokens"] == pool["spent"]["requests"] == 0
        assert pool["dimensions"]["tokens"]["used"] == 0


async def test_streams_cancelled_at_random_leave_the_limit_whole():
    """BerriAI/litellm#27955: each cancelled stream leaks a slot. Cancelled, closed, dropped: none may."""
    rng = random.Random(5)
    async with (
        HoldingProvider(default=SLOW, service_time=0.003) as provider,
        fronted(provider, max_concurrency=12) as front,
    ):

        async def read(index: int) -> None:
            stream = await front.ask(stream=True)
            async for _ in stream:
                if index % 5 == 1:
                    await stream.close()
                    return
                if index % 15 == 2:  # dropped: eight, so that others still find a slot
                    return

        tasks = [asyncio.create_task(read(index)) for index in range(120)]
        for index, task in enumerate(tasks):
            if index % 5 > 2:
                await asyncio.sleep(rng.random() * 0.008)
                task.cancel()
        async with asyncio.timeout(40):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
        assert sum(isinstance(result, asyncio.CancelledError) for result in results) > 15
        del tasks, results

        def idle() -> bool:
            gc.collect()  # an SDK's stream that was dropped is a cycle of references
            return front.in_flight() == front.waiting() == provider.in_flight == 0

        await until(idle)
        provider.peak, gate = 0, provider.hold(12)
        calls = asyncio.gather(*(front.ask() for _ in range(30)))
        await until(lambda: provider.in_flight == 12)
        gate.set()
        await calls
        assert provider.peak == 12, "all slots are there again, and no more"


async def test_streams_that_are_dropped_are_found_while_others_wait():
    """BerriAI/litellm#27955, without help: an idle loop never collects the cycle that a dropped SDK stream is."""
    async with (
        ScriptedProvider([Reply(stream=StreamScript(gap=30))], default=answer()) as provider,
        fronted(provider, max_concurrency=1) as front,
    ):
        gc.collect()
        gc.disable()
        try:

            async def leave() -> None:
                async for _ in await front.ask(stream=True):
                    return

            await leave()
            async with asyncio.timeout(40):
                await front.ask()
        finally:
            gc.enable()
        assert len(provider.log) == 2


async def test_a_stream_that_was_read_gives_its_connection_back():
    """openai/openai-python#763: without an explicit close a stream's connection is never used again."""
    async with (
        ScriptedProvider(default=Reply(stream=StreamScript(chunks=["a"]))) as provider,
        fronted(provider, max_concurrency=1) as front,
        asyncio.timeout(30),
    ):
        kept = []
        for _ in range(3):
            stream = await front.ask(stream=True)
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "a"
            kept.append(stream)
        assert len(provider.log) == 3
        assert provider._server is not None
        assert len(provider._server.connections) == 1


async def test_cancelling_a_queued_call_touches_only_that_call():
    """ikawrakow/ik_llama.cpp#1929: cancelling a queued request aborts another one's running work."""
    async with (
        HoldingProvider() as provider,
        fronted(provider, max_concurrency=1) as front,
    ):
        gate = provider.hold()
        tasks = {name: asyncio.create_task(front.ask(name)) for name in ("first", "second", "third")}
        await until(lambda: provider.in_flight == 1 and front.waiting() == 2)
        running = said(provider.log[0])
        cancelled = next(name for name in tasks if name != running)
        tasks[cancelled].cancel()
        gate.set()
        results = dict(zip(tasks, await asyncio.gather(*tasks.values(), return_exceptions=True), strict=True))
        assert isinstance(results.pop(cancelled), asyncio.CancelledError)
        assert all(result.choices for result in results.values())
        assert sorted(said(hit) for hit in provider.log) == sorted(results)


async def test_cancelling_the_call_that_lets_others_in_stops_none_of_them():
    """ikawrakow/ik_llama.cpp#1929, its kin: whoever decides for all decides though it is cancelled."""
    async with ScriptedProvider() as provider, fronted(provider, max_concurrency=20) as front:
        for turns in range(40):
            tasks = [asyncio.create_task(front.ask(str(number))) for number in range(3)]
            for _ in range(turns):
                await asyncio.sleep(0)
            tasks[turns % 3].cancel()
            async with asyncio.timeout(30):
                results = await asyncio.gather(*tasks, return_exceptions=True)
            assert sum(not isinstance(result, BaseException) for result in results) >= 2
        assert front.in_flight() == front.waiting() == 0


async def test_a_queued_bulk_call_that_is_cancelled_is_never_sent():
    """ikawrakow/ik_llama.cpp#1929, the other way round: who leaves the queue is not served later."""
    async with HoldingProvider() as provider, fronted(provider, max_concurrency=1) as front:
        gate = provider.hold()
        first = asyncio.create_task(front.ask("first"))
        await until(lambda: provider.in_flight == 1)
        with bulk():
            queued = [asyncio.create_task(front.ask("queued")) for _ in range(10)]
        await until(lambda: front.waiting() == 10)
        for task in queued:
            task.cancel()
        await asyncio.gather(*queued, return_exceptions=True)
        gate.set()
        await first
        await front.ask("last")
        assert [said(hit) for hit in provider.log] == ["first", "last"]


@pytest.mark.soak
async def test_ten_thousand_cancelled_streams_leave_nothing_behind(soak: Callable[[int], int]):
    """BerriAI/litellm#27955, at length: no lease, task, connection or memory is left of cancelled streams."""
    stream = Reply(stream=StreamScript(chunks=["x"] * 8, gap=0.002))
    rng = random.Random(7)
    async with HoldingProvider(default=stream) as provider, fronted(provider, max_concurrency=40) as front:

        async def read(index: int) -> None:
            answered = await front.ask(stream=True)
            async for _ in answered:
                if index % 4 == 0:  # the SDK closes it
                    await answered.close()
                    return

        async def cancel(count: int) -> None:
            for start in range(0, count, 50):
                tasks = [asyncio.create_task(read(start + index)) for index in range(min(50, count - start))]
                for task in tasks:
                    if rng.random() < 0.7:
                        asyncio.get_running_loop().call_later(rng.random() * 0.02, task.cancel)
                await asyncio.gather(*tasks, return_exceptions=True)
            provider.log.clear()
            await until(lambda: front.in_flight() == front.waiting() == provider.in_flight == 0)
            await front.orc._wire.aclose()  # the connections that wait for the next call
            await until(lambda: not provider._server.connections)
            gc.collect()

        def left() -> tuple[int, int]:
            return len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))

        await cancel(200)
        tasks, files = left()
        tracemalloc.start()
        try:
            await cancel(200)
            memory = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            await cancel(soak(10_000) - 600)
            tracemalloc.start()
            await cancel(200)
            grown = tracemalloc.get_traced_memory()[0] - memory
        finally:
            tracemalloc.stop()
        assert grown < 2_000_000
        assert left()[0] <= tasks + 2
        assert left()[1] <= files + 5
        assert front.orc._wire.busy() == 0
        provider.peak, gate = 0, provider.hold(40)
        calls = asyncio.gather(*(front.ask() for _ in range(80)))
        await until(lambda: provider.in_flight == 40)
        gate.set()
        await calls
        assert provider.peak == 40, "the whole limit is there again"
