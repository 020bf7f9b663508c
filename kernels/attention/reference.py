"""What the attention operations mean: softmax(q K^T * scale) V, one query and one head at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["DecodePlan", "ExtendPlan", "decode", "extend", "plan_decode", "plan_extend"]


@dataclass(frozen=True, slots=True)
class DecodePlan:
    block_tables: Sequence[Sequence[int]]
    lengths: Sequence[int]


@dataclass(frozen=True, slots=True)
class ExtendPlan:
    block_tables: Sequence[Sequence[int]]
    starts: Sequence[int]
    counts: Sequence[int]


def plan_decode(block_tables: Sequence[Sequence[int]], lengths: Sequence[int], pool: Tensor) -> DecodePlan:
    """Plan for rows of one query each: row ``i`` sees positions ``0 .. lengths[i] - 1`` of its block table.

    ``pool`` is any layer's; only its shape and type matter. Rows of similar length should be neighbours.
    """
    return DecodePlan(block_tables, lengths)


def decode(q: Tensor, pool: Tensor, plan: DecodePlan, scale: float) -> Tensor:
    """Attention of ``q`` [rows, heads, head_dim] over ``pool``: [rows, heads, head_dim].

    Query head ``h`` reads KV head ``h // (heads / kv_heads)``.
    """
    rows = [
        _attend(query, *_keys_values(pool, table, length), scale)
        for query, table, length in zip(q, plan.block_tables, plan.lengths, strict=True)
    ]
    return torch.stack(rows)


def plan_extend(
    block_tables: Sequence[Sequence[int]],
    starts: Sequence[int],
    counts: Sequence[int],
    pool: Tensor,
    heads: int,
) -> ExtendPlan:
    """Plan for runs of queries: sequence ``i`` has ``counts[i]`` of them at positions from ``starts[i]``.

    A query sees the positions up to its own. ``heads`` is the number of query heads.
    """
    return ExtendPlan(block_tables, starts, counts)


def extend(q: Tensor, pool: Tensor, plan: ExtendPlan, scale: float) -> Tensor:
    """Attention of ``q`` [sum(counts), heads, head_dim], the runs end to end, over ``pool``: the same shape."""
    rows = []
    queries = iter(q)
    for table, start, count in zip(plan.block_tables, plan.starts, plan.counts, strict=True):
        for position in range(start, start + count):
            rows.append(_attend(next(queries), *_keys_values(pool, table, position + 1), scale))
    return torch.stack(rows)


def _keys_values(pool: Tensor, block_table: Sequence[int], length: int) -> tuple[Tensor, Tensor]:
    """Keys and values of the first ``length`` positions, each [length, kv_heads, head_dim]."""
    block_size = pool.shape[2]
    tokens = [pool[block_table[p // block_size], :, p % block_size] for p in range(length)]
    keys, values = torch.stack(tokens).chunk(2, dim=-1)
    return keys, values


def _attend(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """One query [heads, head_dim] over ``keys`` and ``values`` [length, kv_heads, head_dim]."""
    group = query.shape[0] // keys.shape[1]
    out = []
    for head, vector in enumerate(query):
        weights = torch.softmax(keys[:, head // group] @ vector * scale, dim=0)  # [length]
        out.append(weights @ values[:, head // group])
    return torch.stack(out)
