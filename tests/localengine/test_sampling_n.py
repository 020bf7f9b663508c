"""Several completions of one prompt: they share its blocks, and each is what it would be alone."""

from __future__ import annotations

import asyncio
import gc

import pytest
from engine_lab import BULK, INTERACTIVE, Lab, Pause
from token_lab import TinyBench

from orchestra.localengine import EngineConfig, SamplingParams
from orchestra.localengine.errors import EngineBusy, EngineError

PROMPT = "abcdefgh" * 5  # ten blocks


async def test_each_completion_is_drawn_as_by_a_seed_of_its_own() -> None:
    async with TinyBench().engine as engine:
        whole = await engine.complete(PROMPT, SamplingParams(n=3, seed=7, max_tokens=9))
        alone = [await engine.complete(PROMPT, SamplingParams(seed=7 + i, max_tokens=9)) for i in range(3)]
    together = [whole, *whole.others]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert [one.text for one in together] == [one.text for one in alone]
    assert [one.finish_reason for one in together] == [one.finish_reason for one in alone]
    assert all(one.usage.prompt_tokens == len(PROMPT) for one in together)
    assert len({one.token_ids for one in together}) == 3


@pytest.mark.lab_too
async def test_the_prompt_is_computed_once() -> None:
    bench = TinyBench()
    async with bench.engine as engine:
        await engine.complete(PROMPT, SamplingParams(n=4, seed=1, max_tokens=6, ignore_eos=True))
        await bench.idle()
    # 40 tokens of prompt once; each other completion computes its last block of it again, then 5 tokens each
    assert bench.runner.tokens == 40 + 3 * 4 + 4 * 5


async def test_a_stream_of_several_ends_with_the_last() -> None:
    async with TinyBench().engine as engine:
        params = SamplingParams(n=3, seed=2, max_tokens=12, logprobs=1, prompt_logprobs=0)
        deltas = [delta async for delta in engine.stream(PROMPT, params)]
        whole = await engine.complete(PROMPT, params)
    for index, one in enumerate([whole, *whole.others]):
        mine = [delta for delta in deltas if delta.index == index]
        assert "".join(delta.text for delta in mine) == one.text
        assert tuple(token for delta in mine for token in delta.token_ids) == one.token_ids
        assert [delta.finish_reason for delta in mine if delta.finish_reason] == [one.finish_reason]
        assert sum(len(delta.logprobs or ()) for delta in mine) == len(one.token_ids)
        assert (one.prompt_logprobs is None) == (index > 0)
    assert sum(len(one.prompt_logprobs or ()) for one in [whole, *whole.others]) == len(PROMPT) - 1


@pytest.mark.parametrize("how", ["close", "drop", "cancel"])
async def test_giving_up_frees_all_of_them(how: str) -> None:
    bench = TinyBench()
    async with bench.engine as engine:
        stream = engine.stream(PROMPT, SamplingParams(n=6, max_tokens=200, ignore_eos=True))
        await anext(stream)
        if how == "close":
            await stream.aclose()
        elif how == "cancel":
            task = asyncio.ensure_future(bench.read(stream))
            await asyncio.sleep(0)
            task.cancel()
        else:
            del stream
            gc.collect()
        await bench.idle()
        stats = engine.stats()
        assert stats["cancelled"] == 6
        assert not any(stats["running"].values())
        assert (
            await engine.complete("x", SamplingParams(max_tokens=2, ignore_eos=True))
        ).finish_reason == "length"


async def test_more_completions_than_slots_and_displacement() -> None:
    bench = TinyBench(EngineConfig(block_size=4, max_num_seqs=3, step_tokens=16, interactive_slots=0), blocks=40)
    params = SamplingParams(n=7, seed=5, max_tokens=20, ignore_eos=True)
    async with bench.engine as engine:
        await engine.start()
        pause = Pause(bench.runner, lambda: bench.runner.steps > 8)
        bulk = asyncio.create_task(engine.complete(PROMPT, params, traffic="bulk"))
        await asyncio.to_thread(pause.reached.wait, 50)
        hurry = SamplingParams(max_tokens=5, temperature=0)
        urgent = [asyncio.create_task(engine.complete("hurry", hurry)) for _ in range(3)]
        await bench.until(lambda: engine.stats()["waiting"]["interactive"] == 3)
        pause.over.set()
        answers = await asyncio.gather(*urgent)
        assert len({one.token_ids for one in answers}) == 1
        whole = await bulk
        assert engine.stats()["displacements"] >= 1
        alone = [
            await engine.complete(PROMPT, SamplingParams(seed=5 + i, max_tokens=20, ignore_eos=True))
            for i in range(7)
        ]
        await bench.idle()
    assert [one.token_ids for one in [whole, *whole.others]] == [one.token_ids for one in alone]


async def test_what_waits_is_counted() -> None:
    bench = TinyBench(
        EngineConfig(block_size=4, max_num_seqs=1, interactive_slots=0, step_tokens=16, max_waiting=2)
    )
    async with bench.engine as engine:
        first = engine.stream(PROMPT, SamplingParams(n=3, max_tokens=200, ignore_eos=True))
        await anext(first)
        assert engine.stats()["waiting"]["interactive"] == 2
        with pytest.raises(EngineBusy):
            await engine.complete("x")
        await first.aclose()
        await bench.idle()
        await engine.complete("x", SamplingParams(max_tokens=1))


async def test_one_that_fails_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = TinyBench()
    async with bench.engine as engine:
        failing = SamplingParams(n=3, seed=1, max_tokens=50, ignore_eos=True)

        def broken(self: object, text: str) -> str:
            raise ValueError("no text")

        with monkeypatch.context() as patch:
            patch.setattr("orchestra.localengine.text.assembler.TextAssembler._emit", broken)
            with pytest.raises(EngineError, match="could not be turned into text"):
                await engine.complete(PROMPT, failing)
        await bench.idle()
        assert (await engine.complete(PROMPT, failing)).others


# The books


def test_the_blocks_of_a_prompt_are_lent_while_a_relative_runs() -> None:
    lab = Lab(blocks=20, block_size=4, slots=4)
    first = lab.add(INTERACTIVE, 17, max_tokens=9)
    lab.step()
    second = lab.add(INTERACTIVE, lab.asked[0][0], max_tokens=9, kin=first)
    plan = lab.step()
    assert second.block_table[:4] == first.block_table[:4]
    assert lab.rows(plan)[1] == 1  # 16 of 17 tokens were there
    assert lab.state.pool.num_free == 20 - 5 - 1
    lab.cancel(0)
    lab.state.check()
    assert lab.state.pool.num_free == 20 - 5
    lab.run()
    assert lab.state.pool.num_free == 20


def test_interactive_displaces_a_whole_family_where_only_together_they_free_enough() -> None:
    lab = Lab(blocks=14, block_size=4, slots=6)
    first = lab.add(BULK, 32, max_tokens=4)
    lab.step()
    for _ in range(2):
        lab.add(BULK, lab.asked[0][0], max_tokens=4, kin=first)
    lab.step()
    assert [len(seq.block_table) for seq in lab.state.running[BULK].values()] == [9, 8, 8]
    assert lab.state.pool.num_free == 3  # 8 blocks of the prompt are shared
    lab.add(INTERACTIVE, 40, max_tokens=2)
    plan = lab.step()
    assert len(plan.displaced) == 3
    assert 3 in plan.admitted
    lab.run()
    assert len(lab.outputs) == 4
