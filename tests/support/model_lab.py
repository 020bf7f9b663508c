"""Tiny models with random weights, and rows to run on them by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from devices import poison
from torch import Tensor

from orchestra.localengine.execution.runner import Runner
from orchestra.localengine.gpu.runner import GpuRunner
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.request import SamplingParams
from orchestra.localengine.step import RowInput

GREEDY = SamplingParams(temperature=0)
GROUP_OF_TWO = ModelSpec(
    architecture="llama",
    vocab_size=300,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position=512,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    tie_embeddings=True,
)
GROUP_OF_THREE = ModelSpec(
    architecture="llama",
    vocab_size=211,
    hidden_size=48,
    intermediate_size=80,
    num_layers=3,
    num_heads=6,
    num_kv_heads=2,
    head_dim=20,  # 6 * 20 is not the hidden size
    max_position=512,
    rms_norm_eps=1e-6,
    rope_theta=500.0,
    tie_embeddings=False,
)


def random_weights(spec: ModelSpec, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * scale / math.sqrt(columns)

    def norm() -> Tensor:
        return 1 + torch.randn(spec.hidden_size, generator=generator) * 0.2

    hidden, width = spec.hidden_size, spec.intermediate_size
    q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    weights = {"model.embed_tokens.weight": matrix(spec.vocab_size, hidden, 1.0), "model.norm.weight": norm()}
    if not spec.tie_embeddings:
        weights["lm_head.weight"] = matrix(spec.vocab_size, hidden, 1.0)
    for i in range(spec.num_layers):
        at = f"model.layers.{i}."
        weights |= {
            at + "input_layernorm.weight": norm(),
            at + "self_attn.q_proj.weight": matrix(q, hidden, 2.0),
            at + "self_attn.k_proj.weight": matrix(kv, hidden, 2.0),
            at + "self_attn.v_proj.weight": matrix(kv, hidden),
            at + "self_attn.o_proj.weight": matrix(hidden, q),
            at + "post_attention_layernorm.weight": norm(),
            at + "mlp.gate_proj.weight": matrix(width, hidden),
            at + "mlp.up_proj.weight": matrix(width, hidden),
            at + "mlp.down_proj.weight": matrix(hidden, width),
        }
    return weights


def row(
    request_id: int,
    token_ids: Sequence[int],
    start: int,
    block_table: Sequence[int],
    sampling: SamplingParams | None = GREEDY,
    noise_key: int = 0,
) -> RowInput:
    return RowInput(request_id, 0, token_ids, start, block_table, sampling, noise_key)


def poisoned(runner: Runner | GpuRunner) -> Runner | GpuRunner:
    """The runner, with NaN in every block that nobody has written."""
    poison(runner)
    return runner


def prompt(length: int, spec: ModelSpec = GROUP_OF_TWO, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [int(t) for t in torch.randint(0, spec.vocab_size, (length,), generator=generator)]
