"""What the engine tells of itself: each request's way as events, each step, and the figures of `stats`."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import defaultdict
from typing import Any

import anyio
import pytest
from engine_lab import BULK, INTERACTIVE, VOCABULARY, Bench, heard

from orchestra.localengine import EngineConfig, LocalEngine, SamplingParams
from orchestra.localengine.errors import EngineClosed, EngineDied, EngineError, ModelFileError
from orchestra.localengine.events import (
    EngineFailed,
    EngineStarted,
    EngineStopped,
    FirstToken,
    RequestCancelled,
    RequestDisplaced,
    RequestEvent,
    RequestFailed,
    RequestFinished,
    RequestQueued,
    RequestStarted,
    StepRan,
)

SMALL = EngineConfig(block_size=4, max_num_seqs=4, step_tokens=16, interactive_slots=1)
ENDS = (RequestFinished, RequestCancelled, RequestFailed)


def greedy(max_tokens: int, **options: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, **options)


def ids(number: int, length: int = 6) -> list[int]:
    return [(31 * number + place) % (VOCABULARY - 2) + 2 for place in range(length)]


def listened(bench: Bench) -> list[Any]:
    """All events of the engine but those of its steps, as they come."""
    seen: list[Any] = []
    bench.engine.events.subscribe(lambda event: None if isinstance(event, StepRan) else seen.append(event))
    return seen


def kinds(events: list[Any]) -> list[type]:
    return [type(event) for event in events]


# One request's way


async def test_a_request_is_told_from_the_queue_to_its_end():
    bench = Bench(SMALL)
    seen = listened(bench)
    async with bench.engine as engine:
        answer = await engine.complete(ids(1), greedy(5), traffic="bulk")
    assert kinds(seen) == [
        EngineStarted,
        RequestQueued,
        RequestStarted,
        FirstToken,
        RequestFinished,
        EngineStopped,
    ]
    began, queued, started, first, finished, _ = seen
    assert (began.model, began.blocks, began.block_size) == ("fake", 64, 4)
    assert (queued.prompt_tokens, queued.max_tokens) == (6, 5)
    assert (started.queue, started.cached_tokens) == (answer.timing.queue, 0)
    assert first.ttft == answer.timing.ttft
    assert (finished.reason, finished.usage, finished.timing) == ("length", answer.usage, answer.timing)
    assert {event.request_id for event in seen[1:5]} == {queued.request_id}
    assert {(event.traffic, event.completion) for event in seen[1:5]} == {(BULK, 0)}
    assert [event.at for event in seen] == sorted(event.at for event in seen)


async def test_every_completion_of_a_prompt_has_its_own_way():
    bench = Bench(SMALL)
    seen = listened(bench)
    async with bench.engine as engine:
        await engine.complete(ids(1), greedy(5, n=3))
    for kind in (RequestQueued, RequestStarted, FirstToken, RequestFinished):
        assert [event.completion for event in seen if type(event) is kind] == [0, 1, 2]
    assert [event.cached_tokens for event in seen if type(event) is RequestStarted] == [0, 4, 4]


async def test_who_asks_hears_of_that_request_alone():
    bench = Bench(SMALL)
    mine: list[Any] = []
    async with bench.engine as engine:
        others = [asyncio.create_task(engine.complete(ids(n), greedy(8))) for n in range(3)]
        await engine.complete(ids(9), greedy(5), on_event=mine.append)
        async with engine.stream(ids(8), greedy(5), on_event=mine.append) as stream:
            async for _ in stream:
                pass
        await asyncio.gather(*others)
    assert kinds(mine) == [RequestQueued, RequestStarted, FirstToken, RequestFinished] * 2
    assert len({event.request_id for event in mine}) == 2


async def test_a_displaced_request_says_so_and_goes_on():
    bench = Bench(EngineConfig(block_size=4, max_num_seqs=2, interactive_slots=0, step_tokens=16))
    seen = listened(bench)
    async with bench.engine as engine:
        await bench.stand_still()
        bulk = [asyncio.create_task(engine.complete(ids(n), greedy(30), traffic="bulk")) for n in range(2)]
        await bench.until(lambda: bench.known("bulk") == 2)
        await bench.run_on(3)  # by now both are computed
        urgent = asyncio.create_task(engine.complete(ids(9), greedy(3)))
        await bench.until(lambda: bench.known("interactive") == 1)
        bench.runner.gate.set()
        await asyncio.gather(urgent, *bulk)
        displaced = [event for event in seen if isinstance(event, RequestDisplaced)]
        assert len(displaced) == engine.stats()["displacements"] >= 1
    one = displaced[0]
    assert (one.traffic, one.displacements) == (BULK, 1)
    its = kinds([event for event in seen if getattr(event, "request_id", None) == one.request_id])
    assert its.count(RequestStarted) == its.count(FirstToken) == 1
    assert its[0] is RequestQueued
    assert its[-1] is RequestFinished


async def test_giving_up_is_told_with_what_was_drawn():
    bench = Bench(SMALL)
    seen = listened(bench)
    async with bench.engine as engine:
        bench.runner.closes_at = 3
        stream = engine.stream(ids(1), greedy(200))
        await anext(stream)
        await bench.until(lambda: not bench.runner.gate.is_set() and bench.runner.in_step.is_set())
        waiting = [asyncio.create_task(engine.complete(ids(n), greedy(5), traffic="bulk")) for n in range(9)]
        await bench.until(lambda: bench.engine.stats()["waiting"]["bulk"] == 9)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await stream.aclose()
        bench.runner.gate.set()
        await bench.idle()
    ended = {event.traffic: event for event in seen if isinstance(event, RequestCancelled)}
    assert ended[INTERACTIVE].output_tokens >= 1
    assert ended[BULK].output_tokens == 0
    assert kinds([event for event in seen if getattr(event, "traffic", None) is BULK]) == [
        *[RequestQueued] * 9,
        *[RequestCancelled] * 9,
    ]


async def test_who_gives_up_during_a_step_gets_none_of_it():
    """sgl-project/sglang#34112, #34149: the token of the step that runs is delivered after the cancel."""
    bench = Bench(SMALL)
    mine: list[Any] = []
    async with bench.engine as engine:
        await bench.stand_still()
        stream = engine.stream(ids(1), greedy(5), on_event=mine.append)
        reading = asyncio.ensure_future(anext(stream, None))
        await bench.until(bench.runner.in_step.is_set)
        await stream.aclose()
        bench.runner.gate.set()
        await bench.idle()
        assert await reading is None
    assert kinds(mine) == [RequestQueued, RequestStarted, RequestCancelled]
    assert mine[-1].output_tokens == 0


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_happens_each_request_is_queued_once_and_ends_once(seed: int):
    bench = Bench(SMALL, blocks=24)
    seen = listened(bench)
    rng = random.Random(seed)

    async def one(number: int) -> None:
        turns = rng.choice([None, 0, 3, 30])
        params = greedy(rng.randint(1, 12), n=rng.choice([1, 1, 3]))
        task = asyncio.create_task(
            bench.engine.complete(
                ids(number, rng.randint(1, 20)), params, traffic=rng.choice(["interactive", "bulk"])
            )
        )
        for _ in range(turns or 0):
            await asyncio.sleep(0)
        if turns is not None:
            task.cancel()
        await asyncio.wait([task])

    async with bench.engine:
        await bench.engine.complete("warm", greedy(1))
        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(one, number)
        await bench.idle()
    ways: defaultdict[int, list[type]] = defaultdict(list)
    for event in seen:
        if isinstance(event, RequestEvent):
            ways[event.request_id].append(type(event))
    assert len(ways) > 20
    order = [RequestQueued, RequestStarted, FirstToken]
    for way in ways.values():
        *before, end = [kind for kind in way if kind is not RequestDisplaced]
        assert end in ENDS
        assert before == order[: len(before)]
        assert before


# Its ends


async def test_text_that_cannot_be_made_is_told_with_the_error():
    bench = Bench()
    seen = listened(bench)
    async with bench.engine as engine:
        engine._worker.ready.result().tokenizer.token_bytes = {}.__getitem__
        with pytest.raises(EngineError) as caught:
            await engine.complete(ids(1), greedy(8))
        await bench.idle()
    assert seen[-2].error is caught.value
    assert kinds(seen)[-2:] == [RequestFailed, EngineStopped]


async def test_the_engines_death_is_told_after_that_of_all_its_requests():
    bench = Bench(SMALL)
    seen = listened(bench)
    async with bench.engine as engine:
        await bench.stand_still()
        tasks = [asyncio.create_task(engine.complete(ids(n), greedy(5))) for n in range(10)]
        await bench.until(lambda: bench.known("interactive") == 10)
        bench.runner.fail_next = True
        bench.runner.gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(engine._worker.join)
        assert kinds(seen)[-11:] == [RequestFailed] * 10 + [EngineFailed]
        assert all(isinstance(event.error, EngineDied) for event in seen[-11:])
        await engine.start()
        assert kinds(seen)[-1] is EngineStarted


async def test_closing_fails_what_is_left_and_then_is_told():
    bench = Bench(SMALL)
    seen = listened(bench)
    async with bench.engine as engine:
        await bench.stand_still()
        task = asyncio.create_task(engine.complete(ids(1), greedy(200)))
        await bench.until(lambda: RequestQueued in kinds(seen))
        closing = asyncio.create_task(engine.close())
        await asyncio.sleep(0)
        bench.runner.gate.set()
        await closing
        with pytest.raises(EngineClosed):
            await task
    assert kinds(seen)[-2:] == [RequestFailed, EngineStopped]


async def test_a_model_that_cannot_be_loaded_is_told():
    def open_model(config: EngineConfig) -> Any:
        raise ModelFileError("truncated")

    engine = LocalEngine(open_model)
    seen: list[Any] = []
    engine.events.subscribe(seen.append)
    with pytest.raises(ModelFileError) as caught:
        await engine.start()
    while not seen:  # noqa: ASYNC110 - the waiter is told first
        await asyncio.sleep(0.001)
    assert kinds(seen) == [EngineFailed]
    assert seen[0].error is caught.value


# Subscribers


async def test_subscribers_run_in_the_engines_thread_with_no_lock_held():
    """A lock held around the call would make these calls wait for ever."""
    bench = Bench(SMALL)
    threads = set()

    def look(event: object) -> None:
        threads.add(threading.current_thread().name)
        bench.engine.stats()
        bench.engine.steps()
        bench.engine.events.subscribe(id)()

    stop = bench.engine.events.subscribe(look)
    async with bench.engine as engine:
        await asyncio.gather(*(engine.complete(ids(n), greedy(5)) for n in range(6)))
        stop()
    assert threads == {"orchestra-engine"}


async def test_a_subscriber_that_fails_harms_neither_the_others_nor_the_engine(caplog: pytest.LogCaptureFixture):
    bench = Bench(SMALL)

    def broken(event: object) -> None:
        raise RuntimeError("broken subscriber")

    bench.engine.events.subscribe(broken)
    seen = listened(bench)
    async with bench.engine as engine:
        answer = await engine.complete(ids(1), greedy(5), on_event=broken)
    assert list(answer.token_ids) == heard(ids(1), 5)
    assert kinds(seen)[-2:] == [RequestFinished, EngineStopped]
    assert "a subscriber failed on StepRan" in caplog.text


async def test_one_that_leaves_hears_no_more():
    bench = Bench(SMALL)
    first: list[Any] = []
    stop = bench.engine.events.subscribe(first.append)
    second = listened(bench)
    async with bench.engine as engine:
        await engine.complete(ids(1), greedy(2))
        await bench.idle()
        stop()
        stop()
        heard_so_far = len(first)
        await engine.complete(ids(2), greedy(2))
    assert len(first) == heard_so_far
    assert kinds(second).count(RequestFinished) == 2


async def test_where_nobody_listens_no_event_is_made(monkeypatch: pytest.MonkeyPatch):
    def made(*_: object, **__: object) -> None:
        raise AssertionError("an event for nobody")

    for kind in (EngineStarted, StepRan, RequestQueued, RequestStarted, FirstToken, RequestFinished):
        monkeypatch.setattr(f"orchestra.localengine.service.telemetry.{kind.__name__}", made)
    async with Bench(SMALL).engine as engine:
        await engine.complete(ids(1), greedy(5))


async def test_no_event_holds_a_prompt_or_an_answer():
    bench = Bench(SMALL)
    seen: list[Any] = []
    bench.engine.events.subscribe(seen.append)
    async with bench.engine as engine:
        answer = await engine.complete("my-secret-prompt", greedy(9))
    told = repr(seen)
    assert "secret" not in told
    assert str(list(answer.token_ids)) not in told
    assert str(answer.token_ids) not in told


# Steps and statistics


async def test_steps_tell_rows_tokens_blocks_and_time():
    bench = Bench(SMALL, blocks=32)
    seen: list[Any] = []
    bench.engine.events.subscribe(seen.append)
    async with bench.engine as engine:
        await asyncio.gather(
            engine.complete(ids(1, 30), greedy(5), traffic="bulk"), engine.complete(ids(2, 10), greedy(5))
        )
        await bench.idle()
        steps = engine.steps()
    assert [event.step for event in seen if isinstance(event, StepRan)] == steps
    for step in steps:
        assert step.blocks == 32
        assert step.free_blocks + step.held_interactive + step.held_bulk == 32  # these two share none
        assert step.cached_interactive + step.cached_bulk <= step.free_blocks
        assert step.occupancy == (step.interactive + step.bulk) / 4
        assert 0 < step.occupancy <= 1
    assert max(step.held_bulk for step in steps) == 9
    assert max(step.held_interactive for step in steps) == 4
    assert steps[-1].cached_interactive or steps[-1].cached_bulk


async def test_the_figures_are_by_class_and_plain_data():
    bench = Bench(SMALL)
    async with bench.engine as engine:
        before = engine.stats()
        assert before["ttft"] == {c: {"p50": None, "p95": None, "count": 0} for c in ("interactive", "bulk")}
        assert before["cache_hit_rate"] == {"interactive": None, "bulk": None}
        assert before["occupancy"] is before["predicted_over_actual"] is None
        for traffic in ("interactive", "bulk", "bulk"):
            await engine.complete(ids(1, 9), greedy(5), traffic=traffic)
        after = await bench.idle()
    assert json.loads(json.dumps(after)) == after
    assert [after["ttft"][c]["count"] for c in ("interactive", "bulk")] == [1, 2]
    assert [after["per_token"][c]["count"] for c in ("interactive", "bulk")] == [4, 8]
    assert 0 <= after["per_token"]["bulk"]["p50"] <= after["per_token"]["bulk"]["p95"]
    assert after["prompt_tokens"] == {"interactive": 9, "bulk": 18}
    assert after["cached_tokens"] == {"interactive": 0, "bulk": 16}
    assert after["cache_hit_rate"] == {"interactive": 0.0, "bulk": 16 / 18}
    assert after["occupancy"] == 1 / 4
    assert after["predicted_over_actual"] > 0
    blocks = after["blocks"]
    assert (blocks["total"], blocks["free"], blocks["held"]) == (64, 64, {"interactive": 0, "bulk": 0})
    assert sum(blocks["cached"].values()) >= 3
    assert after["slots"] == 4


async def test_evictions_are_counted():
    bench = Bench(SMALL, blocks=16)
    async with bench.engine as engine:
        for number in range(8):
            await engine.complete(ids(40 * number, 20), greedy(5))
        assert engine.stats()["evictions"] > 0
