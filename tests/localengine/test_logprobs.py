"""Draws with extras, and what is told of them: alone, in company, and through the engine."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from engine_lab import Pause
from token_lab import SMALL, TinyBench, tiny_scores, tiny_words

from orchestra.localengine import EngineConfig, SamplingParams
from orchestra.localengine.errors import ParameterError
from orchestra.localengine.execution.sampler import draw_and_score, score
from orchestra.localengine.step import DrawExtras

VOCABULARY = 500


def logits(rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(5)) * 2


def some_params(rng: random.Random) -> tuple[SamplingParams, DrawExtras | None]:
    options: dict[str, Any] = {"temperature": rng.choice([0, 0.5, 1, 2])}
    options |= rng.choice([{}, {"min_p": 0.2}, {"top_k": 5}, {"top_p": 0.7}, {"top_k": 9, "min_p": 0.01}])
    options |= rng.choice(
        [{}, {}, {"repetition_penalty": 1.5}, {"frequency_penalty": 0.7, "presence_penalty": -1}]
    )
    options |= rng.choice([{}, {}, {"logit_bias": {3: 5.0, 17: -100}}])
    options |= rng.choice([{}, {"logprobs": 0}, {"logprobs": 4}, {"logprobs": 2, "logprobs_mode": "processed"}])
    history = [rng.randrange(VOCABULARY) for _ in range(rng.randrange(1, 30))]
    mask = bytes(rng.randrange(256) for _ in range(64))
    extras = DrawExtras(
        history=history,
        num_prompt=rng.randrange(len(history) + 1),
        banned=rng.choice([(), (1, 2)]),
        allowed=rng.choice([None, None, lambda: mask]),
    )
    return SamplingParams(**options), rng.choice([None, extras, extras])


@pytest.mark.parametrize("seed", range(20))
def test_a_row_with_extras_is_drawn_and_told_alike_alone_and_among_others(seed: int) -> None:
    rng = random.Random(seed)
    rows = rng.randrange(2, 9)
    params, extras = map(list, zip(*(some_params(rng) for _ in range(rows)), strict=True))
    keys, positions = [rng.getrandbits(64) for _ in range(rows)], [rng.randrange(99) for _ in range(rows)]
    scores = logits(rows)
    together = draw_and_score(scores.clone(), params, keys, positions, extras)
    for i in range(rows):
        alone = draw_and_score(scores[i : i + 1].clone(), [params[i]], [keys[i]], [positions[i]], [extras[i]])
        assert alone == [together[i]]
        assert (together[i][1] is None) == (params[i].logprobs is None)


def test_rows_without_extras_are_not_written_to() -> None:
    scores = logits(3)
    before = scores.clone()
    params = [SamplingParams(), SamplingParams(logit_bias={5: 1.0}), SamplingParams(temperature=0, logprobs=3)]
    draw_and_score(scores, params, [1, 2, 3], [0, 0, 0], [None, None, None])
    assert torch.equal(scores[[0, 2]], before[[0, 2]])
    assert scores[1, 5] == before[1, 5] + 1


def test_raw_is_the_models_own_and_processed_is_what_was_drawn_by() -> None:
    scores = logits(1)
    options: dict[str, Any] = {"temperature": 0.5, "top_k": 3, "logit_bias": {7: 100.0}, "seed": 1, "logprobs": 3}
    ((token, raw),) = draw_and_score(scores.clone(), [SamplingParams(**options)], [1], [0], [None])
    params = SamplingParams(**options, logprobs_mode="processed")
    ((same, processed),) = draw_and_score(scores.clone(), [params], [1], [0], [None])
    assert token == same == 7
    assert raw is not None
    assert processed is not None
    own = scores[0].log_softmax(-1)
    assert raw.logprob == pytest.approx(own[7].item())
    assert [other for other, _ in raw.top] == own.topk(3).indices.tolist()
    assert raw.rank == 1 + int((own > own[7]).sum())
    assert processed.logprob == pytest.approx(0, abs=1e-6)
    assert processed.rank == 1
    assert sum(math.exp(logprob) for _, logprob in processed.top) == pytest.approx(1)


def test_greedy_is_told_after_bias_and_penalties() -> None:
    scores = torch.tensor([[1.0, 0.5, 0.0]])
    params = SamplingParams(temperature=0, presence_penalty=1, logprobs=0, logprobs_mode="processed")
    ((token, told),) = draw_and_score(scores, [params], [0], [0], [DrawExtras(history=(0,), num_prompt=0)])
    assert token == 1
    assert told is not None
    assert told.logprob == pytest.approx(torch.tensor([0.0, 0.5, 0.0]).log_softmax(-1)[1].item())


def test_banned_tokens_are_never_drawn() -> None:
    scores = torch.zeros(1, 3)
    params = [SamplingParams(logit_bias={1: 100.0})]
    drawn = {
        draw_and_score(scores.clone(), params, [key], [0], [DrawExtras(banned=(1,))])[0][0] for key in range(40)
    }
    assert drawn == {0, 2}


def test_targets_are_scored_raw() -> None:
    scores = logits(3)
    told = score(scores.clone(), [4, 5, 6], [0, 2, 1])
    own = scores.log_softmax(-1)
    assert [one.logprob for one in told] == [pytest.approx(own[i, 4 + i].item()) for i in range(3)]
    assert [len(one.top) for one in told] == [0, 2, 1]


# Through the engine

LONG = "abcdefgh" * 4


async def test_logprobs_come_with_each_token_and_know_their_place_in_the_text() -> None:
    # what is found in the prefix cache was computed in other company, and differs in the last bits
    async with TinyBench(replace(SMALL, prefix_cache=False)).engine as engine:
        params = SamplingParams(max_tokens=30, seed=3, logprobs=2, ignore_eos=True)
        whole = await engine.complete("hello", params)
        deltas = [delta async for delta in engine.stream("hello", params)]
        plain = await engine.complete("hello", SamplingParams(max_tokens=30, seed=3, ignore_eos=True))
    assert whole.logprobs is not None
    assert plain.logprobs is None
    assert plain.token_ids == whole.token_ids
    assert [one.token_id for one in whole.logprobs] == list(whole.token_ids)
    assert [one for delta in deltas for one in delta.logprobs or ()] == list(whole.logprobs)
    words = tiny_words()
    octets = b""
    for one in whole.logprobs:
        assert len(one.top) == 2
        assert one.bytes == words[one.token_id]
        # the characters before it, without one that is begun: that is the token's own
        begun = octets.decode("utf-8", "replace") if _whole_characters(octets) else None
        if begun is not None:
            assert one.offset == len(begun)
        assert 0 <= one.offset <= len(whole.text)
        octets += b"" if one.token_id < 2 else one.bytes
    offsets = [one.offset for one in whole.logprobs]
    assert offsets == sorted(offsets)


def _whole_characters(octets: bytes) -> bool:
    try:
        octets.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("tokens", [4, 7, 64])
async def test_prompt_logprobs_do_not_depend_on_how_the_prompt_is_cut(tokens: int) -> None:
    bench = TinyBench(EngineConfig(block_size=4, max_num_seqs=4, step_tokens=tokens, interactive_slots=1))
    async with bench.engine as engine:
        told = await engine.complete(LONG, SamplingParams(max_tokens=2, temperature=0, prompt_logprobs=1))
    assert told.prompt_logprobs is not None
    ids = [*LONG.encode()]
    assert [one.bytes for one in told.prompt_logprobs] == [bytes([octet]) for octet in ids[1:]]
    assert [one.offset for one in told.prompt_logprobs] == list(range(1, len(ids)))
    wanted = tiny_scores(bench.encode(LONG))
    for place, one in enumerate(told.prompt_logprobs, 1):
        assert one.logprob == pytest.approx(wanted[place - 1][one.token_id].item(), abs=1e-5)
        assert one.top[0].logprob == pytest.approx(wanted[place - 1].max().item(), abs=1e-5)


@pytest.mark.lab_too
async def test_prompt_logprobs_survive_displacement() -> None:
    params = SamplingParams(max_tokens=6, temperature=0, prompt_logprobs=0)
    alone = TinyBench()
    async with alone.engine as engine:
        wanted = await engine.complete(LONG, params, traffic="bulk")
    bench = TinyBench(EngineConfig(block_size=4, max_num_seqs=1, step_tokens=5, interactive_slots=0), blocks=12)
    async with bench.engine as engine:
        await engine.start()
        pause = Pause(bench.runner, lambda: bench.runner.steps >= 3)
        bulk = engine.stream(LONG, params, traffic="bulk")
        reading = bench.read(bulk)
        await asyncio.to_thread(pause.reached.wait, 50)
        hurry = SamplingParams(max_tokens=3, temperature=0)
        urgent = asyncio.create_task(engine.complete("hurry", hurry))
        await bench.until(lambda: engine.stats()["waiting"]["interactive"] == 1)
        pause.over.set()
        await urgent
        deltas = await reading
        assert engine.stats()["displacements"] >= 1
    assert deltas[0].prompt_logprobs is not None
    assert wanted.prompt_logprobs is not None
    assert [one.token_id for one in deltas[0].prompt_logprobs] == [one.token_id for one in wanted.prompt_logprobs]
    for ours, one in zip(deltas[0].prompt_logprobs, wanted.prompt_logprobs, strict=True):
        assert ours.logprob == pytest.approx(one.logprob, abs=1e-5)


async def test_penalties_count_prompt_and_output_as_documented() -> None:
    async with TinyBench().engine as engine:
        plain = await engine.complete("aaaa", SamplingParams(max_tokens=40, temperature=0, ignore_eos=True))
        varied = await engine.complete(
            "aaaa", SamplingParams(max_tokens=40, temperature=0, ignore_eos=True, frequency_penalty=2)
        )
    assert len(set(varied.token_ids)) > len(set(plain.token_ids))
    counts = {token: varied.token_ids.count(token) for token in varied.token_ids}
    assert max(counts.values()) <= max(plain.token_ids.count(token) for token in plain.token_ids)


async def test_min_tokens_puts_ends_and_stops_off() -> None:
    async with TinyBench().engine as engine:
        push = {1: 100.0}  # the end token
        ended = await engine.complete("x", SamplingParams(max_tokens=20, temperature=0, logit_bias=push))
        assert (ended.finish_reason, ended.token_ids) == ("stop", (1,))
        later = await engine.complete(
            "x", SamplingParams(max_tokens=20, temperature=0, logit_bias=push, min_tokens=5)
        )
        assert (later.finish_reason, len(later.token_ids)) == ("stop", 6)
        assert 1 not in later.token_ids[:5]
        free = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True, logit_bias={97 + 2: 100.0})
        text = (await engine.complete("x", free)).text
        assert text == "a" * 20
        stopped = await engine.complete(
            "x", SamplingParams(max_tokens=20, temperature=0, logit_bias={99: 100.0}, min_tokens=7, stop=("aa",))
        )
    assert (stopped.text, stopped.finish_reason, len(stopped.token_ids)) == ("a" * 7, "stop", 9)


async def test_a_bias_on_a_token_that_is_none_is_refused() -> None:
    async with TinyBench().engine as engine:
        for act in (engine.complete("x", SamplingParams(logit_bias={10**6: 1})),):
            with pytest.raises(ParameterError, match="outside the vocabulary") as caught:
                await act
            assert caught.value.field == "logit_bias"
        with pytest.raises(ParameterError, match="outside the vocabulary"):
            engine.check("x", SamplingParams(logit_bias={10**6: 1}))
