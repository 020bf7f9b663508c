"""The runner and the Llama forward pass, against an independent plain forward without pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pytest
import torch
from devices import contents, model_runner
from hypothesis import given, settings
from hypothesis import strategies as st
from model_lab import GREEDY, GROUP_OF_THREE, GROUP_OF_TWO, poisoned, prompt, random_weights, row
from torch import Tensor

from orchestra.kernels.linear import torch_cpu as linear_cpu
from orchestra.localengine.errors import ModelFileError
from orchestra.localengine.execution.runner import Runner
from orchestra.localengine.gpu.runner import GpuRunner
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.request import SamplingParams
from orchestra.localengine.step import RowInput, StepRunner
from orchestra.localengine.weights.files import ModelFiles


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def plain_forward(spec: ModelSpec, w: dict[str, Tensor], ids: Sequence[int]) -> Tensor:
    """Logits [len(ids), vocab] of one sequence, all at once: no pages, no cache, nothing fused."""

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + spec.rms_norm_eps) * weight

    def rope(x: Tensor) -> Tensor:  # [n, heads, d]
        d = spec.head_dim
        angle = torch.arange(len(ids)).float()[:, None] * spec.rope_theta ** (-torch.arange(0, d, 2).float() / d)
        cos, sin = (torch.cat([f(angle)] * 2, -1)[:, None] for f in (torch.cos, torch.sin))
        return x * cos + torch.cat([-x[..., d // 2 :], x[..., : d // 2]], -1) * sin

    n, group = len(ids), spec.num_heads // spec.num_kv_heads
    causal = torch.full((n, n), -math.inf).triu(1)
    x = w["model.embed_tokens.weight"][torch.tensor(list(ids))]
    for i in range(spec.num_layers):
        at = f"model.layers.{i}."
        y = norm(x, w[at + "input_layernorm.weight"])
        q = rope((y @ w[at + "self_attn.q_proj.weight"].T).view(n, spec.num_heads, -1))
        k = rope((y @ w[at + "self_attn.k_proj.weight"].T).view(n, spec.num_kv_heads, -1))
        v = (y @ w[at + "self_attn.v_proj.weight"].T).view(n, spec.num_kv_heads, -1)
        heads = []
        for h in range(spec.num_heads):
            scores = q[:, h] @ k[:, h // group].T / math.sqrt(spec.head_dim) + causal
            heads.append(torch.softmax(scores, -1) @ v[:, h // group])
        x = x + torch.cat(heads, -1) @ w[at + "self_attn.o_proj.weight"].T
        y = norm(x, w[at + "post_attention_layernorm.weight"])
        gate = y @ w[at + "mlp.gate_proj.weight"].T
        up = y @ w[at + "mlp.up_proj.weight"].T
        x = x + (gate / (1 + torch.exp(-gate)) * up) @ w[at + "mlp.down_proj.weight"].T
    head = w["model.embed_tokens.weight" if spec.tie_embeddings else "lm_head.weight"]
    return norm(x, w["model.norm.weight"]) @ head.T


def tiny(spec: ModelSpec = GROUP_OF_TWO, block_size: int = 4) -> tuple[Runner | GpuRunner, dict[str, Tensor]]:
    weights = random_weights(spec)
    return poisoned(model_runner(spec, dict(weights), num_blocks=60, block_size=block_size)), weights


def is_step_runner(runner: StepRunner) -> StepRunner:
    return runner  # mypy checks that a Runner is one


@pytest.mark.parametrize("spec", [GROUP_OF_TWO, GROUP_OF_THREE])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 33, 150])
def test_a_whole_prompt(spec: ModelSpec, length: int) -> None:
    runner, weights = tiny(spec)
    ids = prompt(length, spec)
    (logits,) = runner.logits([row(0, ids, 0, range(59, 19, -1))])
    torch.testing.assert_close(logits, plain_forward(spec, weights, ids), atol=1e-4, rtol=0)


@settings(deadline=None, max_examples=25)
@given(
    spec=st.sampled_from([GROUP_OF_TWO, GROUP_OF_THREE]),
    block_size=st.sampled_from([1, 4, 16]),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    data=st.data(),
)
def test_any_mixture_of_chunks_and_single_tokens(
    spec: ModelSpec, block_size: int, lengths: list[int], data: st.DataObject
) -> None:
    weights = random_weights(spec)
    needed = [-(-n // block_size) for n in lengths]
    runner = poisoned(model_runner(spec, dict(weights), num_blocks=sum(needed) + 2, block_size=block_size))
    ids = data.draw(st.permutations(range(runner.num_blocks)))
    tables = [[ids.pop() for _ in range(count)] for count in needed]
    prompts = [prompt(n, spec, seed=i) for i, n in enumerate(lengths)]
    computed: list[list[Tensor]] = [[] for _ in prompts]
    done = [0] * len(prompts)
    while any(d < n for d, n in zip(done, lengths, strict=True)):
        unfinished = [i for i, n in enumerate(lengths) if done[i] < n]
        chosen = data.draw(st.lists(st.sampled_from(unfinished), min_size=1, unique=True))
        sizes = [data.draw(st.sampled_from([1, 7, 16, 40])) for _ in chosen]
        rows = [
            row(i, prompts[i][done[i] : done[i] + size], done[i], tables[i])
            for i, size in zip(chosen, sizes, strict=True)
        ]
        for r, logits in zip(rows, runner.logits(rows), strict=True):
            computed[r.request_id].append(logits)
            done[r.request_id] += len(r.token_ids)
    for ids_, parts in zip(prompts, computed, strict=True):
        torch.testing.assert_close(torch.cat(parts), plain_forward(spec, weights, ids_), atol=1e-4, rtol=0)


def generate(
    runner: Runner | GpuRunner, prompts: Sequence[Sequence[int]], count: int, params: SamplingParams
) -> list[list[int]]:
    """``count`` tokens after each prompt, all together, one step a token."""
    blocks = -(-max(len(p) + count for p in prompts) // runner.block_size)
    tables = [range(i * blocks, (i + 1) * blocks) for i in range(len(prompts))]
    outputs: list[list[int]] = [[] for _ in prompts]
    pending, start = [list(p) for p in prompts], [0] * len(prompts)
    for _ in range(count):
        rows = [row(i, pending[i], start[i], tables[i], params, noise_key=i * 77) for i in range(len(prompts))]
        for result in runner.run(rows):
            i = result.request_id
            start[i] += len(pending[i])
            pending[i] = [result.token_id]
            outputs[i].append(result.token_id)
    return outputs


@pytest.mark.parametrize(
    "params", [GREEDY, SamplingParams(temperature=0.8, top_p=0.9, seed=1), SamplingParams(top_k=20)]
)
def test_neighbours_do_not_change_the_tokens(params: SamplingParams) -> None:
    runner, _ = tiny()
    prompts = [prompt(n, seed=n) for n in (1, 3, 4, 9, 17, 30)]
    together = generate(runner, prompts, 8, params)
    if params.greedy:
        assert len({tuple(t) for t in together}) > 1
    for i, ids in enumerate(prompts):
        # alone, but with the noise key that it had among the others
        table, pending, start, alone = range(40, 60), list(ids), 0, []
        for _ in range(8):
            (result,) = runner.run([row(i, pending, start, table, params, noise_key=i * 77)])
            start += len(pending)
            pending = [result.token_id]
            alone.append(result.token_id)
        assert alone == together[i]


@pytest.mark.cpu_only("a GPU's products may differ in the last bits")
@pytest.mark.skipif(not linear_cpu._onednn_works(), reason="only packed products are the same to the last bit")
@pytest.mark.parametrize("spec", [GROUP_OF_TWO, GROUP_OF_THREE])
@pytest.mark.parametrize("threads", [1, 2])
def test_neighbours_do_not_change_a_bit(spec: ModelSpec, threads: int) -> None:
    """Rows in any order and company have the same logits exactly, single tokens and chunks alike."""
    torch.set_num_threads(threads)
    runner, _ = tiny(spec)
    histories = [prompt(n, spec, seed=n) for n in (3, 17, 33, 40, 5)]
    tables = [range(i * 12, i * 12 + 12) for i in range(5)]
    runner.run([row(i, ids, 0, tables[i], None) for i, ids in enumerate(histories)])
    tails = [[1], [2], [3], [4, 5, 6], [7, 8]]
    rows = [row(i, tails[i], len(histories[i]), tables[i]) for i in range(5)]
    alone = [runner.logits([r])[0] for r in rows]
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1], [3, 1], [2, 0]):
        for i, logits in zip(order, runner.logits([rows[i] for i in order]), strict=True):
            assert torch.equal(logits, alone[i])
    torch.set_num_threads(1)


def test_greedy_and_random_rows_in_one_step() -> None:
    runner, weights = tiny()
    prompts = [prompt(n, seed=n) for n in (5, 6, 1, 7)]
    hot = SamplingParams(temperature=1.5)
    params = [hot, GREEDY, None, GREEDY]
    rows = [row(i, ids, 0, range(i * 2, i * 2 + 2), params[i], i) for i, ids in enumerate(prompts)]
    results = runner.run(rows)
    assert [r.request_id for r in results] == [0, 1, 3]  # in the order of the rows; none for the unfinished one
    for result in results[1:]:
        assert result.token_id == plain_forward(GROUP_OF_TWO, weights, prompts[result.request_id])[-1].argmax()
    drawn = {runner.run([row(0, prompts[0], 0, [0, 1], hot, key)])[0].token_id for key in range(30)}
    assert len(drawn) > 5
    assert runner.run([row(0, prompts[0], 0, [0, 1], hot, 0)])[0] == results[0]


@pytest.mark.lab_too
def test_a_shared_block_serves_two_requests() -> None:
    runner, weights = tiny()
    ids = prompt(12)
    runner.run([row(0, ids, 0, [7, 3, 9])])
    # two requests continue from the first eight tokens, which both read from blocks 7 and 3
    tails = [[1, 2, 3], [250, 4]]
    results = runner.logits([row(1, tails[0], 8, [7, 3, 11]), row(2, tails[1], 8, [7, 3, 12])])
    for tail, logits in zip(tails, results, strict=True):
        expected = plain_forward(GROUP_OF_TWO, weights, ids[:8] + tail)[8:]
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.lab_too
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(9, [], 0, [1]), "at least one token"),
        (row(9, [1], -1, [1]), "start of 0"),
        (row(9, [1, 2, 3, 4, 5], 0, [1]), "do not fit the 1 blocks"),
        (row(9, [1], 4, [1]), "do not fit"),
        (row(9, [1], 0, [60]), "outside 0..59"),
        (row(9, [1], 0, [-1]), "outside 0..59"),
        (row(9, [300], 0, [1]), "vocabulary of 300"),
        (row(9, [-1], 0, [1]), "(vocabulary of 300|it waits for a token)"),  # on a GPU that stands for one to come
        (row(9, [1], 512, range(60)), "beyond the context of 512"),
    ],
)
def test_a_bad_row_raises_before_anything_is_written(bad: RowInput, message: str) -> None:
    runner, _ = tiny(block_size=4 if bad.start != 512 else 16)
    with pytest.raises(ValueError, match=rf"request 9: .*{message}"):
        runner.run([row(0, [1, 2], 0, [5]), bad])
    assert all(layer.isnan().all() for layer in contents(runner))


@pytest.mark.lab_too
def test_an_empty_step_and_a_step_that_samples_nothing() -> None:
    runner, _ = tiny()
    assert runner.run([]) == []
    assert runner.logits([]) == []
    assert runner.run([row(0, prompt(5), 0, [1, 2], None)]) == []


@pytest.mark.lab_too
def test_facts_and_close() -> None:
    runner, _ = tiny()
    assert is_step_runner(runner) is runner
    assert (runner.num_blocks, runner.block_size, runner.spec) == (60, 4, GROUP_OF_TWO)
    assert runner.kv_bytes_per_block == 4 * 4 * 2 * 2 * 2 * 16  # float32, tokens, layers, K and V, heads, width
    assert sum(layer.nbytes for layer in contents(runner)) == 60 * runner.kv_bytes_per_block
    runner.close()
    runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        runner.run([row(0, [1], 0, [1])])
    with pytest.raises(RuntimeError, match="closed"):
        runner.logits([])


def test_the_pool_starts_as_zeros_and_its_size_is_checked() -> None:
    weights = random_weights(GROUP_OF_TWO)
    runner = model_runner(GROUP_OF_TWO, dict(weights), num_blocks=3, block_size=2)
    assert all(layer.eq(0).all() for layer in contents(runner))
    with pytest.raises(ValueError, match="at least 1"):
        model_runner(GROUP_OF_TWO, dict(weights), num_blocks=0, block_size=2)
    assert weights  # a copy of the dict was given away, not this one


@pytest.mark.cpu_only("threads are a CPU's")
def test_threads_are_set() -> None:
    Runner(GROUP_OF_TWO, random_weights(GROUP_OF_TWO), num_blocks=1, block_size=1, threads=2)
    assert torch.get_num_threads() == 2
    Runner(GROUP_OF_TWO, random_weights(GROUP_OF_TWO), num_blocks=1, block_size=1, threads=1)
    assert torch.get_num_threads() == 1


def test_the_weights_are_taken_over() -> None:
    weights = random_weights(GROUP_OF_THREE)
    model_runner(GROUP_OF_THREE, weights, num_blocks=1, block_size=1)
    assert weights == {}


def test_weights_that_do_not_make_a_llama() -> None:
    def build(weights: dict[str, Tensor]) -> None:
        model_runner(GROUP_OF_TWO, weights, num_blocks=1, block_size=1)

    weights = random_weights(GROUP_OF_TWO)
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(ModelFileError, match=r"no tensor 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        build({key: value for key, value in weights.items() if key != name})
    with pytest.raises(ModelFileError, match=r"shape \[5, 64\].* \[96, 64\]"):
        build(weights | {name: torch.zeros(5, 64)})
    with pytest.raises(ModelFileError, match=r"no place for: model\.layers\.0\.self_attn\.q_proj\.bias"):
        build(weights | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)})


QUESTION = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.mark.model
def test_the_small_model(model_files: ModelFiles) -> None:
    files = model_files
    ids = files.tokenizer.encode(QUESTION, special=True)
    expected = plain_forward(files.spec, files.weights, ids)
    runner = poisoned(model_runner(files.spec, dict(files.weights), num_blocks=8, block_size=16))
    table = [6, 1, 4, 0]
    (logits,) = runner.logits([row(0, ids, 0, table)])
    torch.testing.assert_close(logits, expected, atol=1e-3, rtol=0)
    # what other implementations say in float32; the margin is narrow
    assert logits[-1, 504].item() == pytest.approx(25.325, abs=1e-3)
    assert logits[-1, 60].item() == pytest.approx(25.243, abs=1e-3)
    assert logits[-1].argmax() == 504

    output, pending, start = [], ids, 0
    while True:
        (result,) = runner.run([row(0, pending, start, table)])
        if result.token_id in files.tokenizer.eos_ids:
            break
        start += len(pending)
        pending = [result.token_id]
        output.append(result.token_id)
    assert files.tokenizer.decode(output) == "The capital of France is Paris."
