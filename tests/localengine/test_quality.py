"""What is measured of a model in another precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from token_lab import TinyBench
from torch import Tensor

from orchestra.kernels.linear import int8_fault
from orchestra.localengine import EngineConfig
from orchestra.localengine.quality.comparison import answers_of
from orchestra.localengine.quality.measurement import measure_model

VOCABULARY = 8
MEASURED = pytest.mark.cpu_only("only a CPU's runner is measured")


def bigrams(seed: int, mix: float = 0.0) -> Any:
    """A model whose next token depends on the last one alone; ``mix`` of it is noise of the seed."""
    table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 2
    noise = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2

    def logits(ids: Sequence[int]) -> Tensor:
        return ((1 - mix) * table + mix * noise)[torch.tensor(list(ids))]

    return logits


PASSAGES = [[1, 2, 3, 4, 5, 6, 7], [7, 7, 1]]


def greedy(logits: Any, start: int, count: int) -> list[int]:
    ids = [start]
    for _ in range(count):
        ids.append(int(logits(ids)[-1].argmax()))
    return ids[1:]


def test_a_model_beside_itself_is_the_same() -> None:
    model = bigrams(2)
    outputs = [greedy(model, 3, 5), greedy(model, 4, 2)]
    quality = answers_of(model, PASSAGES, [[3], [4]], outputs).quality(model)
    assert (quality.tokens, quality.output_tokens, quality.same_output) == (8, 7, 7)
    assert quality.perplexity == quality.perplexity_float32
    assert quality.divergence == pytest.approx(0, abs=1e-6)
    assert quality.same_likeliest == 1


def test_another_model_is_judged_as_by_hand() -> None:
    model, other = bigrams(2), bigrams(5, mix=0.6)
    outputs = [greedy(model, 3, 6)]
    quality = answers_of(model, PASSAGES, [[3]], outputs).quality(other)
    divergence, loss, same = 0.0, 0.0, 0
    for passage in PASSAGES:
        for token, following in pairwise(passage):
            own, its = (m([token])[0].double().softmax(0) for m in (model, other))
            divergence += float((own * (own / its).log()).sum())
            loss -= math.log(float(its[following]))
            same += bool(own.argmax() == its.argmax())
    assert quality.divergence == pytest.approx(divergence / 8, rel=1e-4)
    assert quality.perplexity == pytest.approx(math.exp(loss / 8), rel=1e-4)
    assert quality.same_likeliest == same / 8
    assert quality.perplexity != quality.perplexity_float32
    history = [3, *outputs[0]]
    chosen = [int(other([token])[0].argmax()) for token in history[:-1]]
    assert quality.same_output == sum(a == b for a, b in zip(chosen, outputs[0], strict=True))
    assert quality.divergence > 0
    assert 0 <= quality.same_output < 6


@MEASURED
def test_float32_is_timed_and_not_judged() -> None:
    bench, said = TinyBench(blocks=600), []
    found = measure_model(bench.open_model, EngineConfig(block_size=4), said.append)
    assert found.quality is None
    assert list(found.decode_seconds) == [1, 4, 16]
    assert min(found.decode_seconds.values()) > 0
    assert found.prefill_seconds > 0
    assert found.context == 128
    assert said == ["reading the weights, to be kept in float32", "timing its steps"]
    with pytest.raises(RuntimeError, match="closed"):
        bench.runner.logits([])


@MEASURED
@pytest.mark.skipif(int8_fault() is not None, reason=str(int8_fault()))
def test_int8_is_held_against_float32() -> None:
    bench, said = TinyBench(blocks=300), []
    found = measure_model(bench.open_model, EngineConfig(block_size=4, precision="int8"), said.append)
    quality = found.quality
    assert quality is not None
    assert quality.tokens > 1000  # of the tiny model, each is a byte
    assert 0 < quality.divergence < 0.2
    assert quality.perplexity == pytest.approx(quality.perplexity_float32, rel=0.1)
    assert 0.5 < quality.same_likeliest <= 1
    assert 0.5 * quality.output_tokens < quality.same_output <= quality.output_tokens
    assert len(bench.runners) == 2
    assert len(said) == 5


@MEASURED
def test_with_little_cache_fewer_requests_are_timed_at_once() -> None:
    bench = TinyBench(blocks=40)
    assert list(measure_model(bench.open_model, EngineConfig(block_size=4)).decode_seconds) == [1]
    bench = TinyBench(blocks=10)
    found = measure_model(bench.open_model, EngineConfig(block_size=4))
    assert (found.context, list(found.decode_seconds)) == (39, [1])
