"""Every architecture against transformers: logits, greedy tokens, chunks, neighbours and shared prefixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from devices import model_runner
from hub_gguf import make_gguf
from hub_lab import VOCABULARY, make_folder, make_model, reference_logits
from model_lab import poisoned
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from orchestra.kernels.linear import torch_cpu as linear_cpu
from orchestra.localengine.execution.runner import Runner
from orchestra.localengine.gpu.runner import GpuRunner
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.request import SamplingParams
from orchestra.localengine.step import RowInput
from orchestra.localengine.weights.files import ModelFiles
from orchestra.localengine.weights.opening import load_model

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
TWO_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}
WINDOW = {"sliding_window": 24}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("llama", {}),
    "llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-linear-biased": ("llama", {"rope_parameters": LINEAR, "attention_bias": True}),
    "smollm2": ("llama", {"tie_word_embeddings": True, "num_attention_heads": 6}),
    "smollm3": ("smollm3", {}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-sliding": ("mistral", WINDOW),
    "qwen2": ("qwen2", {}),
    "qwen2.5-yarn": ("qwen2", {"rope_parameters": YARN, "tie_word_embeddings": True}),
    "qwen2-sliding": ("qwen2", {**WINDOW, "use_sliding_window": True, "max_window_layers": 2}),
    "qwen3": ("qwen3", {"head_dim": 20}),
    "gemma2": ("gemma2", {**WINDOW, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 3.0}),
    "gemma3": ("gemma3_text", {**WINDOW, "num_hidden_layers": 7, "query_pre_attn_scalar": 16}),
    "gemma3-two-ropes": ("gemma3_text", {**WINDOW, "num_hidden_layers": 6, "rope_parameters": TWO_ROPES}),
}
# prompts of another seed, where those of the first come upon two tokens that are nearly as likely
SEEDS = {"llama2": 2, "mistral": 2, "mistral-sliding": 2, "qwen2.5-yarn": 1, "qwen3": 1, "gemma3": 1}
# what a GGUF says differently, or not at all
NOT_IN_GGUF = {"qwen2-sliding", "gemma3-two-ropes"}
GREEDY = SamplingParams(temperature=0)
BLOCK = 16
NUM_BLOCKS = 64


@dataclass
class Case:
    model: PreTrainedModel
    folder: Path

    def runner(self, spec: ModelSpec | None = None, path: Path | None = None) -> Runner | GpuRunner:
        """Ours, its cache full of NaN, so that nothing unwritten is ever read unseen."""
        files = load_model(path or self.folder)
        return poisoned(model_runner(spec or files.spec, files.weights, num_blocks=NUM_BLOCKS, block_size=BLOCK))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=list(CASES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def case(name: str, tmp_path_factory: pytest.TempPathFactory) -> Case:
    model_type, changes = CASES[name]
    model = make_model(model_type, **changes)
    return Case(model, make_folder(model, tmp_path_factory.mktemp(name)))


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return [int(t) for t in torch.randint(3, VOCABULARY, (length,), generator=generator)]


def row(request_id: int, ids: Sequence[int], start: int, table: Sequence[int]) -> RowInput:
    return RowInput(request_id, 0, ids, start, table, GREEDY, 0)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


def test_a_whole_prompt(case: Case) -> None:
    ids = prompt(200)  # longer than any window, any original context, and a tile of queries
    (logits,) = case.runner().logits([row(0, ids, 0, range(20, 0, -1))])
    close(logits, reference_logits(case.model, ids))


def test_chunks_single_tokens_neighbours_and_a_shared_prefix(case: Case) -> None:
    """Three requests in mixed steps, the last of which reads the first one's blocks as its prefix."""
    runner = case.runner()
    shared = prompt(3 * BLOCK, seed=9)
    prompts = [shared + prompt(40, seed=1), prompt(75, seed=2), shared + prompt(30, seed=3)]
    tables = [[5, 3, 8, 1, 10, 12], [0, 2, 4, 6, 7], [5, 3, 8, 20, 21]]
    done = [0, 0, len(shared)]
    # what each request computes in each step; the third waits until the blocks that it shares are written
    steps = [(30, 1, 0), (20, 17, 0), (1, 1, 9), (1, 30, 1), (20, 1, 1), (16, 25, 19)]
    computed: list[list[Tensor]] = [[], [], []]
    for sizes in steps:
        rows = [
            row(i, prompts[i][done[i] : done[i] + size], done[i], tables[i])
            for i, size in enumerate(sizes)
            if size
        ]
        for r, logits in zip(rows, runner.logits(rows), strict=True):
            computed[r.request_id].append(logits)
            done[r.request_id] += len(r.token_ids)
    assert done == [len(ids) for ids in prompts]
    for i, first in enumerate((0, 0, len(shared))):
        close(torch.cat(computed[i]), reference_logits(case.model, prompts[i])[first:])


@pytest.mark.cpu_only("a GPU's products may differ in the last bits")
@pytest.mark.skipif(not linear_cpu._onednn_works(), reason="only packed products are the same to the last bit")
def test_neighbours_do_not_change_a_bit(case: Case) -> None:
    runner = case.runner()
    histories = [prompt(n) for n in (3, 17, 60, 40, 5)]
    tables = [range(i * 6, i * 6 + 6) for i in range(5)]
    runner.run([row(i, ids, 0, tables[i]) for i, ids in enumerate(histories)])
    tails = [[11], [12], [13], [14, 15, 16], [17, 18]]
    rows = [row(i, tails[i], len(histories[i]), tables[i]) for i in range(5)]
    alone = [runner.logits([r])[0] for r in rows]
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1], [3, 1]):
        for i, logits in zip(order, runner.logits([rows[i] for i in order]), strict=True):
            assert torch.equal(logits, alone[i])


def greedy(runner: Runner | GpuRunner, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """``count`` tokens after each prompt, all in one batch, the prompts in chunks."""
    size = -(-max(len(p) + count for p in prompts) // BLOCK)
    tables = [range(i * size, (i + 1) * size) for i in range(len(prompts))]
    tokens, done = [list(p) for p in prompts], [0] * len(prompts)
    while live := [i for i, p in enumerate(prompts) if len(tokens[i]) < len(p) + count]:
        rows = [row(i, tokens[i][done[i] : done[i] + 13], done[i], tables[i]) for i in live]
        for r, result in zip(rows, runner.run(rows), strict=True):
            done[r.request_id] += len(r.token_ids)
            if done[r.request_id] == len(tokens[r.request_id]):
                tokens[r.request_id].append(result.token_id)
    return [t[len(p) :] for t, p in zip(tokens, prompts, strict=True)]


def check_greedy(model: PreTrainedModel, ids: Sequence[int], output: Sequence[int], margin: float) -> None:
    """Transformers chooses the same token everywhere, and not by a hair."""
    logits = reference_logits(model, [*ids, *output])[len(ids) - 1 : -1]
    best = logits.topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > margin
    assert logits.argmax(-1).tolist() == list(output)


def test_64_greedy_tokens(case: Case, name: str) -> None:
    prompts = [prompt(n, seed=SEEDS.get(name, 0)) for n in (3, 16, 41)]
    outputs = greedy(case.runner(), prompts, 64)
    for ids, output in zip(prompts, outputs, strict=True):
        check_greedy(case.model, ids, output, margin=1e-3)
    assert len({tuple(o) for o in outputs}) == 3
    assert all(len(set(o)) > 5 for o in outputs)


def test_the_same_model_in_a_gguf(case: Case, name: str, tmp_path: Path) -> None:
    if name in NOT_IN_GGUF:
        pytest.skip("GGUF cannot say it")
    path = make_gguf(case.model, tmp_path / "tiny.gguf")
    ids = prompt(120)
    (logits,) = case.runner(path=path).logits([row(0, ids, 0, range(8))])
    close(logits, reference_logits(case.model, ids))


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("llama3", {"rope_factors": ()}),
        ("qwen2.5-yarn", {"rope_magnitude": 1.0}),
        ("smollm3", {"unrotated_layers": frozenset()}),
        ("mistral-sliding", {"sliding_layers": frozenset()}),
        ("mistral-sliding", {"sliding_window": 25}),
        ("qwen2-sliding", {"sliding_layers": frozenset()}),
        ("gemma2", {"attention_softcap": None}),
        ("gemma2", {"logit_softcap": None}),
        ("gemma2", {"norm_offset": 0.0}),
        ("gemma2", {"activation": "silu"}),
        ("gemma2", {"attention_scale": None, "attention_softcap": None}),
        ("gemma3", {"sliding_rope_theta": None}),
        ("gemma3", {"embedding_scale": 1.0}),
    ],
    indirect=["name"],
)
def test_whatever_is_left_out_shows(case: Case, left_out: dict[str, Any]) -> None:
    """So that agreement means something: each number of the spec is needed for it."""
    ids = prompt(100)
    spec = replace(load_model(case.folder).spec, **left_out)
    (logits,) = case.runner(spec).logits([row(0, ids, 0, range(7))])
    assert (logits - reference_logits(case.model, ids)).abs().max() > 1e-2


@pytest.mark.model
@pytest.mark.timeout(300)
def test_the_small_model_itself(model_files: ModelFiles) -> None:
    """Logits of a prompt, and 64 greedy tokens, by transformers' forward pass and by ours."""
    files = model_files
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        rms_norm_eps=1e-5,
        rope_theta=100_000.0,
        tie_word_embeddings=True,
    )
    tied = {"lm_head.weight": files.weights["model.embed_tokens.weight"]}
    with no_init_weights():
        model = LlamaForCausalLM(config).eval()
    model.load_state_dict({**files.weights, **tied}, strict=True)
    runner = poisoned(model_runner(files.spec, dict(files.weights), num_blocks=NUM_BLOCKS, block_size=BLOCK))
    ids = files.tokenizer.encode("def fibonacci(n):\n    '''Return the", special=False)
    (logits,) = runner.logits([row(0, ids, 0, range(8))])
    close(logits, reference_logits(model, ids))
    (output,) = greedy(runner, [ids], 64)
    check_greedy(model, ids, output, margin=1e-3)
