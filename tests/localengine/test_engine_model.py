"""The engine over the real small model."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
import torch
from devices import a_gpu_is_found, here
from engine_lab import Pause

from orchestra.localengine import EngineConfig, LocalEngine, SamplingParams
from orchestra.localengine.errors import EngineError
from orchestra.localengine.service.loading import model_opener
from orchestra.localengine.step import RowInput

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

PROMPTS = [
    "The days of the week are Monday, Tuesday,",
    "1, 2, 3, 4, 5, 6,",
    "Once upon a time there was a",
    "Water boils at",
    "def add(a, b):\n    return",
    "The opposite of hot is",
    "To be or not to be, that is the",
    "The alphabet begins with A, B, C, D,",
    "Roses are red, violets are",
    "January, February, March, April,",
    "import numpy as",
    "The sun rises in the east and sets in the",
    "Two plus two equals",
    "Dear Sir or Madam,\n\nI am writing to",
    "<html>\n<head>\n<title>",
    "The first president of the United States was George",
]
GREEDY = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
CONFIG = EngineConfig(kv_bytes=64 << 20, step_tokens=64, threads=2)


@pytest.fixture(scope="module")
def model(model_read_once):
    """The loaded model, which each test's engine takes over and leaves open."""
    with a_gpu_is_found():
        loaded = model_opener("smollm2-135m")(here(CONFIG))
    yield loaded
    loaded.runner.close()


class Kept:
    """A runner that its engine cannot close."""

    def __init__(self, runner):
        for name in ("num_blocks", "block_size", "run", "submit", "collect"):
            if hasattr(runner, name):
                setattr(self, name, getattr(runner, name))

    def close(self):
        pass


def engine_of(model, config=CONFIG):
    return LocalEngine(lambda _: dataclasses.replace(model, runner=Kept(model.runner), config=None), config)


def margins(model, prompts, outputs) -> list[float]:
    """How far the likeliest token was ahead of the next at each place of the outputs."""
    margins = []
    for prompt, output in zip(prompts, outputs, strict=True):
        history, parts = (*prompt, *output[:-1]), []
        blocks = tuple(range(-(-len(history) // CONFIG.block_size)))
        for start in range(0, len(history), CONFIG.step_tokens):
            chunk = history[start : start + CONFIG.step_tokens]
            parts += model.runner.logits([RowInput(0, 0, chunk, start, blocks, None, 0)])
        top = torch.cat(parts)[len(prompt) - 1 :].topk(2).values
        margins += (top[:, 0] - top[:, 1]).tolist()
    return margins


async def test_it_knows_the_capital_of_france(model):
    async with engine_of(model) as engine:
        question = [{"role": "user", "content": "What is the capital of France?"}]
        answer = await engine.complete(question, SamplingParams(max_tokens=20, temperature=0))
    assert answer.text == "The capital of France is Paris."
    assert (answer.finish_reason, answer.usage.prompt_tokens) == ("stop", 37)


async def test_sixteen_prompts_together_answer_as_each_alone(model):
    async with engine_of(model) as engine:
        alone = [await engine.complete(prompt, GREEDY) for prompt in PROMPTS]
        classes = ["interactive", "bulk"]
        together = await asyncio.gather(
            *(engine.complete(prompt, GREEDY, traffic=classes[n % 2]) for n, prompt in enumerate(PROMPTS))
        )
        prompts = [engine.encode(prompt) for prompt in PROMPTS]
        occupancy = max(step.interactive + step.bulk for step in engine.steps())
    outputs = [answer.token_ids for answer in alone]
    assert min(margins(model, prompts, outputs)) > 1e-3, "too close to call: choose another prompt"
    assert [answer.token_ids for answer in together] == outputs
    assert occupancy >= 8


async def test_displaced_and_chunked_the_answer_is_the_same(model):
    prompt = "The quick brown fox jumps over the lazy dog. " * 6 + "The quick brown"
    params = dataclasses.replace(GREEDY, max_tokens=12)
    async with engine_of(model) as engine:
        alone = await engine.complete(prompt, params)
        assert min(margins(model, [engine.encode(prompt)], [alone.token_ids])) > 1e-3
    config = dataclasses.replace(CONFIG, max_num_seqs=1, interactive_slots=0, step_tokens=24)
    async with engine_of(model, config) as engine:
        pause = Pause(engine._worker._model.runner, lambda: engine.stats()["output_tokens"] >= 4)
        bulk = asyncio.create_task(engine.complete(prompt, params, traffic="bulk"))
        await asyncio.to_thread(pause.reached.wait, 50)
        urgent = asyncio.create_task(engine.complete("Water boils at", dataclasses.replace(GREEDY, max_tokens=2)))
        while not engine.stats()["waiting"]["interactive"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        pause.over.set()
        await urgent
        assert (await bulk).token_ids == alone.token_ids
        assert engine.stats()["displacements"] == 1


async def test_a_seed_gives_the_same_draw_in_any_company(model):
    drawn = SamplingParams(max_tokens=8, temperature=1.0, seed=7, ignore_eos=True)
    other = SamplingParams(max_tokens=8, temperature=1.0, ignore_eos=True)
    async with engine_of(model) as engine:
        alone = await engine.complete(PROMPTS[2], drawn)
        among = await asyncio.gather(
            engine.complete(PROMPTS[2], drawn), *(engine.complete(prompt, other) for prompt in PROMPTS[:4])
        )
    assert among[0].token_ids == alone.token_ids


@pytest.mark.usefixtures("model_read_once")
async def test_a_cache_too_small_for_one_block_is_told():
    engine = LocalEngine.load("smollm2-135m", here(EngineConfig(kv_bytes=1000)))
    with a_gpu_is_found(), pytest.raises(EngineError, match="raise kv_bytes"):
        await engine.start()
