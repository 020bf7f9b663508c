"""Rotary embedding and KV write on a CPU: a few operations for all tokens and heads."""

from __future__ import annotations

import torch
from torch import Tensor

from orchestra.kernels.kv_pool import refuse_float8

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
    ``pool`` [blocks, kv_heads, block_size, 2 * head_dim]: written in place.
    ``qk_norm`` [heads + kv_heads, head_dim]: weights of an RMSNorm of each query and key head before it turns,
    with ``eps``; None where there is none.
    Returns [tokens, heads, head_dim].
    """
    refuse_float8(pool)
    kv_heads, head_dim = pool.shape[1], pool.shape[3] // 2
    vectors = qkv.view(qkv.shape[0], -1, 2, head_dim // 2)  # [tokens, heads + 2 * kv_heads, 2, half]
    both = vectors[:, :-kv_heads]  # queries and keys
    if qk_norm is not None:
        heads = both.flatten(2)  # [tokens, heads + kv_heads, head_dim]
        norm = torch.linalg.vector_norm(heads, dim=-1, keepdim=True)
        scale = norm.square_().mul_(1 / head_dim).add_(eps).rsqrt_()
        both = heads.mul(scale).mul_(qk_norm).view_as(both)
    cos, sin = cos[:, None, None], sin[:, None]  # broadcast over heads (and halves)
    turned = both * cos
    turned[:, :, 0].addcmul_(both[:, :, 1], sin, value=-1)
    turned[:, :, 1].addcmul_(both[:, :, 0], sin)
    turned = turned.flatten(2)  # [tokens, heads + kv_heads, head_dim]
    values = vectors[:, -kv_heads:].flatten(2)  # [tokens, kv_heads, head_dim]
    keys_values = torch.cat([turned[:, -kv_heads:], values], dim=-1)  # [tokens, kv_heads, 2 * head_dim]
    pool.flatten(0, 2).index_copy_(0, slots.flatten(), keys_values.flatten(0, 1))
    return turned[:, :-kv_heads]
