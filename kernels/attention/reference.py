"""What the attention operations mean: softmax(q K^T * scale) V, one query and one head at a time.

With a soft-cap c (Gemma 2, arXiv 2408.00118) a scaled score x becomes c * tanh(x / c) before the softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestra.kernels.kv_pool import unpacked

__all__ = ["DecodePlan", "ExtendPlan", "decode", "extend", "plan_decode", "plan_extend"]


@dataclass(frozen=True, slots=True)
class DecodePlan:
    block_tables: Sequence[Sequence[int]]
    lengths: Sequence[int]
    window: int | None


@dataclass(frozen=True, slots=True)
class ExtendPlan:
    block_tables: Sequence[Sequence[int]]
    starts: Sequence[int]
    counts: Sequence[int]
    window: int | None


def plan_decode(
    block_tables: Sequence[Sequence[int]],
    lengths: Sequence[int],
    pool: Tensor,
    *,
    window: int | None = None,
    strict: bool = False,
) -> DecodePlan:
    """Plan for rows of one query each: row ``i`` sees positions ``0 .. lengths[i] - 1`` of its block table.

    With a ``window`` it sees the last so many of them only. With ``strict`` its result is the same to the last bit
    in any company, which here it is anyway. ``pool`` is any layer's; only its shape and type matter. Rows of
    similar length should be neighbours.
    """
    return DecodePlan(block_tables, lengths, window)


def decode(q: Tensor, pool: Tensor, plan: DecodePlan, scale: float, *, softcap: float | None = None) -> Tensor:
    """Attention of ``q`` [rows, heads, head_dim] over ``pool``: [rows, heads, head_dim].

    Query head ``h`` reads KV head ``h // (heads / kv_heads)``.
    """
    rows = [
        _attend(query, *_keys_values(pool, table, length, plan.window), scale, softcap)
        for query, table, length in zip(q, plan.block_tables, plan.lengths, strict=True)
    ]
    return torch.stack(rows)


def plan_extend(
    block_tables: Sequence[Sequence[int]],
    starts: Sequence[int],
    counts: Sequence[int],
    pool: Tensor,
    heads: int,
    *,
    window: int | None = None,
) -> ExtendPlan:
    """Plan for runs of queries: sequence ``i`` has ``counts[i]`` of them at positions from ``starts[i]``.

    A query sees the positions up to its own, or with a ``window`` the last so many of them. ``heads`` is the
    number of query heads.
    """
    return ExtendPlan(block_tables, starts, counts, window)


def extend(q: Tensor, pool: Tensor, plan: ExtendPlan, scale: float, *, softcap: float | None = None) -> Tensor:
    """Attention of ``q`` [sum(counts), heads, head_dim], the runs end to end, over ``pool``: the same shape."""
    rows = []
    queries = iter(q)
    for table, start, count in zip(plan.block_tables, plan.starts, plan.counts, strict=True):
        for position in range(start, start + count):
            keys, values = _keys_values(pool, table, position + 1, plan.window)
            rows.append(_attend(next(queries), keys, values, scale, softcap))
    return torch.stack(rows)


def _keys_values(
    pool: Tensor, block_table: Sequence[int], length: int, window: int | None
) -> tuple[Tensor, Tensor]:
    """Keys and values of the last ``window`` of the first ``length`` positions: [seen, kv_heads, head_dim]."""
    pool, block_size = unpacked(pool), pool.shape[2]
    first = 0 if window is None else max(0, length - window)
    tokens = [pool[block_table[p // block_size], :, p % block_size] for p in range(first, length)]
    keys, values = torch.stack(tokens).chunk(2, dim=-1)
    return keys, values


def _attend(query: Tensor, keys: Tensor, values: Tensor, scale: float, softcap: float | None) -> Tensor:
    """One query [heads, head_dim] over ``keys`` and ``values`` [length, kv_heads, head_dim]."""
    group = query.shape[0] // keys.shape[1]
    out = []
    for head, vector in enumerate(query):
        scores = keys[:, head // group] @ vector * scale  # [length]
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        out.append(torch.softmax(scores, dim=0) @ values[:, head // group])
    return torch.stack(out)
