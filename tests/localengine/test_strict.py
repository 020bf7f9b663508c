"""Strict mode: the same bits for a request in any company, in any order, however it is divided.

vllm #6735, #23138: greedy answers change with the batch, because a row's sums are then added up in another order.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from model_lab import GROUP_OF_THREE, GROUP_OF_TWO, poisoned, prompt, random_weights, row
from token_lab import TinyBench
from torch import Tensor

from orchestra.kernels.activation import gelu_tanh_mul, silu_mul
from orchestra.kernels.linear import RowByRow, int8_fault, linear
from orchestra.kernels.linear import torch_cpu as linear_cpu
from orchestra.localengine import EngineConfig, SamplingParams
from orchestra.localengine.execution.runner import Runner
from orchestra.localengine.models.row_stable import in_small_pieces, packing_stably
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.precision import Precision
from orchestra.localengine.request import Completion
from orchestra.localengine.weights.files import ModelFiles

pytestmark = pytest.mark.cpu_only("strict is for CPUs")

GEMMA = replace(
    GROUP_OF_TWO,
    sliding_window=24,
    sliding_layers=frozenset({0}),
    activation="gelu_tanh",
    attention_softcap=5.0,
    logit_softcap=10.0,
    embedding_scale=8.0,
)
BLOCK = 4


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def strict_runner(spec: ModelSpec, threads: int, precision: Precision = "float32") -> Runner:
    weights = random_weights(spec)
    runner = Runner(
        spec, weights, num_blocks=400, block_size=BLOCK, threads=threads, precision=precision, strict=True
    )
    return poisoned(runner)


class Requests:
    """Some texts, and where each has its blocks."""

    def __init__(self, runner: Runner, lengths: Sequence[int], rng: random.Random) -> None:
        self.runner = runner
        self.ids = [prompt(length, runner.spec, seed=length) for length in lengths]
        free = rng.sample(range(runner.num_blocks), runner.num_blocks)
        self.tables = [[free.pop() for _ in range(-(-length // BLOCK))] for length in lengths]

    def compute(self, which: Sequence[int], cuts: Sequence[Sequence[int]]) -> dict[int, Tensor]:
        """The logits of the requests of ``which``, together; each is cut before the tokens of its ``cuts``."""
        chunks = {}
        for i, places in zip(which, cuts, strict=True):
            ends = [*places, len(self.ids[i])]
            chunks[i] = [range(start, end) for start, end in zip([0, *places], ends, strict=True)]
        parts: dict[int, list[Tensor]] = {i: [] for i in which}
        while any(chunks.values()):
            now = [(i, own.pop(0)) for i, own in chunks.items() if own]
            rows = [row(i, self.ids[i][c.start : c.stop], c.start, self.tables[i]) for i, c in now]
            for (i, _), logits in zip(now, self.runner.logits(rows), strict=True):
                parts[i].append(logits)
        return {i: torch.cat(own) for i, own in parts.items()}


NEEDS_INT8 = pytest.mark.skipif(int8_fault() is not None, reason=str(int8_fault()))


CASES = [
    pytest.param(GROUP_OF_TWO, 2, "float32", id="two"),
    pytest.param(GROUP_OF_THREE, 3, "float32", id="three"),
    pytest.param(GEMMA, 1, "float32", id="gemma"),
    pytest.param(GROUP_OF_THREE, 2, "int8", id="int8", marks=NEEDS_INT8),
]


@pytest.mark.parametrize(("spec", "threads", "precision"), CASES)
def test_every_logit_has_the_same_bits(spec: ModelSpec, threads: int, precision: Precision) -> None:
    """Alone, among 3, among 31 others, in any order, and however the prompts are cut: the very same logits."""
    rng = random.Random(threads)
    runner = strict_runner(spec, threads, precision)
    requests = Requests(runner, [1, 2, 33, *(rng.randrange(3, 40) for _ in range(29))], rng)
    alone = {i: requests.compute([i], [[]])[i] for i in range(32)}
    for size in (4, 4, 32):
        which = rng.sample(range(32), size)
        lengths = [len(requests.ids[i]) for i in which]
        cuts = [sorted(rng.sample(range(1, n), min(n - 1, rng.randrange(4)))) for n in lengths]
        for i, logits in requests.compute(which, cuts).items():
            assert torch.equal(logits, alone[i])


def test_without_packed_products_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch lacks oneDNN's operators, ordinary products serve, whose rows change each other's bits."""
    monkeypatch.setattr(linear_cpu, "_onednn_works", lambda: False)
    requests = Requests(strict_runner(GROUP_OF_TWO, 2), range(3, 20), random.Random(1))
    alone = {i: requests.compute([i], [[]])[i] for i in range(17)}
    for which in ([3, 2, 9], range(17)):
        for i, logits in requests.compute(which, [[1], [2], *([] for _ in which)][: len(which)]).items():
            assert torch.equal(logits, alone[i])


def test_every_draw_is_the_same_with_the_same_score() -> None:
    runner = strict_runner(GROUP_OF_TWO, 2)
    requests = Requests(runner, range(5, 37), random.Random(7))
    params = [
        SamplingParams(temperature=0, logprobs=3),
        SamplingParams(temperature=0.7, top_p=0.8, logprobs=2, logprobs_mode="processed"),
        SamplingParams(temperature=1.3, min_p=0.05, logprobs=0),
        SamplingParams(top_k=5),
    ]
    rows = [
        row(i, ids, 0, table, params[i % 4], noise_key=i * 2**60 + 1)
        for i, (ids, table) in enumerate(zip(requests.ids, requests.tables, strict=True))
    ]
    alone = [runner.run([one])[0] for one in rows]
    assert runner.run(rows) == alone
    assert runner.run(rows[::-1]) == alone[::-1]
    assert runner.run(rows[9:12]) == alone[9:12]


# The parts


@pytest.mark.parametrize("activation", [silu_mul, gelu_tanh_mul])
def test_activations_in_small_pieces_have_the_same_bits(activation: Callable[[Tensor], Tensor]) -> None:
    """torch divides a large one among threads wherever that makes equal parts, in the middle of a row."""
    torch.set_num_threads(3)
    pieces = in_small_pieces(activation)
    for width in (100, 1536):
        x = torch.randn(300, 2 * width, generator=torch.Generator().manual_seed(1))
        whole = pieces(x)
        torch.testing.assert_close(whole, activation(x))
        for rows in (1, 2, 13, 160, 163, 299):
            assert torch.equal(pieces(x[:rows]), whole[:rows])
            assert torch.equal(pieces(x[-rows:]), whole[-rows:])


def test_where_products_are_not_stable_each_row_is_multiplied_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def company(x: Tensor, packed: Tensor) -> Tensor:
        return x @ packed.T + 1e-6 * len(x)

    generator = torch.Generator().manual_seed(2)
    weight, x = torch.randn(24, 16, generator=generator), torch.randn(40, 16, generator=generator)
    monkeypatch.setattr(linear_cpu, "_onednn_works", lambda: True)
    monkeypatch.setattr(linear_cpu, "_onednn_pack", lambda own: own.to_mkldnn())
    monkeypatch.setattr(linear_cpu, "_onednn_linear", lambda x, packed: company(x, packed.to_dense()))
    packed = packing_stably(linear_cpu.pack)(weight)
    assert isinstance(packed, RowByRow)
    whole = linear(x, packed)
    torch.testing.assert_close(whole, x @ weight.T, atol=1e-4, rtol=1e-4)
    assert all(torch.equal(linear(x[i : i + 3], packed), whole[i : i + 3]) for i in range(38))


# Through the engine

CONFIG = EngineConfig(block_size=4, max_num_seqs=32, step_tokens=48, interactive_slots=1, strict=True)
TEXTS = [
    "hello there",
    "once upon a time there was a king",
    "x" * 70,
    *(f"text number {i} " * 3 for i in range(29)),
]


async def ask(bench: TinyBench, texts: Sequence[str], seeded: bool = False) -> list[Completion]:
    params = SamplingParams(max_tokens=6, temperature=0, logprobs=4, prompt_logprobs=1, ignore_eos=True)
    if seeded:
        params = replace(params, temperature=1.0, seed=5)
    return await asyncio.gather(
        *(
            bench.engine.complete(
                text, params, traffic=("bulk", "interactive")[len(text) % 2], cache_salt=text[:1]
            )
            for text in texts
        )
    )


def told(answer: Completion) -> tuple[object, ...]:
    return answer.token_ids, answer.logprobs, answer.prompt_logprobs


@pytest.mark.parametrize("seeded", [False, True])
async def test_an_answer_and_its_scores_are_the_same_in_any_company(seeded: bool) -> None:
    """Alone, among 3 and among 31 others that come in another order, with chunks, cache hits and displacement."""
    bench = TinyBench(CONFIG, blocks=300)
    async with bench.engine:
        alone = {text: told((await ask(bench, [text], seeded))[0]) for text in TEXTS}
    assert len({answer[0] for answer in alone.values()}) > 20
    for blocks, texts in ((300, TEXTS[:4]), (300, TEXTS), (90, TEXTS[::-1])):
        bench = TinyBench(CONFIG, blocks=blocks)
        async with bench.engine:
            for _ in range(2):  # the second time, much of the prompts is in the cache
                answers = await ask(bench, texts, seeded)
                assert {text: told(one) for text, one in zip(texts, answers, strict=True)} == {
                    text: alone[text] for text in texts
                }


# The real model


@pytest.fixture(scope="module")
def small_model(model_files: ModelFiles) -> Iterator[tuple[Runner, list[list[int]]]]:
    from orchestra.localengine.quality.prose import BEGINNINGS, PASSAGES

    weights = dict(model_files.weights)
    runner = Runner(model_files.spec, weights, num_blocks=80, block_size=16, threads=2, strict=True)
    words = " ".join(PASSAGES).split()
    texts = [*BEGINNINGS, *(" ".join(words[8 * i : 9 * i + 5]) for i in range(24))]
    yield runner, [model_files.tokenizer.encode(text, special=False) for text in texts]
    runner.close()


@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_small_model_has_the_same_bits(small_model: tuple[Runner, list[list[int]]]) -> None:
    runner, texts = small_model
    ids = texts[-1]
    others = texts[:31]
    assert len(ids) > 16
    blocks = -(-max(map(len, texts)) // 16)
    tables = [range(i * blocks, (i + 1) * blocks) for i in range(32)]
    (alone,) = runner.logits([row(31, ids, 0, tables[31])])
    for count in (3, 31):
        rows = [row(i, text, 0, tables[i]) for i, text in enumerate(others[:count])]
        assert torch.equal(runner.logits([*rows, row(31, ids, 0, tables[31])])[-1], alone)
    pieces = [
        runner.logits([row(31, ids[start:stop], start, tables[31]), row(0, others[0], 0, tables[0])])[0]
        for start, stop in ((0, 7), (7, 8), (8, len(ids)))
    ]
    assert torch.equal(torch.cat(pieces), alone)
    # and they are those of the ordinary way, but for the last bits
    runner._strict = False
    (usual,) = runner.logits([row(31, ids, 0, tables[31])])
    runner._strict = True
    torch.testing.assert_close(usual, alone, atol=1e-3, rtol=0)
    best = usual.topk(2).values
    clear = best[:, 0] - best[:, 1] > 1e-3
    assert torch.equal(usual.argmax(-1)[clear], alone.argmax(-1)[clear])
    assert math.isfinite(alone.abs().max().item())
