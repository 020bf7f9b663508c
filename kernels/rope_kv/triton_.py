"""Rotary embedding and KV write on a GPU: all is read once, and goes straight to its place."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from orchestra.kernels.aot import MODELS, AotCase, launches
from orchestra.kernels.launch import arch_of, launch_config

__all__ = ["aot_cases", "rope_kv"]


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
    ``pool`` [blocks, kv_heads, block_size, 2 * head_dim]: written in place, in its own type.
    ``qk_norm`` [heads + kv_heads, head_dim]: weights of an RMSNorm of each query and key head before it turns,
    with ``eps``; None where there is none.
    Returns [tokens, heads, head_dim] in the type of ``qkv``; between, all is float32. Raises ValueError where a
    tensor but ``qkv`` has gaps, or a row of that has.
    """
    tokens, kv_heads, head_dim = qkv.shape[0], pool.shape[1], pool.shape[3] // 2
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    whole = [cos, sin, slots, pool] if qk_norm is None else [cos, sin, slots, pool, qk_norm]
    if qkv.stride(1) != 1 or not all(tensor.is_contiguous() for tensor in whole):
        raise ValueError("cos, sin, slots, pool, qk_norm and the rows of qkv must be without gaps")
    queries = torch.empty(tokens, heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    if tokens:
        config = launch_config("rope_kv", arch_of(qkv.device), head_dim=head_dim)
        _rope_kv_kernel[(tokens, triton.cdiv(heads + kv_heads, config.blocks["HEADS"]))](
            qkv,
            cos,
            sin,
            slots,
            pool,
            qk_norm,
            queries,
            qkv.stride(0),
            eps,
            NUM_HEADS=heads,
            NUM_KV_HEADS=kv_heads,
            HEAD_DIM=head_dim,
            HALF=triton.next_power_of_2(head_dim // 2),
            **config.blocks,
            **config.options,
        )
    return queries


@triton.jit
def _rope_kv_kernel(
    qkv,  # [tokens, (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM]
    cos,  # [tokens, HEAD_DIM / 2]
    sin,  # [tokens, HEAD_DIM / 2]
    slots,  # int64 [tokens, NUM_KV_HEADS]
    pool,  # [slots, 2 * HEAD_DIM]
    qk_norm,  # [NUM_HEADS + NUM_KV_HEADS, HEAD_DIM], or None
    queries,  # [tokens, NUM_HEADS, HEAD_DIM]
    stride,  # of qkv's rows
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,  # HEAD_DIM / 2, rounded up to a power of two
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
    to_pool = pool + slot[:, None] * (2 * HEAD_DIM) + column[None, :]
    tl.store(to_pool, turned_first.to(pool.dtype.element_ty), mask=writes)
    tl.store(to_pool + ROTATED, turned_second.to(pool.dtype.element_ty), mask=writes)
    tl.store(to_pool + HEAD_DIM, value_first.to(pool.dtype.element_ty), mask=writes)
    tl.store(to_pool + HEAD_DIM + ROTATED, value_second.to(pool.dtype.element_ty), mask=writes)


def aot_cases() -> Iterator[AotCase]:
    """Yield each model's heads, and the smallest ones' with a norm as well (as Qwen 3 has it)."""
    for model in MODELS:
        for dtype in ("bf16", "fp32") if model.name == "135M" else ("bf16",):
            for normed in (False, True) if model.head_dim == 64 else (False,):
                for config, absent in launches("rope_kv", head_dim=model.head_dim):
                    yield AotCase(
                        name=f"rope_kv heads={model.heads}/{model.kv_heads} head={model.head_dim}"
                        f"{' qk_norm' if normed else ''} {dtype}",
                        kernel=_rope_kv_kernel,
                        signature={
                            "qkv": f"*{dtype}",
                            "cos": "*fp32",
                            "sin": "*fp32",
                            "slots": "*i64",
                            "pool": f"*{dtype}",
                            "qk_norm": f"*{dtype}" if normed else "constexpr",
                            "queries": f"*{dtype}",
                            "stride": "i32",
                            "eps": "fp32",
                            "NUM_HEADS": "constexpr",
                            "NUM_KV_HEADS": "constexpr",
                            "HEAD_DIM": "constexpr",
                            "HALF": "constexpr",
                            "HEADS": "constexpr",
                        },
                        constexprs={
                            **({} if normed else {"qk_norm": None}),
                            "NUM_HEADS": model.heads,
                            "NUM_KV_HEADS": model.kv_heads,
                            "HEAD_DIM": model.head_dim,
                            "HALF": triton.next_power_of_2(model.head_dim // 2),
                            **config.blocks,
                        },
                        aligned=frozenset({"qkv", "cos", "sin", "slots", "pool", "queries", "stride"})
                        | ({"qk_norm"} if normed else set()),
                        num_warps=config.num_warps,
                        num_stages=config.num_stages,
                        asked=frozenset({"16-byte loads", "16-byte stores"}),
                        absent=absent,
                        quick=model.name == "135M" and dtype == "bf16" and normed,
                    )
