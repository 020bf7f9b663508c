"""Rotary embedding (Su et al., 2021, arXiv 2104.09864) and the KV write, one token and one head at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from orchestra.kernels.kv_pool import head_dim_of, write_slots

__all__ = ["rope_kv"]


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
    ``slots`` int64 [tokens, kv_heads]: where each key and value go, as rows of the flattened pool, all different.
    ``pool`` [blocks, kv_heads, block_size, 2 * head_dim]: written in place, in its own type. That may be float8
    (see :mod:`orchestra.kernels.kv_pool`).
    ``qk_norm`` [heads + kv_heads, head_dim]: weights of an RMSNorm of each query and key head before it turns,
    with ``eps``; None where there is none.
    Returns [tokens, heads, head_dim].
    """
    kv_heads, head_dim = pool.shape[1], head_dim_of(pool)
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    half = head_dim // 2
    queries = torch.empty(qkv.shape[0], heads, head_dim, dtype=qkv.dtype)
    for token, vectors in enumerate(qkv.view(qkv.shape[0], -1, head_dim)):
        for head in range(heads + kv_heads):
            vector = vectors[head]
            if qk_norm is not None:
                vector = vector * torch.rsqrt(vector.square().mean() + eps) * qk_norm[head]
            first, second = vector[:half], vector[half:]
            turned = torch.cat(
                [first * cos[token] - second * sin[token], second * cos[token] + first * sin[token]]
            )
            if head < heads:
                queries[token, head] = turned
            else:
                value = vectors[head + kv_heads]
                write_slots(pool, slots[token, head - heads, None], turned[None], value[None])
    return queries
