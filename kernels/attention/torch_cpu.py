"""Paged attention on a CPU: one gather of the pages, then batched matrix products.

Decode folds the query heads that share a KV head into the query axis, so that keys and values are read once and
never expanded. Rows are padded to a length that is a function of their own length alone: a row's products have the
same shapes whoever its neighbours are, and its result the same bits. (``scaled_dot_product_attention`` is neither
faster here nor independent of the number of rows.)

Extend takes one sequence at a time, in tiles of queries, each against the keys up to its last query: half the
work of a whole square is above the diagonal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

__all__ = ["DecodePlan", "ExtendPlan", "decode", "extend", "plan_decode", "plan_extend"]

_QUERY_TILE = 128


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Neighbouring rows of one padded length L."""

    rows: slice
    index: Tensor  # int64 [rows * kv_heads * L], into the pool flattened to [slots * kv_heads, 2 * head_dim]
    mask: Tensor  # [rows * kv_heads, 1, L], added to the scores: 0, or -inf beyond the row's length
    gathered: Tensor  # [rows * kv_heads * L, 2 * head_dim], filled anew for each layer


@dataclass(frozen=True, slots=True)
class DecodePlan:
    buckets: tuple[_Bucket, ...]


@dataclass(frozen=True, slots=True)
class _Tile:
    """Some queries of one sequence, and the keys that the last of them sees."""

    queries: slice  # in the concatenated runs
    limit: int
    mask: Tensor  # [group * queries, limit], added to the scores


@dataclass(frozen=True, slots=True)
class _Run:
    """The queries of one sequence."""

    index: Tensor  # int64 [kv_heads * length], as in _Bucket
    gathered: Tensor  # [kv_heads * length, 2 * head_dim]
    tiles: tuple[_Tile, ...]


@dataclass(frozen=True, slots=True)
class ExtendPlan:
    runs: tuple[_Run, ...]


def plan_decode(block_tables: Sequence[Sequence[int]], lengths: Sequence[int], pool: Tensor) -> DecodePlan:
    """Plan for rows of one query each: row ``i`` sees positions ``0 .. lengths[i] - 1`` of its block table.

    ``pool`` is any layer's; only its shape and type matter. Rows of similar length should be neighbours.
    """
    buckets = []
    stop = 0
    for padded, members in groupby(lengths, key=_padded):
        member_lengths = torch.tensor(list(members))  # [rows]
        start, stop = stop, stop + len(member_lengths)
        table = _pad_tables(block_tables[start:stop], member_lengths, pool.shape[1])  # [rows, blocks]
        position = torch.arange(padded)
        beyond = position >= member_lengths[:, None]  # [rows, L]
        # beyond its length a row reads its own last token, which is finite, instead of what lies there
        position = torch.minimum(position, member_lengths[:, None] - 1)
        index = _pool_rows(table, position, pool)  # [rows, kv_heads, L]
        mask = torch.zeros(beyond.shape, dtype=pool.dtype).masked_fill_(beyond, float("-inf"))
        mask = mask.repeat_interleave(pool.shape[2], dim=0)[:, None]
        buckets.append(_Bucket(slice(start, stop), index.flatten(), mask, _gather_buffer(index, pool)))
    return DecodePlan(tuple(buckets))


def decode(q: Tensor, pool: Tensor, plan: DecodePlan, scale: float) -> Tensor:
    """Attention of ``q`` [rows, heads, head_dim] over ``pool``: [rows, heads, head_dim].

    Query head ``h`` reads KV head ``h // (heads / kv_heads)``.
    """
    rows, heads, head_dim = q.shape
    kv_heads = pool.shape[2]
    # the batch axis is (row, kv head) from here on
    queries = q.reshape(rows * kv_heads, heads // kv_heads, head_dim)
    out = torch.empty_like(queries)
    flat_pool = pool.flatten(0, 2)
    for bucket in plan.buckets:
        batch = slice(bucket.rows.start * kv_heads, bucket.rows.stop * kv_heads)
        torch.index_select(flat_pool, 0, bucket.index, out=bucket.gathered)
        keys_values = bucket.gathered.view(len(bucket.mask), -1, 2 * head_dim)  # [batch, L, 2 * head_dim]
        keys, values = keys_values[..., :head_dim], keys_values[..., head_dim:]
        scores = torch.baddbmm(bucket.mask, queries[batch], keys.transpose(1, 2), alpha=scale)  # [batch, group, L]
        torch.bmm(torch.softmax(scores, dim=-1), values, out=out[batch])
    return out.view(rows, heads, head_dim)


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
    runs = []
    first = 0
    for block_table, start, count in zip(block_tables, starts, counts, strict=True):
        length = start + count
        position = torch.arange(length)
        index = _pool_rows(torch.tensor([block_table]), position[None], pool)  # [1, kv_heads, length]
        tiles = tuple(_tiles(first, start, count, heads // pool.shape[2], pool.dtype))
        runs.append(_Run(index.flatten(), _gather_buffer(index, pool), tiles))
        first += count
    return ExtendPlan(tuple(runs))


def extend(q: Tensor, pool: Tensor, plan: ExtendPlan, scale: float) -> Tensor:
    """Attention of ``q`` [sum(counts), heads, head_dim], the runs end to end, over ``pool``: the same shape."""
    tokens, heads, head_dim = q.shape
    kv_heads = pool.shape[2]
    group = heads // kv_heads
    by_kv_head = q.reshape(tokens, kv_heads, group, head_dim).permute(1, 2, 0, 3)  # [kv_heads, group, tokens, d]
    out = q.new_empty(tokens, heads, head_dim)
    out_by_kv_head = out.view(tokens, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    flat_pool = pool.flatten(0, 2)
    for run in plan.runs:
        torch.index_select(flat_pool, 0, run.index, out=run.gathered)
        keys_values = run.gathered.view(1, kv_heads, -1, 2 * head_dim)
        keys, values = keys_values[..., :head_dim], keys_values[..., head_dim:]  # [1, kv_heads, length, head_dim]
        for tile in run.tiles:
            result = F.scaled_dot_product_attention(
                by_kv_head[:, :, tile.queries].reshape(1, kv_heads, -1, head_dim),  # the group joins the queries
                keys[:, :, : tile.limit],
                values[:, :, : tile.limit],
                attn_mask=tile.mask,
                scale=scale,
            )
            out_by_kv_head[:, :, tile.queries] = result.view(kv_heads, group, -1, head_dim)
    return out


def _padded(length: int) -> int:
    """``length`` rounded up to a multiple of 32, beyond 256 of an eighth of the next power of two.

    So ragged rows share few launches, and little of what they read is padding.
    """
    step = max(32, (1 << (length - 1).bit_length()) // 8)
    return -(-length // step) * step


def _pad_tables(block_tables: Sequence[Sequence[int]], lengths: Tensor, block_size: int) -> Tensor:
    """Block tables as one tensor [rows, blocks of the longest]; what follows a row's own blocks is never read."""
    width = -(-int(lengths.max()) // block_size)
    return torch.tensor([[*table[:width], *[0] * (width - len(table))] for table in block_tables])


def _pool_rows(table: Tensor, position: Tensor, pool: Tensor) -> Tensor:
    """Rows of the pool flattened to [slots * kv_heads, 2 * head_dim], for each kv head and position.

    ``table`` [rows, blocks], ``position`` [rows, L]: [rows, kv_heads, L].
    """
    block_size, kv_heads = pool.shape[1], pool.shape[2]
    slot = table.gather(1, position // block_size) * block_size + position % block_size
    return slot[:, None] * kv_heads + torch.arange(kv_heads)[:, None]


def _gather_buffer(index: Tensor, pool: Tensor) -> Tensor:
    return torch.empty(index.numel(), pool.shape[3], dtype=pool.dtype)


def _tiles(first: int, start: int, count: int, group: int, dtype: torch.dtype) -> Iterator[_Tile]:
    """Tiles of ``count`` queries at positions from ``start``, the first of which is query ``first`` of all."""
    for offset in range(0, count, _QUERY_TILE):
        size = min(_QUERY_TILE, count - offset)
        limit = start + offset + size
        mask = torch.full((size, limit), float("-inf"), dtype=dtype).triu_(start + offset + 1)
        yield _Tile(slice(first + offset, first + offset + size), limit, mask.repeat(group, 1))
