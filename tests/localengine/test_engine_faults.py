"""Faults that users of other engines met, where one engine serves many callers. Each test names its source.

Those about giving up are in test_engine_cancel.py.
"""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from engine_lab import VOCABULARY, Bench, heard, oracle

from orchestra.localengine import EngineConfig, LocalEngine, SamplingParams
from orchestra.localengine.errors import EngineClosed, EngineDied
from orchestra.localengine.service.stream import DeltaStream

SMALL = EngineConfig(block_size=4, max_num_seqs=4, step_tokens=16, interactive_slots=1)


def greedy(max_tokens: int, **options: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, **options)


def ids(number: int, length: int = 6) -> list[int]:
    return [(31 * number + place) % (VOCABULARY - 2) + 2 for place in range(length)]


def before_each(bench: Bench, method: str, call: Callable[[], object]) -> None:
    """Let the runner, or the tokenizer, make a call before it does its work."""
    owner: Any = bench.runner if method == "run" else bench.engine._worker.ready.result().tokenizer
    inner = getattr(owner, method)

    def outer(*args: Any) -> Any:
        call()
        return inner(*args)

    setattr(owner, method, outer)


def asks_the_loop() -> Callable[[], None]:
    """A call that waits for the loop that runs here: where the loop waits for the caller, nothing goes on."""
    loop = asyncio.get_running_loop()

    def ask() -> None:
        turned = threading.Event()
        loop.call_soon_threadsafe(turned.set)
        assert turned.wait(50), "the event loop is blocked"

    return ask


@pytest.mark.parametrize("traffic", ["interactive", "bulk"])
async def test_a_step_never_blocks_the_event_loop(traffic: Any):
    """vllm-project/vllm#1628, #3996: a model step blocks the event loop, and tokens arrive in bursts."""
    bench = Bench(SMALL)
    async with bench.engine as engine:
        before_each(bench, "run", asks_the_loop())
        answers = await asyncio.gather(*(engine.complete(ids(n), greedy(6), traffic=traffic) for n in range(6)))
    assert [list(answer.token_ids) for answer in answers] == [heard(ids(n), 6) for n in range(6)]


async def test_encoding_a_prompt_never_blocks_the_event_loop():
    """vllm-project/vllm#1628: a long prompt is encoded in the loop, and every stream of it stands still."""
    bench = Bench()
    async with bench.engine as engine:
        before_each(bench, "encode_prompt", asks_the_loop())
        assert (await engine.complete("a long prompt " * 10, greedy(3))).usage.prompt_tokens == 140


async def test_each_token_comes_while_the_next_is_computed():
    """vllm-project/vllm#1628: tokens come in bursts. Here each step waits until the last token was read."""
    bench = Bench(SMALL)
    got: list[int] = []
    read = threading.Semaphore(1)
    async with bench.engine as engine:
        before_each(bench, "run", lambda: read.acquire(timeout=50))
        async for delta in engine.stream(ids(1), greedy(8, ignore_eos=True)):
            assert len(delta.token_ids) == 1
            got += delta.token_ids
            read.release()
    assert len(got) == 8


async def test_fifty_consumers_each_get_their_own_tokens_and_their_end():
    """huggingface/transformers#42943: one queue for all; others' results are put back, iterators never end."""
    bench = Bench(SMALL, blocks=24)
    rng = random.Random(1)

    async def consume(number: int) -> None:
        got: list[int] = []
        async for delta in bench.engine.stream(ids(number), greedy(10)):
            got += delta.token_ids
            for _ in range(rng.choice([0, 1, 20, 200])):
                await asyncio.sleep(0)
        assert got == heard(ids(number), 10)

    async with bench.engine:
        await asyncio.gather(*(consume(number) for number in range(50)))
        assert (await bench.idle())["finished"] == 50


async def test_run_drain_and_run_again():
    """vllm-project/vllm#17385: the second batch on the same engine hangs. What was drained can still be read."""
    bench = Bench(SMALL)
    for turn in range(3):
        await bench.stand_still()
        stream = bench.engine.stream(ids(turn), greedy(20, ignore_eos=True))
        reading = asyncio.ensure_future(anext(stream))
        tasks = [asyncio.create_task(bench.engine.complete(ids(n), greedy(5))) for n in range(6)]
        await bench.until(lambda: bench.known("interactive") == 7)
        closing = asyncio.create_task(bench.engine.close(drain=True))
        await asyncio.sleep(0)
        bench.runner.gate.set()
        await closing
        assert [list((await task).token_ids) for task in tasks] == [heard(ids(n), 5) for n in range(6)]
        got = list((await reading).token_ids)
        got += [token async for delta in stream for token in delta.token_ids]
        assert got == oracle(ids(turn), 20)
    assert [runner.closed for runner in bench.runners] == [True] * 3


def test_one_loop_after_another_uses_the_engine():
    """vllm-project/vllm#17385: the second batch on the same engine hangs. Here each has a loop of its own."""
    bench = Bench(SMALL)
    left: list[DeltaStream] = []

    async def batch(number: int) -> None:
        answers = await asyncio.gather(*(bench.engine.complete(ids(n + number), greedy(5)) for n in range(6)))
        assert [list(one.token_ids) for one in answers] == [heard(ids(n + number), 5) for n in range(6)]
        stream = bench.engine.stream(ids(number), greedy(200, ignore_eos=True))
        await anext(stream)
        left.append(stream)  # its loop ends before it does

    for number in range(3):
        asyncio.run(batch(number))

    async def last() -> None:
        # nor does a stream belong to the loop that it began in
        rest = [token async for delta in left[0] for token in delta.token_ids]
        assert rest == oracle(ids(0), 200)[200 - len(rest) :]
        left.clear()
        gc.collect()
        stats = await bench.idle()
        assert stats["finished"] + stats["cancelled"] == 3 * 7
        await bench.engine.close()

    asyncio.run(last())
    assert bench.runner.closed


def test_a_loop_that_ends_while_the_model_loads_leaves_no_trace(caplog: pytest.LogCaptureFixture):
    """vllm-project/vllm#17385: who waited for the start is gone, loop and all, when the model is there."""
    bench = Bench(SMALL)
    may_load = threading.Event()

    def slowly(config: EngineConfig) -> Any:
        assert may_load.wait(50)
        return bench.open_model(config)

    engine = LocalEngine(slowly, bench.config)

    async def give_up() -> None:
        starting = asyncio.create_task(engine.start())
        await bench.until(lambda: engine.stats() == {"state": "loading"})
        assert not starting.done()

    async def go_on() -> None:
        starting = asyncio.create_task(engine.start())
        may_load.set()
        await starting
        assert list((await engine.complete(ids(1), greedy(3))).token_ids) == heard(ids(1), 3)
        await engine.close()

    asyncio.run(give_up())
    asyncio.run(go_on())
    assert len(bench.runners) == 1
    assert not caplog.records


def in_a_loop_of_its_own(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    return thread


@pytest.mark.parametrize("drain", [False, True])
async def test_closing_from_another_loop_ends_the_streams_of_this_one(drain: bool):
    """vllm-project/vllm#17385, from the other side: who waits in one loop is told of an end from another."""
    bench = Bench(SMALL)
    async with bench.engine as engine:
        await bench.stand_still()
        tasks = [asyncio.create_task(engine.complete(ids(n), greedy(5))) for n in range(10)]
        await bench.until(lambda: bench.known("interactive") == 10)
        closing = in_a_loop_of_its_own(lambda: engine.close(drain=drain))
        await bench.until(lambda: engine._worker.stopping)
        bench.runner.gate.set()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(closing.join)
    if drain:
        assert [list(end.token_ids) for end in ends] == [heard(ids(n), 5) for n in range(10)]  # type: ignore[union-attr]
    else:
        assert [type(end) for end in ends] == [EngineClosed] * 10
    assert bench.runner.closed


async def test_loops_that_start_and_close_one_engine_at_once_agree():
    """vllm-project/vllm#17385: whoever comes while it ends gets an answer or a clear error, and nobody hangs."""
    bench = Bench(SMALL)
    answered: list[object] = []

    async def serve() -> None:
        for number in range(5):
            try:
                await bench.engine.start()
                answer = await bench.engine.complete(ids(number), greedy(3))
                answered.append(list(answer.token_ids) == heard(ids(number), 3))
            except EngineClosed:
                pass

    async def end() -> None:
        for _ in range(5):
            await bench.engine.close()

    threads = [in_a_loop_of_its_own(work) for work in (serve, serve, end, serve)]
    await asyncio.to_thread(lambda: [thread.join() for thread in threads])
    await bench.engine.start()
    assert list((await bench.engine.complete(ids(1), greedy(3))).token_ids) == heard(ids(1), 3)
    await bench.engine.close()
    assert all(answered)
    assert all(runner.closed for runner in bench.runners)


async def test_the_death_of_the_engine_reaches_whoever_waits_wherever_it_waits():
    """ggml-org/llama.cpp#4185, #6603: a step fails, and those who wait for it are told nothing."""
    bench = Bench(SMALL)
    may_encode = threading.Event()
    async with bench.engine as engine:
        await bench.stand_still()
        running = [asyncio.create_task(engine.complete(ids(n), greedy(5))) for n in range(4)]
        await bench.until(lambda: bench.known("interactive") == 4 and bench.runner.in_step.is_set())
        queued = [asyncio.create_task(engine.complete(ids(n), greedy(5), traffic="bulk")) for n in range(4)]
        several = asyncio.create_task(engine.complete(ids(7), greedy(5, n=3)))
        await bench.until(lambda: bench.known("bulk") == 4 and bench.known("interactive") == 7)
        before_each(bench, "encode_prompt", lambda: may_encode.wait(50))
        in_intake = [asyncio.create_task(engine.complete("text", greedy(5))) for _ in range(3)]
        read = engine.stream(ids(20), greedy(5))
        reading = asyncio.ensure_future(anext(read))
        await asyncio.sleep(0)
        bench.runner.fail_next = True
        bench.runner.gate.set()
        everybody = [*running, *queued, several, reading]
        ends = await asyncio.gather(*everybody, return_exceptions=True)
        assert [type(end) for end in ends] == [EngineDied] * len(everybody)
        assert len({id(end) for end in ends}) == len(everybody)  # one exception belongs to one task
        may_encode.set()
        late = await asyncio.gather(*in_intake, return_exceptions=True)
        assert [type(end) for end in late] == [EngineDied] * 3
        assert [delta async for delta in read] == []  # what has told its error has ended
        await engine.start()
        answers = await asyncio.gather(*(engine.complete(ids(n), greedy(5)) for n in range(10)))
        assert [list(answer.token_ids) for answer in answers] == [heard(ids(n), 5) for n in range(10)]


async def test_those_who_wait_for_a_model_that_cannot_be_loaded_are_told():
    """ggml-org/llama.cpp#4185: likewise before the first step."""
    may_fail = threading.Event()

    def open_model(config: EngineConfig) -> Any:
        assert may_fail.wait(50)
        raise OSError("disk")

    engine = LocalEngine(open_model)
    tasks = [asyncio.create_task(engine.complete(ids(n), greedy(1))) for n in range(3)]
    tasks += [asyncio.create_task(engine.start()) for _ in range(2)]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    may_fail.set()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(end) for end in ends] == ["the model could not be loaded: OSError: disk"] * 5
