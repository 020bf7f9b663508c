"""Rotary embedding and KV write on a GPU: all is read once, and goes straight to its place."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from orchestra.kernels.aot import MODELS, NO_FLOAT8, AotCase, ModelShape, launches
from orchestra.kernels.guard import on_device_of
from orchestra.kernels.kv_pool import ABSMAX_BYTES, FLOAT8_MAX, absmax_of, head_dim_of
from orchestra.kernels.launch import LaunchConfig, arch_of, launch_config

__all__ = ["aot_cases", "rope_kv"]

_FLOAT8_MAX = tl.constexpr(FLOAT8_MAX)
_ABSMAX_BYTES = tl.constexpr(ABSMAX_BYTES)


def rope_kv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    pool: Tensor,
    *,
    qk_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Rotate queries and keys, write keys and values into the pool, return the queries.

    ``qkv`` [tokens, (heads + 2 * kv_heads) * head_dim]: the query heads, then the key heads, then the value heads.
    ``cos``, ``sin`` [tokens, head_dim / 2]: of each token's position. Dimension ``i`` turns with dimension
    ``i + head_dim / 2`` (the half-rotation layout of Hugging Face checkpoints).
    ``slots`` int64 [tokens, kv_heads]: where each key and value go, as rows of the flattened pool, all different;
    but -1 writes nothing, which rows that only fill up a recorded batch have.
    ``pool`` [blocks, kv_heads, block_size, 2 * head_dim]: written in place, in its own type. That may be float8
    (see :mod:`orchestra.kernels.kv_pool`): then each key and value is scaled by its own largest magnitude.
    ``qk_norm`` [heads + kv_heads, head_dim]: weights of an RMSNorm of each query and key head before it turns,
    with ``eps``; None where there is none.
    Returns [tokens, heads, head_dim] in the type of ``qkv``; between, all is float32. Raises ValueError where a
    tensor but ``qkv`` has gaps, or a row of that has.
    """
    tokens, kv_heads, head_dim = qkv.shape[0], pool.shape[1], head_dim_of(pool)
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    whole = [cos, sin, slots, pool] if qk_norm is None else [cos, sin, slots, pool, qk_norm]
    if qkv.stride(1) != 1 or not all(tensor.is_contiguous() for tensor in whole):
        raise ValueError("cos, sin, slots, pool, qk_norm and the rows of qkv must be without gaps")
    queries = torch.empty(tokens, heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    if tokens:
        config = launch_config("rope_kv", arch_of(qkv.device), head_dim=head_dim)
        with on_device_of(qkv):
            _rope_kv_kernel[(tokens, triton.cdiv(heads + kv_heads, config.blocks["HEADS"]))](
                qkv,
                cos,
                sin,
                slots,
                pool,
                absmax_of(pool),
                qk_norm,
                queries,
                qkv.stride(0),
                eps,
                **_shape(heads, kv_heads, head_dim, pool.shape[2]),
                **config.blocks,
                **config.options,
            )
    return queries


def _shape(heads: int, kv_heads: int, head_dim: int, block_size: int) -> dict[str, int]:
    return {
        "NUM_HEADS": heads,
        "NUM_KV_HEADS": kv_heads,
        "HEAD_DIM": head_dim,
        "HALF": triton.next_power_of_2(head_dim // 2),
        "BLOCK_SIZE": block_size,
    }


@triton.jit
def _rope_kv_kernel(
    qkv,  # [tokens, (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM]
    cos,  # [tokens, HEAD_DIM / 2]
    sin,  # [tokens, HEAD_DIM / 2]
    slots,  # int64 [tokens, NUM_KV_HEADS]
    pool,  # [slots, 2 * HEAD_DIM]; or of float8, see kv_pool
    absmax,  # the same in float32, if it is of float8; else None
    qk_norm,  # [NUM_HEADS + NUM_KV_HEADS, HEAD_DIM], or None
    queries,  # [tokens, NUM_HEADS, HEAD_DIM]
    stride,  # of qkv's rows
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,  # HEAD_DIM / 2, rounded up to a power of two
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
):
    """A program turns ``HEADS`` neighbours among a token's query and key heads; with a key goes its value."""
    ROTATED: tl.constexpr = HEAD_DIM // 2  # as many dimensions turn with as many others
    token = tl.program_id(0).to(tl.int64)  # a token times a stride may pass 2**31
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_query = head < NUM_HEADS
    is_key = (head >= NUM_HEADS) & (head < NUM_HEADS + NUM_KV_HEADS)
    column = tl.arange(0, HALF)
    inside = column < ROTATED
    turns = (is_query | is_key)[:, None] & inside[None, :]

    at = head[:, None] * HEAD_DIM + column[None, :]  # [HEADS, HALF], the first of the two dimensions that turn
    source = qkv + token * stride + at
    first = tl.load(source, mask=turns, other=0.0).to(tl.float32)
    second = tl.load(source + ROTATED, mask=turns, other=0.0).to(tl.float32)
    if qk_norm is not None:
        squares = tl.sum(first * first + second * second, axis=1)
        scale = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        first = first * scale * tl.load(qk_norm + at, mask=turns, other=0.0).to(tl.float32)
        second = second * scale * tl.load(qk_norm + at + ROTATED, mask=turns, other=0.0).to(tl.float32)
    angle = token * ROTATED + column
    c = tl.load(cos + angle, mask=inside, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + angle, mask=inside, other=0.0).to(tl.float32)[None, :]
    turned_first = first * c - second * s
    turned_second = second * c + first * s

    to_queries = queries + token * (NUM_HEADS * HEAD_DIM) + at
    tl.store(to_queries, turned_first.to(queries.dtype.element_ty), mask=turns & is_query[:, None])
    tl.store(to_queries + ROTATED, turned_second.to(queries.dtype.element_ty), mask=turns & is_query[:, None])

    slot = tl.load(slots + token * NUM_KV_HEADS + (head - NUM_HEADS), mask=is_key, other=-1).to(tl.int64)
    writes = (slot >= 0)[:, None] & inside[None, :]
    value = source + NUM_KV_HEADS * HEAD_DIM  # as far behind each key
    value_first = tl.load(value, mask=writes, other=0.0)
    value_second = tl.load(value + ROTATED, mask=writes, other=0.0)
    row = slot * (2 * HEAD_DIM)
    if absmax is not None:
        # where the block and head begins, whose scales follow its keys and values
        section = slot // BLOCK_SIZE * (BLOCK_SIZE * (2 * HEAD_DIM + _ABSMAX_BYTES))
        row = section + slot % BLOCK_SIZE * (2 * HEAD_DIM)
        key_max = _largest(turned_first, turned_second)
        value_first = value_first.to(tl.float32)
        value_second = value_second.to(tl.float32)
        value_max = _largest(value_first, value_second)
        key_scale = ((1.0 / key_max) * _FLOAT8_MAX)[:, None]
        value_scale = ((1.0 / value_max) * _FLOAT8_MAX)[:, None]
        turned_first *= key_scale
        turned_second *= key_scale
        value_first *= value_scale
        value_second *= value_scale
        to_absmax = absmax + section // 4 + (BLOCK_SIZE * HEAD_DIM // 2 + slot % BLOCK_SIZE * 2)
        tl.store(to_absmax, key_max, mask=slot >= 0)
        tl.store(to_absmax + 1, value_max, mask=slot >= 0)
    to_pool = pool + row[:, None] + column[None, :]
    tl.store(to_pool, turned_first.to(pool.dtype.element_ty), mask=writes)
    tl.store(to_pool + ROTATED, turned_second.to(pool.dtype.element_ty), mask=writes)
    tl.store(to_pool + HEAD_DIM, value_first.to(pool.dtype.element_ty), mask=writes)
    tl.store(to_pool + HEAD_DIM + ROTATED, value_second.to(pool.dtype.element_ty), mask=writes)


@triton.jit
def _largest(first, second):
    """The largest magnitude in each row of both; never 0, so that it can divide."""
    return tl.maximum(tl.max(tl.maximum(tl.abs(first), tl.abs(second)), axis=1), 1e-30)


def aot_cases() -> Iterator[AotCase]:
    """Yield each model's heads, and the smallest ones' with a norm as well (as Qwen 3 has it); float8 for two."""
    for model in MODELS:
        for config, absent in launches("rope_kv", head_dim=model.head_dim):
            for dtype in ("bf16", "fp32") if model.name == "135M" else ("bf16",):
                for normed in (False, True) if model.head_dim == 64 else (False,):
                    yield _case(model, dtype, config, absent, normed=normed)
        if model.name in ("135M", "8B"):
            for config, absent in launches("rope_kv", NO_FLOAT8, head_dim=model.head_dim):
                yield _case(model, "bf16", config, absent, float8=True)


def _case(
    model: ModelShape,
    dtype: str,
    config: LaunchConfig,
    absent: frozenset[str],
    *,
    normed: bool = False,
    float8: bool = False,
) -> AotCase:
    values: dict[str, object] = {
        **_shape(model.heads, model.kv_heads, model.head_dim, block_size=16),
        **config.blocks,
    }
    arguments = {
        "qkv": f"*{dtype}",
        "cos": "*fp32",
        "sin": "*fp32",
        "slots": "*i64",
        "pool": "*fp8e4nv" if float8 else f"*{dtype}",
        "absmax": "*fp32" if float8 else "constexpr",
        "qk_norm": "*fp32" if normed else "constexpr",
        "queries": f"*{dtype}",
        "stride": "i32",
        "eps": "fp32",
    }
    nothing = {name: None for name, kind in arguments.items() if kind == "constexpr"}
    # eight elements of float8 are half of what 16 bytes hold
    asked = {"16-byte loads"} if float8 else {"16-byte loads", "16-byte stores"}
    return AotCase(
        name=f"rope_kv heads={model.heads}/{model.kv_heads} head={model.head_dim}"
        f"{' qk_norm' if normed else ''} {dtype}{' float8' if float8 else ''}",
        kernel=_rope_kv_kernel,
        signature=arguments | dict.fromkeys(values, "constexpr"),
        constexprs=nothing | values,
        aligned=frozenset(arguments.keys() - nothing.keys() - {"eps"}),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        asked=frozenset(asked),
        absent=absent,
        quick=model.name == "135M" and dtype == "bf16" and normed,
    )
