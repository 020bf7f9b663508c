from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest
from engine_lab import VOCABULARY, Bench, heard, spoken

from orchestra.localengine import EngineConfig, LocalEngine, SamplingParams, Usage
from orchestra.localengine.errors import (
    EngineBusy,
    EngineClosed,
    EngineDied,
    EngineError,
    ModelFileError,
    PromptError,
    PromptTooLong,
)

SMALL = EngineConfig(block_size=4, max_num_seqs=4, step_tokens=16, interactive_slots=1)


def greedy(max_tokens: int, **options) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, **options)


def ids(number: int, length: int = 6) -> list[int]:
    return [(31 * number + place) % (VOCABULARY - 2) + 2 for place in range(length)]


# Answers


async def test_a_stream_and_a_completion_give_the_same_answer():
    async with Bench().engine as engine:
        deltas = [delta async for delta in engine.stream("hello", greedy(20))]
        whole = await engine.complete("hello", greedy(20))
    expected = heard([ord(char) for char in "hello"], 20)
    assert [token for delta in deltas for token in delta.token_ids] == list(whole.token_ids) == expected
    assert "".join(delta.text for delta in deltas) == whole.text == spoken(expected)
    *before, last = deltas
    assert all(delta.finish_reason is delta.usage is delta.timing is None for delta in before)
    assert last.finish_reason == whole.finish_reason == "length"
    assert (last.usage, whole.usage) == (Usage(5, 20, cached_tokens=0), Usage(5, 20, cached_tokens=4))
    assert 0 <= whole.timing.queue <= whole.timing.ttft == whole.timing.tokens[0]
    assert list(whole.timing.tokens) == sorted(whole.timing.tokens)
    assert len(whole.timing.tokens) == 20


async def test_text_ids_and_messages_are_prompts():
    async with Bench().engine as engine:
        prompts = ["hi", [104, 105], (104, 105), [{"role": "user", "content": "hi"}]]
        assert [engine.encode(prompt) for prompt in prompts] == [[104, 105]] * 4
        answers = {(await engine.complete(prompt, greedy(4))).text for prompt in prompts}
    assert len(answers) == 1


async def test_an_end_token_ends_the_output_unless_it_is_ignored():
    prompt = next(ids(n) for n in range(998) if 4 < len(heard(ids(n), 30)) < 25)
    cut = heard(prompt, 30)
    async with Bench().engine as engine:
        whole = await engine.complete(prompt, greedy(30))
        assert (list(whole.token_ids), whole.finish_reason) == (cut, "stop")
        assert whole.text == spoken(cut)
        on = await engine.complete(prompt, greedy(30, ignore_eos=True))
        assert (len(on.token_ids), on.finish_reason) == (30, "length")
        stop = await engine.complete(prompt, greedy(30, stop_token_ids=(cut[1],)))
        assert (list(stop.token_ids), stop.finish_reason) == (cut[:2], "stop")


async def test_a_stop_string_ends_the_output_and_is_not_shown():
    output = heard(ids(1), 12)
    text = spoken(output)
    async with Bench().engine as engine:
        deltas = [delta async for delta in engine.stream(ids(1), greedy(12, stop=(text[4:6],)))]
        unmatched = await engine.complete(ids(1), greedy(12, stop=("never said",)))
    assert "".join(delta.text for delta in deltas) == text[:4]
    assert deltas[-1].finish_reason == "stop"
    assert deltas[-1].usage.completion_tokens == 6
    assert (unmatched.text, unmatched.finish_reason) == (text, "length")


async def test_without_max_tokens_the_output_fills_the_context():
    async with Bench(context=40).engine as engine:
        whole = await engine.complete(ids(3), SamplingParams(temperature=0, ignore_eos=True))
    assert len(whole.token_ids) == 34
    assert whole.finish_reason == "length"


async def test_a_slow_reader_gets_merged_deltas():
    bench = Bench()
    async with bench.engine as engine:
        stream = engine.stream(ids(5), greedy(40, ignore_eos=True))
        first = await anext(stream)
        await bench.idle()
        rest = [delta async for delta in stream]
    assert len(rest) <= 1  # none where the first read came so late that it took all
    assert sum(len(delta.token_ids) for delta in [first, *rest]) == 40


async def test_running_dry_and_running_again():
    """vllm-project/vllm#17385: the second batch on the same engine hangs."""
    bench = Bench()
    async with bench.engine as engine:
        for _ in range(3):
            await asyncio.gather(*(engine.complete(ids(n), greedy(5)) for n in range(6)))
            await bench.idle()
    assert bench.runner.closed


async def test_interactive_displaces_bulk_and_every_answer_is_whole():
    bench = Bench(EngineConfig(block_size=4, max_num_seqs=2, interactive_slots=0, step_tokens=16))
    async with bench.engine as engine:
        await bench.stand_still()
        bulk = [
            asyncio.create_task(engine.complete(ids(n), greedy(60, ignore_eos=True), traffic="bulk"))
            for n in range(2)
        ]
        await bench.until(lambda: bench.known("bulk") == 2)
        await bench.run_on(3)  # by now both are computed
        asked = asyncio.create_task(engine.complete(ids(9), greedy(3)))
        await bench.until(lambda: bench.known("interactive") == 1)
        await bench.run_on(12)
        urgent = await asked
        assert not any(task.done() for task in bulk)
        bench.runner.gate.set()
        assert list(urgent.token_ids) == heard(ids(9), 3)
        for task in bulk:
            assert len((await task).token_ids) == 60
        assert engine.stats()["displacements"] >= 1


# Bad input


@pytest.mark.parametrize("max_tokens", [8, None])
async def test_a_prompt_longer_than_the_context_is_refused_at_submit_with_both_numbers(max_tokens):
    """sgl-project/mini-sglang: a prompt that is too long is only logged, and its caller waits for ever."""
    async with Bench(context=40).engine as engine:
        with pytest.raises(PromptTooLong, match=r"41 tokens.*context holds 40" if not max_tokens else "41.*40"):
            await engine.complete(ids(1, 41), SamplingParams(max_tokens=max_tokens))
        with pytest.raises(PromptTooLong, match=r"35 prompt tokens and max_tokens of 8 make 43.*context holds 40"):
            await engine.complete(ids(1, 35), greedy(8))
        assert (await engine.complete(ids(1, 32), greedy(8))).usage.total_tokens <= 40


async def test_a_request_that_outgrows_the_whole_cache_is_refused_and_the_next_is_served():
    config = EngineConfig(block_size=4, max_num_seqs=4, interactive_slots=1)
    async with Bench(config, blocks=8, context=1000).engine as engine:
        with pytest.raises(PromptTooLong, match=r"KV cache \(kv_bytes\) holds 32"):
            await engine.complete(ids(1), greedy(100))
        with pytest.raises(PromptTooLong, match="holds 24"):  # a quarter is kept for interactive
            await engine.complete(ids(1), greedy(20), traffic="bulk")
        assert (await engine.complete(ids(1), greedy(20))).usage.prompt_tokens == 6


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "empty"),
        ("", "empty"),
        ([5, VOCABULARY], f"token id {VOCABULARY} at place 1 is outside the vocabulary"),
        ([-1], "token id -1 at place 0"),
        ([5, "a"], "a prompt is text, a list of token ids, or a list of chat messages"),
        (b"bytes", "not bytes"),
    ],
)
async def test_a_bad_prompt_is_refused_with_the_reason(prompt, words):
    async with Bench().engine as engine:
        with pytest.raises(PromptError, match=words):
            await engine.complete(prompt, greedy(1))
        with pytest.raises(PromptError, match=words):
            engine.encode(prompt)
        assert engine.stats()["finished"] == 0


async def test_an_unknown_class_is_refused():
    async with Bench().engine as engine:
        with pytest.raises(ValueError, match="urgent"):
            engine.stream("x", traffic="urgent")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_num_seqs", 0),
        ("max_num_seqs", True),
        ("step_tokens", 2.5),
        ("step_tokens", 8),
        ("block_size", -1),
        ("kv_bytes", 0),
        ("threads", 0),
        ("max_waiting", 0),
        ("ttft_target_ms", 0),
        ("tpot_target_ms", float("nan")),
        ("bulk_min_share", 1),
        ("bulk_min_share", -0.1),
        ("interactive_slots", 16),
        ("interactive_slots", "2"),
    ],
)
def test_a_setting_out_of_range_is_named(setting, value):
    with pytest.raises(ValueError, match=setting):
        EngineConfig(**{setting: value})


async def test_a_full_waiting_queue_refuses_its_class_only():
    config = EngineConfig(block_size=4, max_num_seqs=1, interactive_slots=0, max_waiting=2, step_tokens=8)
    bench = Bench(config)
    async with bench.engine as engine:
        await engine.complete("warm", greedy(1))
        bench.runner.gate.clear()
        tasks = [asyncio.create_task(engine.complete(ids(0), greedy(2), traffic="bulk"))]
        await asyncio.to_thread(bench.runner.in_step.wait, 50)
        tasks += [asyncio.create_task(engine.complete(ids(n), greedy(2), traffic="bulk")) for n in (1, 2)]
        await bench.until(lambda: bench.known("bulk") == 3)
        with pytest.raises(EngineBusy, match="2 bulk requests wait already"):
            await engine.complete(ids(3), greedy(2), traffic="bulk")
        assert engine.stats()["refused"] == 1
        tasks.append(asyncio.create_task(engine.complete(ids(4), greedy(2))))
        await bench.until(lambda: bench.known("interactive") == 1)
        bench.runner.gate.set()
        await asyncio.gather(*tasks)


# Threads and loops


async def test_several_event_loops_and_threads_share_one_engine():
    bench = Bench(SMALL, blocks=32)
    wrong: list[object] = []

    def other(number: int) -> None:
        async def main() -> None:
            answers = await asyncio.gather(
                *(bench.engine.complete(ids(10 * number + n), greedy(8)) for n in range(5))
            )
            for n, answer in enumerate(answers):
                if list(answer.token_ids) != heard(ids(10 * number + n), 8):
                    wrong.append(answer)

        asyncio.run(main())

    async with bench.engine:
        threads = [threading.Thread(target=other, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        await asyncio.to_thread(lambda: [thread.join() for thread in threads])
        stats = await bench.idle()
    assert not wrong
    assert stats["finished"] == 20


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="a thread has no clock of its own here")
async def test_an_idle_engine_uses_no_processor():
    bench = Bench()
    async with bench.engine as engine:
        await engine.complete("warm", greedy(3))
        clock = time.pthread_getcpuclockid(engine._worker._thread.ident)  # whatever else this process does
        before = time.clock_gettime(clock)
        await asyncio.sleep(0.3)
        assert time.clock_gettime(clock) - before < 0.05


# Start, end, death


async def test_the_first_request_starts_the_engine():
    bench = Bench()
    assert bench.engine.stats() == {"state": "stopped"}
    with pytest.raises(EngineClosed, match="start it first"):
        bench.engine.encode("x")
    assert (await bench.engine.complete("x", greedy(2))).text
    assert bench.engine.stats()["state"] == "running"
    await bench.engine.close()
    assert bench.engine.stats() == {"state": "stopped"}


async def test_several_wait_for_one_start_and_one_that_gives_up_leaves_the_others():
    release = threading.Event()
    bench = Bench()
    opened = []

    def slowly(config):
        opened.append(config)
        assert release.wait(50)
        return bench.open_model(config)

    engine = LocalEngine(slowly, bench.config)
    first, second = (asyncio.create_task(engine.start()) for _ in range(2))
    await asyncio.sleep(0.02)
    assert engine.stats() == {"state": "loading"}
    first.cancel()
    await asyncio.sleep(0.02)
    release.set()
    await second
    assert len(opened) == 1
    await engine.close()


async def test_a_start_that_was_given_up_can_be_made_again():
    release = threading.Event()
    bench = Bench()

    def slowly(config):
        assert release.wait(50)
        return bench.open_model(config)

    engine = LocalEngine(slowly, bench.config)
    entering = asyncio.create_task(engine.__aenter__())
    await asyncio.sleep(0.02)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    release.set()
    async with engine:
        assert list((await engine.complete(ids(1), greedy(5))).token_ids) == heard(ids(1), 5)
    await bench.until(lambda: len(bench.runners) == 2 and all(runner.closed for runner in bench.runners))


async def test_a_model_that_cannot_be_loaded_is_told_and_may_be_tried_again():
    bench = Bench()
    failures: list[Exception] = [ModelFileError("truncated"), OSError("disk")]

    def open_model(config):
        if failures:
            raise failures.pop(0)
        return bench.open_model(config)

    engine = LocalEngine(open_model, bench.config)
    with pytest.raises(ModelFileError, match="truncated"):
        async with engine:
            pass
    with pytest.raises(EngineDied, match="could not be loaded: OSError: disk"):
        await engine.complete("x", greedy(1))
    async with engine:
        await engine.complete("x", greedy(1))


def test_weights_that_do_not_exist_are_told_at_once(tmp_path):
    with pytest.raises(ModelFileError, match="does not exist"):
        LocalEngine.load(str(tmp_path / "none.gguf"))


async def test_a_failing_step_reaches_every_waiter_and_the_engine_starts_again():
    bench = Bench(SMALL)
    async with bench.engine as engine:
        await engine.complete("warm", greedy(1))
        bench.runner.gate.clear()
        tasks = [asyncio.create_task(engine.complete(ids(n), greedy(5))) for n in range(10)]
        await bench.until(lambda: bench.known("interactive") == 10)
        bench.runner.fail_next = True
        bench.runner.gate.set()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in errors] == [EngineDied] * 10
        assert len({id(error) for error in errors}) == 10
        assert "ArithmeticError: the model broke" in str(errors[0])
        assert isinstance(errors[0].__cause__, ArithmeticError)
        with pytest.raises(EngineDied, match="start the engine again"):
            await engine.complete("x", greedy(1))
        assert bench.runners[0].closed
        await engine.start()
        assert list((await engine.complete(ids(1), greedy(5))).token_ids) == heard(ids(1), 5)
        assert len(bench.runners) == 2


async def test_text_that_cannot_be_made_fails_its_request_only():
    bench = Bench()
    async with bench.engine as engine:
        broken = heard(ids(1), 3)[2]
        tokenizer = engine._worker.ready.result().tokenizer
        spell = tokenizer.token_bytes

        def token_bytes(token_id):
            if token_id == broken:
                raise KeyError(token_id)
            return spell(token_id)

        tokenizer.token_bytes = token_bytes
        other = asyncio.create_task(engine.complete(ids(2), greedy(8)))
        with pytest.raises(EngineError, match="could not be turned into text"):
            await engine.complete(ids(1), greedy(8))
        assert list((await other).token_ids) == heard(ids(2), 8)
        assert (await bench.idle())["failed"] == 1


async def test_closing_ends_those_who_wait():
    bench = Bench(seconds=0.01)
    async with bench.engine as engine:
        tasks = [asyncio.create_task(engine.complete(ids(n), greedy(200))) for n in range(20)]
        await asyncio.sleep(0.05)
        await engine.close()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in errors] == [EngineClosed] * 20
        assert bench.runner.closed
        with pytest.raises(EngineClosed):
            await engine.complete("x", greedy(1))


async def test_draining_finishes_what_is_at_hand_and_takes_no_more():
    bench = Bench(SMALL, seconds=0.002)
    async with bench.engine as engine:
        await bench.stand_still()
        tasks = [asyncio.create_task(engine.complete(ids(n), greedy(8))) for n in range(12)]
        await bench.until(lambda: bench.known("interactive") == 12)
        closing = asyncio.create_task(engine.close(drain=True))
        await asyncio.sleep(0)
        with pytest.raises(EngineClosed):
            await engine.complete("late", greedy(1))
        bench.runner.gate.set()
        for number, answer in enumerate(await asyncio.gather(*tasks)):
            assert list(answer.token_ids) == heard(ids(number), 8)
        await closing


async def test_a_dropped_engine_ends_its_thread():
    bench = Bench()
    await bench.engine.complete("x", greedy(1))
    runner, thread = bench.runner, bench.engine._worker._thread
    del bench
    gc.collect()
    await asyncio.to_thread(thread.join, 50)
    assert runner.closed


async def test_an_engine_lives_as_long_as_its_streams():
    bench = Bench(seconds=0.002)
    stream = bench.engine.stream(ids(1), greedy(30, ignore_eos=True))
    got = list((await anext(stream)).token_ids)
    thread = bench.engine._worker._thread
    del bench
    gc.collect()
    async for delta in stream:
        got += delta.token_ids
    assert len(got) == 30
    del stream
    gc.collect()
    await asyncio.to_thread(thread.join, 50)
    assert not thread.is_alive()


# What it tells


async def test_steps_and_statistics_add_up():
    bench = Bench(SMALL)
    async with bench.engine as engine:
        await asyncio.gather(
            engine.complete(ids(1, 30), greedy(5, ignore_eos=True), traffic="bulk"),
            engine.complete(ids(2, 10), greedy(5, ignore_eos=True)),
        )
        stats, steps = await bench.idle(), engine.steps()
    assert stats["state"] == "running"
    assert (stats["model"], stats["context"], stats["threads"]) == ("fake", 512, 1)
    assert (stats["finished"], stats["output_tokens"], stats["prefill_tokens"]) == (2, 10, 40)
    assert stats["steps"] == len(steps)
    assert sum(step.prefill_tokens + step.decode_rows for step in steps) == 40 + 8
    assert sum(step.interactive for step in steps) >= 5
    assert sum(step.bulk for step in steps) >= 6
    assert all(step.seconds >= 0 and step.predicted > 0 for step in steps)
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    assert not any(stats["running"].values())
