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
_GATHER_BYTES = 16 << 20  # gathered at once in decode: it stays in the cache, and memory is bounded


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Neighbouring rows of one padded length L, as many as are gathered at once."""

    rows: slice
    index: Tensor  # int64 [rows * kv_heads * L], into the pool flattened to rows of 2 * head_dim
    mask: Tensor  # [rows * kv_heads, 1, L], added to the scores: 0, or -inf beyond the row's length
    gathered: Tensor  # [rows * kv_heads * L, 2 * head_dim], a scratch buffer that all buckets share


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
    gathered: Tensor  # [kv_heads * length, 2 * head_dim], shared scratch likewise
    tiles: tuple[_Tile, ...]


@dataclass(frozen=True, slots=True)
class ExtendPlan:
    runs: tuple[_Run, ...]


def plan_decode(block_tables: Sequence[Sequence[int]], lengths: Sequence[int], pool: Tensor) -> DecodePlan:
    """Plan for rows of one query each: row ``i`` sees positions ``0 .. lengths[i] - 1`` of its block table.

    ``pool`` is any layer's; only its shape and type matter. Rows of similar length should be neighbours.
    """
    token_bytes = pool[0, :, 0].nbytes
    spans = []
    start = 0
    for padded, members in groupby(lengths, key=_padded):
        stop = start + len(list(members))
        most = max(1, _GATHER_BYTES // (padded * token_bytes))
        spans += [(slice(i, min(i + most, stop)), padded) for i in range(start, stop, most)]
        start = stop
    scratch = _scratch(pool, max((rows.stop - rows.start) * padded for rows, padded in spans))
    return DecodePlan(tuple(_bucket(rows, padded, block_tables, lengths, pool, scratch) for rows, padded in spans))


def decode(q: Tensor, pool: Tensor, plan: DecodePlan, scale: float) -> Tensor:
    """Attention of ``q`` [rows, heads, head_dim] over ``pool``: [rows, heads, head_dim].

    Query head ``h`` reads KV head ``h // (heads / kv_heads)``.
    """
    rows, heads, head_dim = q.shape
    kv_heads = pool.shape[1]
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
    tiles = [list(_tiles(start, count)) for start, count in zip(starts, counts, strict=True)]
    # a tile's mask depends on its size and limit only, and a narrower one is the right end of a wider one
    widths: dict[int, int] = {}
    for size, limit in (tile for run in tiles for tile in run):
        widths[size] = max(limit, widths.get(size, 0))
    group = heads // pool.shape[1]
    masks = {size: _causal_mask(size, width, pool.dtype).repeat(group, 1) for size, width in widths.items()}

    scratch = _scratch(pool, max(start + count for start, count in zip(starts, counts, strict=True)))
    runs = []
    first = 0
    for block_table, run, start, count in zip(block_tables, tiles, starts, counts, strict=True):
        index = _pool_rows(torch.tensor([block_table]), torch.arange(start + count)[None], pool).flatten()
        placed = []
        for size, limit in run:
            placed.append(_Tile(slice(first, first + size), limit, masks[size][:, -limit:]))
            first += size
        runs.append(_Run(index, scratch[: len(index)], tuple(placed)))
    return ExtendPlan(tuple(runs))


def extend(q: Tensor, pool: Tensor, plan: ExtendPlan, scale: float) -> Tensor:
    """Attention of ``q`` [sum(counts), heads, head_dim], the runs end to end, over ``pool``: the same shape."""
    tokens, heads, head_dim = q.shape
    kv_heads = pool.shape[1]
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


def _bucket(
    rows: slice,
    padded: int,
    block_tables: Sequence[Sequence[int]],
    lengths: Sequence[int],
    pool: Tensor,
    scratch: Tensor,
) -> _Bucket:
    length = torch.tensor(lengths[rows])[:, None]  # [rows, 1]
    # block tables as one tensor; what follows a row's own blocks is never read
    width = -(-padded // pool.shape[2])
    table = torch.tensor([[*table[:width], *[0] * (width - len(table))] for table in block_tables[rows]])
    position = torch.arange(padded)
    mask = torch.zeros(len(table), padded, dtype=pool.dtype).masked_fill_(position >= length, float("-inf"))
    mask = mask.repeat_interleave(pool.shape[1], dim=0)[:, None]
    # beyond its length a row reads its own last token, which is finite, instead of what lies there
    index = _pool_rows(table, torch.minimum(position, length - 1), pool).flatten()
    return _Bucket(rows, index, mask, scratch[: len(index)])


def _pool_rows(table: Tensor, position: Tensor, pool: Tensor) -> Tensor:
    """Rows of the pool flattened to [blocks * kv_heads * block_size, 2 * head_dim], for each head and position.

    ``table`` [rows, blocks], ``position`` [rows, L]: [rows, kv_heads, L].
    """
    kv_heads, block_size = pool.shape[1:3]
    block, offset = table.gather(1, position // block_size)[:, None], (position % block_size)[:, None]
    return (block * kv_heads + torch.arange(kv_heads)[:, None]) * block_size + offset


def _scratch(pool: Tensor, tokens: int) -> Tensor:
    """Room for the keys and values of ``tokens`` tokens."""
    return torch.empty(tokens * pool.shape[1], pool.shape[3], dtype=pool.dtype)


def _tiles(start: int, count: int) -> Iterator[tuple[int, int]]:
    """Sizes of the tiles of ``count`` queries at positions from ``start``, and the keys that each needs."""
    for offset in range(0, count, _QUERY_TILE):
        size = min(_QUERY_TILE, count - offset)
        yield size, start + offset + size


def _causal_mask(size: int, width: int, dtype: torch.dtype) -> Tensor:
    """[size, width] for queries at the last ``size`` of ``width`` positions: -inf where a key is in the future."""
    return torch.full((size, width), float("-inf"), dtype=dtype).triu_(width - size + 1)
