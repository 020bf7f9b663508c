"""Models of three sizes with random weights: shapes decide how long a step takes, and nothing is fetched."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from orchestra.localengine.models.layout import EMBEDDING, tensor_shapes
from orchestra.localengine.models.spec import ModelSpec

__all__ = ["MODELS", "floor_bytes", "random_weights", "tiny", "weight_bytes_read"]

_LLAMA = ModelSpec(
    architecture="llama",
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_position=131072,
    rms_norm_eps=1e-5,
    rope_theta=500_000.0,
    tie_embeddings=False,
)
MODELS = {
    "135M": replace(
        _LLAMA,
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        max_position=8192,
        rope_theta=100_000.0,
        tie_embeddings=True,
    ),
    "1B": replace(
        _LLAMA, hidden_size=2048, intermediate_size=8192, num_layers=16, head_dim=64, tie_embeddings=True
    ),
    "8B": _LLAMA,
}
"""The shapes of SmolLM2 135M, Llama 3.2 1B and Llama 3 8B, by size."""


def tiny(spec: ModelSpec) -> ModelSpec:
    """``spec`` with as few heads, layers and numbers as still rehearse it; heads share keys as in the original."""
    group = spec.num_heads // spec.num_kv_heads
    return replace(
        spec,
        vocab_size=1024,
        hidden_size=48,
        intermediate_size=80,
        num_layers=2,
        num_heads=group,
        num_kv_heads=1,
        head_dim=spec.head_dim // 4,
        max_position=2048,
    )


def random_weights(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Weights by their Hugging Face names: matrices that keep a vector's length as it is, norms of about 1."""
    weights = {}
    for name, shape in tensor_shapes(spec).items():
        mean, spread = (1.0, 0.1) if len(shape) == 1 else (0.0, 1 / math.sqrt(shape[1]))
        weights[name] = torch.empty(shape, dtype=dtype, device=device).normal_(mean, spread)
    return weights


def weight_bytes_read(spec: ModelSpec, itemsize: int) -> int:
    """Bytes of weights that a step reads: all, but of an embedding that is not the head too hardly anything."""
    values = sum(math.prod(shape) for shape in tensor_shapes(spec).values())
    if not spec.tie_embeddings:
        values -= math.prod(tensor_shapes(spec)[EMBEDDING])
    return values * itemsize


def floor_bytes(spec: ModelSpec, rows: int, context: int, itemsize: int) -> int:
    """The fewest bytes that a decode step moves: each weight once, and the keys and values of every row."""
    return weight_bytes_read(spec, itemsize) + rows * context * spec.kv_values_per_token * itemsize
