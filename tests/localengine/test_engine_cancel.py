"""Giving up at any moment frees the blocks by the next step, delivers nothing more, and disturbs nobody."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from dataclasses import replace

import anyio
import pytest
from engine_lab import Bench, heard

from orchestra.localengine import EngineConfig, SamplingParams
from orchestra.localengine.service.stream import DeltaBuffer

LONG = SamplingParams(max_tokens=3000, temperature=0, ignore_eos=True)
SHORT = SamplingParams(max_tokens=5, temperature=0)
PROMPT = [10, 20, 30, 40, 50]


@pytest.fixture
async def bench():
    config = EngineConfig(block_size=4, max_num_seqs=4, step_tokens=16, interactive_slots=1)
    # room for answers that take seconds: none ends before it is given up
    bench = Bench(config, blocks=4000, context=4000, seconds=0.002)
    async with bench.engine:
        await bench.engine.complete("warm", SHORT)
        yield bench


async def still_works(bench: Bench) -> None:
    await bench.idle()
    answer = await bench.engine.complete(PROMPT, SHORT)
    assert list(answer.token_ids) == heard(PROMPT, 5)


async def steps_until_free(bench: Bench) -> int:
    before = bench.runner.steps
    await bench.idle()
    return bench.runner.steps - before


async def test_a_cancel_scope_around_the_loop(bench):
    """ROCm/ATOM#1562, vllm-project/vllm#10087: the caller is gone, and the engine goes on to ``max_tokens``."""
    with anyio.CancelScope() as scope:
        seen = 0
        async for _ in bench.engine.stream(PROMPT, LONG):
            seen += 1
            if seen == 3:
                scope.cancel()
    assert scope.cancelled_caught
    assert await steps_until_free(bench) <= 2
    assert bench.engine.stats()["cancelled"] == 1
    await still_works(bench)


async def test_a_timeout_on_a_completion(bench):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bench.engine.complete(PROMPT, LONG), 0.03)
    assert await steps_until_free(bench) <= 2
    await still_works(bench)


async def test_closing_the_stream(bench):
    stream = bench.engine.stream(PROMPT, LONG)
    await anext(stream)
    await stream.aclose()
    await stream.aclose()
    assert [delta async for delta in stream] == []
    assert await steps_until_free(bench) <= 2
    await still_works(bench)


async def test_leaving_the_streams_block(bench):
    async with bench.engine.stream(PROMPT, LONG) as stream:
        await anext(stream)
    assert [delta async for delta in stream] == []
    await still_works(bench)


async def test_dropping_the_stream(bench):
    """vllm-project/vllm#10087, #23697: nobody closes what is merely forgotten."""
    stream = bench.engine.stream(PROMPT, LONG)
    await anext(stream)
    del stream
    gc.collect()
    assert await steps_until_free(bench) <= 2
    await still_works(bench)


async def test_breaking_out_of_the_loop(bench):
    async def first() -> None:
        async for _ in bench.engine.stream(PROMPT, LONG):
            break

    await first()
    gc.collect()
    await still_works(bench)


async def test_a_stream_that_was_never_read_submits_nothing(bench):
    stream = bench.engine.stream(PROMPT, LONG)
    await stream.aclose()
    assert [delta async for delta in stream] == []
    bench.engine.stream(PROMPT, LONG)
    gc.collect()
    assert (await bench.idle())["steps"] == bench.runner.steps
    await still_works(bench)


async def test_dropping_a_generator_around_the_stream(bench):
    """vllm-project/vllm#23697: the caller's own generator over the stream is forgotten half-way."""

    async def texts():
        async for delta in bench.engine.stream(PROMPT, LONG):
            yield delta.text

    generator = texts()
    await anext(generator)
    del generator
    gc.collect()
    await asyncio.sleep(0)  # the loop closes it
    assert await steps_until_free(bench) <= 2
    assert bench.engine.stats()["cancelled"] == 1
    await still_works(bench)


async def test_cancelled_before_the_first_await_returns(bench):
    """ROCm/ATOM#1562: the caller is gone before the engine knows of it."""
    for _ in range(5):
        task = asyncio.create_task(bench.engine.complete(PROMPT, LONG))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        task = asyncio.create_task(bench.engine.complete("text is encoded in a thread", LONG))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await still_works(bench)


async def test_closed_while_the_first_read_submits(bench):
    stream = bench.engine.stream("text is encoded in a thread", LONG)
    reading = asyncio.ensure_future(anext(stream, None))
    await asyncio.sleep(0)
    await stream.aclose()
    assert await reading is None
    await still_works(bench)


async def test_closing_ends_a_read_that_waits(bench):
    bench.runner.closes_at = bench.runner.steps + 5
    stream, got = bench.engine.stream(PROMPT, LONG), 0
    while got < 5:  # what came before the gate was shut
        got += len((await anext(stream)).token_ids)
    reading = asyncio.ensure_future(anext(stream, None))
    await bench.until(lambda: not bench.runner.gate.is_set() and bench.runner.in_step.is_set())
    await stream.aclose()
    assert await asyncio.wait_for(reading, 30) is None
    bench.runner.gate.set()
    await still_works(bench)


async def test_nothing_is_delivered_after_a_cancel_during_a_step(bench):
    """sgl-project/sglang#34112, #34149: the token of the step that runs is delivered after the cancel."""
    bench.runner.closes_at = bench.runner.steps + 3
    stream = bench.engine.stream(PROMPT, LONG)
    await anext(stream)
    await bench.until(lambda: not bench.runner.gate.is_set() and bench.runner.in_step.is_set())
    await stream.aclose()
    bench.runner.gate.set()
    assert [delta async for delta in stream] == []
    assert await steps_until_free(bench) <= 1
    await still_works(bench)


async def test_in_the_middle_of_a_chunked_prefill(bench):
    """osaurus#1796: a disconnect during prefill tears the engine down for all."""
    bench.runner.closes_at = bench.runner.steps + 4  # of the ten that it takes
    task = asyncio.create_task(bench.engine.complete([7] * 150, SHORT))
    await bench.until(lambda: not bench.runner.gate.is_set() and bench.runner.in_step.is_set())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    bench.runner.gate.set()
    assert bench.engine.stats()["output_tokens"] <= 5  # the warm-up's: it was cancelled before its first
    await still_works(bench)


async def test_while_it_waits_for_a_slot(bench):
    running = [asyncio.create_task(bench.engine.complete(PROMPT, LONG)) for _ in range(4)]
    await asyncio.sleep(0.02)
    waiting = [asyncio.create_task(bench.engine.complete(PROMPT, LONG)) for _ in range(4)]
    await asyncio.sleep(0.02)
    for task in (*waiting, *running):
        task.cancel()
    results = await asyncio.gather(*running, *waiting, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    await still_works(bench)


async def test_two_readers_of_one_stream_are_told(bench):
    stream = bench.engine.stream(PROMPT, LONG)
    await anext(stream)
    bench.runner.gate.clear()
    reads = [asyncio.ensure_future(anext(stream)) for _ in range(3)]
    await asyncio.sleep(0.05)
    bench.runner.gate.set()
    results = await asyncio.gather(*reads, return_exceptions=True)
    assert any(isinstance(result, RuntimeError) and "one reader" in str(result) for result in results)
    await stream.aclose()
    await still_works(bench)


async def test_a_loop_that_ends_under_its_stream(bench):
    def elsewhere() -> None:
        async def main() -> None:
            streams.append(bench.engine.stream(PROMPT, replace(LONG, max_tokens=200)))
            await anext(streams[0])
            asyncio.ensure_future(anext(streams[0]))  # noqa: RUF006
            await asyncio.sleep(0)

        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False
        loop.close()

    streams: list = []
    await asyncio.to_thread(elsewhere)
    streams.clear()
    gc.collect()
    await still_works(bench)


@pytest.mark.parametrize("seed", range(4))
async def test_a_storm_of_cancellations(bench, seed):
    rng = random.Random(seed)

    async def one(number: int) -> None:
        prompt = [(13 * number + place) % 900 + 2 for place in range(rng.randint(1, 30))]
        traffic = rng.choice(["interactive", "bulk"])
        limit = rng.choice([None, 0.0, 0.005, 0.02])
        params = SamplingParams(max_tokens=rng.randint(1, 12), temperature=0)
        await asyncio.sleep(0.05 * rng.random())
        with anyio.move_on_after(limit):
            answer = await bench.engine.complete(prompt, params, traffic=traffic)
            assert list(answer.token_ids) == heard(prompt, params.max_tokens)

    await asyncio.gather(*(one(number) for number in range(40)))
    await still_works(bench)


async def test_a_read_that_the_collector_ends_inside_a_put_blocks_nothing():
    """The worker may be the thread in which a dropped read is collected, in the middle of its own `put`."""
    buffer = DeltaBuffer()
    read = buffer.get()
    read.send(None)

    def collected_in_put() -> None:
        with buffer._lock:
            read.close()

    thread = threading.Thread(target=collected_in_put, daemon=True)
    thread.start()
    thread.join(50)
    assert not thread.is_alive()
