"""The prefix cache under a tiny real model: with a hit the logits are what they are without one.

Every block is filled with NaN when it is handed out, so that whatever is read before it is written shows.
"""

from __future__ import annotations

import functools
import random
from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest
import torch
from devices import model_runner, poison
from engine_lab import BULK, INTERACTIVE, Lab
from token_lab import SPEC, TinyBench, random_weights, tiny_scores
from torch import Tensor

from orchestra.localengine import SamplingParams
from orchestra.localengine.errors import ParameterError
from orchestra.localengine.request import Completion
from orchestra.localengine.step import RowInput, RowOutput

SIZE = 4
GREEDY = SamplingParams(temperature=0)


class LogitsRunner:
    """The tiny model for the lab: greedy draws. It keeps the logits of every request, by position."""

    def __init__(self, blocks: int) -> None:
        self._runner = model_runner(SPEC, random_weights(), num_blocks=blocks, block_size=SIZE, threads=1)
        self.logits: dict[int, dict[int, Tensor]] = defaultdict(dict)
        self.poison(range(blocks))

    def poison(self, blocks: Sequence[int]) -> None:
        poison(self._runner, blocks)

    def run(self, rows: Sequence[RowInput], abandon: Callable[[], bool] | None = None) -> list[RowOutput]:
        outputs = []
        for row, part in zip(rows, self._runner.logits(rows), strict=True):
            self.logits[row.request_id] |= dict(enumerate(part, row.start))
            if row.sampling is not None:
                outputs.append(RowOutput(row.request_id, row.epoch, int(part[-1].argmax())))
        return outputs


@functools.cache
def run_alone(prompt: tuple[int, ...], max_tokens: int) -> list[int]:
    """One token a step, in a pool of its own, with no cache and nobody beside it."""
    runner, history = LogitsRunner(64), list(prompt)
    table, start = list(range(64)), 0
    for _ in range(max_tokens):
        (output,) = runner.run([RowInput(0, 0, history[start:], start, table, GREEDY, 0)])
        assert output.token_id is not None
        top = runner.logits[0][len(history) - 1].topk(2).values
        assert top[0] - top[1] > 1e-4, "too close to tell a fault from rounding: choose another seed"
        start = len(history)
        history.append(output.token_id)
    return history[len(prompt) :]


def lab(blocks: int, **options: float) -> Lab:
    return Lab(
        blocks=blocks,
        block_size=SIZE,
        runner=LogitsRunner(blocks),
        answer=lambda prompt, max_tokens: run_alone(tuple(prompt), max_tokens),
        **options,  # type: ignore[arg-type]
    )


def tokens(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(2, SPEC.vocab_size) for _ in range(count)]


@pytest.mark.parametrize("length", range(1, 4 * SIZE + 1))
def test_cold_and_warm_logits_are_the_same_for_every_length(length: int):
    """tenstorrent/vllm#415: greedy text differed between a hit and a miss."""
    bench = lab(40)
    for _ in range(2):
        bench.add(INTERACTIVE, tokens(length), max_tokens=6)
        bench.run()
    cold, warm = bench.runner.logits[0], bench.runner.logits[1]
    assert min(warm) == (length - 1) // SIZE * SIZE
    for position, logits in warm.items():
        torch.testing.assert_close(logits, cold[position], atol=1e-5, rtol=0)
    assert bench.outputs[0] == bench.outputs[1]


@pytest.mark.lab_too
@pytest.mark.parametrize("chunk", [3, 4, 7, 64])
def test_a_hit_in_the_middle_of_a_prompt_of_whatever_chunks(chunk: int):
    bench = lab(40, tokens=chunk, slots=3)
    for extra in (0, 1, 9):
        bench.add(BULK, [*tokens(13), *tokens(extra, seed=extra)], max_tokens=3)
        bench.run()
    cold = bench.runner.logits[0]
    for number in (1, 2):
        assert min(bench.runner.logits[number]) == 12
        torch.testing.assert_close(bench.runner.logits[number][12], cold[12], atol=1e-5, rtol=0)


@pytest.mark.parametrize("seed", range(3))
def test_a_storm_in_a_full_pool_says_what_each_would_say_alone(seed: int):
    """vllm-project/vllm#37076, #39146: under eviction, cancels and retries some outputs were others' or zeros."""
    rng = random.Random(seed)
    bench = lab(14, slots=4, tokens=24, interactive_blocks=3, max_displacements=2)
    families = [tokens(16, seed=number) for number in range(3)]
    for _ in range(120):
        while len(bench.state.waiting[BULK]) + len(bench.state.waiting[INTERACTIVE]) < 3:
            prompt = [
                *rng.choice(families)[: rng.choice([4, 8, 9, 15, 16])],
                *tokens(rng.choice([0, 1, 4]), seed=9),
            ]
            bench.add(rng.choice([BULK, INTERACTIVE]), prompt, max_tokens=rng.randint(1, 8))
        if rng.random() < 0.2:
            bench.cancel(rng.choice([seq.request_id for seq in bench.state.sequences()]))
        bench.step()
    bench.run()
    assert len(bench.outputs) > 30
    assert bench.state.pool.evictions > 30
    assert any(plan.displaced for plan in bench.plans)
    assert any(plan.matched for plan in bench.plans)


# What is asked about the prompt


PROMPT = "What is asked of a prompt must be computed."


@pytest.mark.lab_too
async def test_prompt_logprobs_are_the_same_cold_and_warm():
    """vllm-project/vllm#3251, #8268, #13105, #42245: with a hit they crashed, or were another request's memory."""
    bench = TinyBench()
    asked = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, prompt_logprobs=2)
    async with bench.engine as engine:
        cold = await engine.complete(PROMPT, asked)
        plain = await engine.complete(PROMPT, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
        warm = await engine.complete(PROMPT, asked)
    assert plain.usage.cached_tokens == (len(PROMPT) - 1) // SIZE * SIZE
    assert (cold.usage.cached_tokens, warm.usage.cached_tokens) == (0, 0), "all of it is needed"
    assert cold.token_ids == plain.token_ids == warm.token_ids
    assert_same_scores(cold, warm)
    scores = tiny_scores(bench.encode(PROMPT))
    told = [token.logprob for token in cold.prompt_logprobs or ()]
    expected = [scores[place, token].item() for place, token in enumerate(bench.encode(PROMPT)[1:])]
    assert told == pytest.approx(expected, abs=1e-4)


def assert_same_scores(one: Completion, other: Completion) -> None:
    assert one.prompt_logprobs
    assert other.prompt_logprobs
    for a, b in zip(one.prompt_logprobs, other.prompt_logprobs, strict=True):
        assert (a.token_id, a.rank, a.offset) == (b.token_id, b.rank, b.offset)
        assert a.logprob == pytest.approx(b.logprob, abs=1e-5)
        assert [candidate.token_id for candidate in a.top] == [candidate.token_id for candidate in b.top]


async def test_a_salt_that_is_no_text_fails_its_request_and_nothing_else():
    bench = TinyBench()
    async with bench.engine as engine:
        for salt in (7, ["a"], ("a",)):
            with pytest.raises(ParameterError, match="cache_salt is text or None, not"):
                await engine.complete(PROMPT, GREEDY, cache_salt=salt)  # type: ignore[arg-type]
        answer = await engine.complete(PROMPT, SamplingParams(max_tokens=1), cache_salt="a")
    assert answer.usage.cached_tokens == 0
