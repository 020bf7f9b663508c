"""Uses of the other operations to tune launches with."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from orchestra.kernels.activation import reference as activation
from orchestra.kernels.norm import reference as norm
from orchestra.kernels.rope_kv import reference as rope
from orchestra.kernels.sampling import reference as sampling
from orchestra.kernels.tuning.dtypes import FLOAT_TYPES, TOLERANCES
from orchestra.kernels.tuning.search import Problem

__all__ = ["activation_problem", "norm_problem", "rope_problem", "sampling_problem"]

_EPS = 1e-5


def norm_problem(device: torch.device, size: Sequence[int], hidden: int) -> Problem:
    """The norm with a residual, in the types of the engine: that and the weight in float32. ``size``: rows."""
    dtype = FLOAT_TYPES[device.type]
    x = torch.randn(size[0], hidden, device=device).to(dtype)
    weight = torch.randn(hidden, device=device)
    residual = torch.zeros(size[0], hidden, device=device)
    triton_ = importlib.import_module("orchestra.kernels.norm.triton_")

    def prepare() -> Callable[[], Tensor]:
        residual.zero_()  # every call adds x to it, and so the first one normalises x
        return lambda: triton_.add_rms_norm(x, residual, weight, _EPS)

    def expected() -> Tensor:
        return norm.rms_norm(x.cpu().double(), weight.cpu().double(), _EPS)

    return Problem(name=f"{size[0]:,} rows", prepare=prepare, expected=expected, tolerance=TOLERANCES[dtype])


def activation_problem(device: torch.device, size: Sequence[int], width: int) -> Problem:
    """``size``: rows."""
    dtype = FLOAT_TYPES[device.type]
    gate_up = torch.randn(size[0], 2 * width, device=device).to(dtype)
    triton_ = importlib.import_module("orchestra.kernels.activation.triton_")
    return Problem(
        name=f"{size[0]:,} rows",
        prepare=lambda: lambda: triton_.silu_mul(gate_up),
        expected=lambda: activation.silu_mul(gate_up.cpu().double()),
        tolerance=TOLERANCES[dtype],
    )


def rope_problem(device: torch.device, size: Sequence[int], head_dim: int) -> Problem:
    """``size``: tokens. What is checked is the queries and the pool, end to end."""

    def all_of(queries: Tensor, written: Tensor) -> Tensor:
        return torch.cat([queries.flatten(), written.flatten()])

    tokens, dtype, block_size = size[0], FLOAT_TYPES[device.type], 16
    heads, kv_heads = (8, 4) if head_dim == 256 else (32, 8)
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * head_dim, device=device).to(dtype)
    angle = torch.rand(tokens, head_dim // 2, device=device) * 6
    cos, sin = angle.cos(), angle.sin()
    blocks = -(-tokens // block_size)
    pool = torch.zeros(blocks, kv_heads, block_size, 2 * head_dim, dtype=dtype, device=device)
    token = torch.randperm(blocks * block_size, device=device)[:tokens, None]
    head = torch.arange(kv_heads, device=device)
    slots = (token // block_size * kv_heads + head) * block_size + token % block_size
    triton_ = importlib.import_module("orchestra.kernels.rope_kv.triton_")

    def prepare() -> Callable[[], Tensor]:
        pool.zero_()
        return lambda: triton_.rope_kv(qkv, cos, sin, slots, pool)

    def expected() -> Tensor:
        exact = torch.zeros_like(pool, device="cpu", dtype=torch.float64)
        turns = (cos.cpu().double(), sin.cpu().double())
        return all_of(rope.rope_kv(qkv.cpu().double(), *turns, slots.cpu(), exact), exact)

    return Problem(
        name=f"{tokens:,} tokens",
        prepare=prepare,
        expected=expected,
        tolerance=TOLERANCES[dtype],
        outcome=lambda queries: all_of(queries, pool),
    )


def sampling_problem(device: torch.device, size: Sequence[int], vocab: int) -> Problem:
    """A draw with top-k and top-p, of logits in float32. ``size``: rows."""
    rows = size[0]
    logits = torch.randn(rows, vocab, device=device) * 3
    row = torch.arange(rows, device=device)
    given = (
        torch.full((rows,), 0.8, device=device),
        torch.full((rows,), 50, device=device),
        torch.full((rows,), 0.9, device=device),
        row * 31 + 5,
        row + 100,
    )
    triton_ = importlib.import_module("orchestra.kernels.sampling.triton_")
    return Problem(
        name=f"{rows:,} rows",
        prepare=lambda: lambda: triton_.sample(logits, *given),
        expected=lambda: sampling.sample(logits.cpu(), *(values.cpu() for values in given)),
        tolerance=0.0,  # the tokens themselves
    )
