"""Faults that users of other engines met with seeds, neighbours and log probabilities. Ours has none of them."""

from __future__ import annotations

import asyncio
import math

import pytest
import torch
from engine_lab import Pause
from model_lab import GROUP_OF_TWO, prompt, random_weights, row
from token_lab import TinyBench

from orchestra.kernels.linear import int8_fault
from orchestra.kernels.sampling import log_probabilities
from orchestra.localengine import EngineConfig, SamplingParams
from orchestra.localengine.execution.runner import Runner
from orchestra.localengine.execution.sampler import draw_and_score

PROMPT = "a text of some length, " * 2
SEEDED = SamplingParams(max_tokens=20, temperature=1.0, seed=11, ignore_eos=True)
UNSEEDED = SamplingParams(max_tokens=20, temperature=1.0, ignore_eos=True)


async def test_a_seed_counts_whoever_else_has_one() -> None:
    """vllm #51226: a seed was ignored as soon as one request of the batch had none."""
    bench = TinyBench()
    others = [UNSEEDED, SamplingParams(max_tokens=20, seed=12), SamplingParams(max_tokens=20, temperature=0)]
    async with bench.engine as engine:
        alone = await engine.complete(PROMPT, SEEDED)
        assert (await engine.complete(PROMPT, SEEDED)).token_ids == alone.token_ids
        for params in others:
            among = await asyncio.gather(
                engine.complete(PROMPT, SEEDED), *(engine.complete(f"{i} other", params) for i in range(3))
            )
            assert among[0].token_ids == alone.token_ids
        unseeded = {(await engine.complete(PROMPT, UNSEEDED)).token_ids for _ in range(3)}
    assert len(unseeded) == 3


@pytest.mark.lab_too
async def test_a_seed_counts_after_displacement() -> None:
    """vllm #51226: what is drawn after a request was put off and computed again is what it would have been."""
    bench = TinyBench()
    async with bench.engine as engine:
        alone = await engine.complete(PROMPT, SEEDED)
    config = EngineConfig(block_size=4, max_num_seqs=1, step_tokens=7, interactive_slots=0, prefix_cache=False)
    bench = TinyBench(config, blocks=40)
    async with bench.engine as engine:
        await engine.start()
        pause = Pause(bench.runner, lambda: engine.stats()["output_tokens"] >= 5)
        bulk = asyncio.create_task(engine.complete(PROMPT, SEEDED, traffic="bulk"))
        await asyncio.to_thread(pause.reached.wait, 50)
        urgent = asyncio.create_task(engine.complete("hurry", UNSEEDED))
        await bench.until(lambda: engine.stats()["waiting"]["interactive"] == 1)
        pause.over.set()
        await urgent
        assert (await bulk).token_ids == alone.token_ids
        assert engine.stats()["displacements"] >= 1


@pytest.mark.skipif(int8_fault() is not None, reason=str(int8_fault()))
def test_in_int8_a_loud_neighbour_changes_nothing() -> None:
    """Dynamic int8 takes one scale for the batch: there a neighbour's large activations round a row to zeros."""
    weights = random_weights(GROUP_OF_TWO)
    weights["model.embed_tokens.weight"][7] *= 10_000  # a token that is loud wherever it comes
    for layer in range(GROUP_OF_TWO.num_layers):
        weights[f"model.layers.{layer}.mlp.down_proj.weight"] *= 1 + 50 * (torch.arange(64) == 3)[:, None]
    runner = Runner(GROUP_OF_TWO, weights, num_blocks=40, block_size=4, precision="int8")
    quiet = [prompt(length, seed=length) for length in (1, 6, 9, 1)]
    quiet = [[token for token in ids if token != 7] for ids in quiet]
    rows = [row(i, ids, 0, range(i * 3, i * 3 + 3)) for i, ids in enumerate(quiet)]
    alone = [runner.logits([one])[0] for one in rows]
    loud = [row(9, [7] * 8, 0, range(20, 23)), row(8, [7], 0, [30])]
    for together in (rows + loud, loud[::-1] + rows):
        by_id = dict(zip([one.request_id for one in together], runner.logits(together), strict=True))
        assert all(torch.equal(by_id[i], logits) for i, logits in enumerate(alone))
        assert by_id[9].isfinite().all()


async def test_a_stop_that_never_matches_changes_nothing() -> None:
    """vllm #11089: the text was empty as soon as a stop string was given."""
    async with TinyBench().engine as engine:
        for stop in (("never said",), ("\n\n\n", "zzzz"), ("x" * 300,)):
            plain = SamplingParams(max_tokens=25, seed=3, ignore_eos=True)
            stopped = SamplingParams(max_tokens=25, seed=3, ignore_eos=True, stop=stop)
            wanted, whole = await engine.complete("tell me", plain), await engine.complete("tell me", stopped)
            streamed = "".join([delta.text async for delta in engine.stream("tell me", stopped)])
            assert wanted.text
            assert whole.text == streamed == wanted.text
            assert (whole.finish_reason, whole.stop) == ("length", None)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.5}, {"top_k": 7}, {"top_p": 0.6}, {"min_p": 0.1}])
def test_raw_and_processed_log_probabilities_each_add_up_to_one(options: dict[str, float]) -> None:
    """Users take the one for the other: raw is before temperature and filters, processed after them."""
    vocabulary = 90  # as many as may be asked for
    logits = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(3)) * 3
    told = {}
    for mode in ("raw", "processed"):
        params = SamplingParams(**options, seed=5, logprobs=vocabulary, logprobs_mode=mode)  # type: ignore[arg-type]
        ((token, score),) = draw_and_score(logits.clone(), [params], [5], [0], [None])
        assert score is not None
        assert len(score.top) == vocabulary
        assert sum(math.exp(value) for _, value in score.top) == pytest.approx(1, abs=1e-5)
        told[mode] = token, score
    assert told["raw"][0] == told["processed"][0], "what is told does not change what is drawn"
    token = told["raw"][0]
    assert told["raw"][1].logprob == pytest.approx(logits[0].log_softmax(-1)[token].item(), abs=1e-5)
    filters = {
        "temperature": torch.tensor([options.get("temperature", 1.0)]),
        "top_k": torch.tensor([int(options.get("top_k", 0))]),
        "top_p": torch.tensor([options.get("top_p", 1.0)]),
        "min_p": torch.tensor([options.get("min_p", 0.0)]),
    }
    drawn_by = log_probabilities(logits, **filters)[0]
    assert told["processed"][1].logprob == pytest.approx(drawn_by[token].item(), abs=1e-5)
    if options == {"temperature": 0.5}:
        assert told["processed"][1].logprob == pytest.approx(
            (logits[0] / 0.5).log_softmax(-1)[token].item(), abs=1e-5
        )
    assert (drawn_by == -math.inf).any() == bool(options.keys() - {"temperature"})
