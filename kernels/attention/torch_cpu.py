"""Paged attention on a CPU: one gather of the pages, then batched matrix products.

Decode folds the query heads that share a KV head into the query axis, so that keys and values are read once and
never expanded. Rows are padded to a length that is a function of their own length alone: a row's products have the
same shapes whoever its neighbours are, and its result the same bits. (``scaled_dot_product_attention`` is neither
faster here nor independent of the number of rows.)

Extend takes one sequence at a time, in tiles of queries, each against the keys up to its last query: half the
work of a whole square is above the diagonal.

With a window, both gather and multiply what is inside it only.
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
    """Some queries of one sequence, and the keys from the first that one of them sees to the last."""

    queries: slice  # in the concatenated runs
    keys: slice  # in what the run gathers
    mask: Tensor  # [group * queries, keys], added to the scores


@dataclass(frozen=True, slots=True)
class _Run:
    """The queries of one sequence."""

    index: Tensor  # int64 [kv_heads * length], as in _Bucket
    gathered: Tensor  # [kv_heads * length, 2 * head_dim], shared scratch likewise
    tiles: tuple[_Tile, ...]


@dataclass(frozen=True, slots=True)
class ExtendPlan:
    runs: tuple[_Run, ...]


def plan_decode(
    block_tables: Sequence[Sequence[int]], lengths: Sequence[int], pool: Tensor, *, window: int | None = None
) -> DecodePlan:
    """Plan for rows of one query each: row ``i`` sees positions ``0 .. lengths[i] - 1`` of its block table.

    With a ``window`` it sees the last so many of them only.
    ``pool`` is any layer's; only its shape and type matter. Rows of similar length should be neighbours.
    """
    token_bytes = pool[0, :, 0].nbytes
    seen = [length if window is None else min(length, window) for length in lengths]
    spans = []
    start = 0
    for padded, members in groupby(seen, key=_padded):
        stop = start + len(list(members))
        most = max(1, _GATHER_BYTES // (padded * token_bytes))
        spans += [(slice(i, min(i + most, stop)), padded) for i in range(start, stop, most)]
        start = stop
    scratch = _scratch(pool, max((rows.stop - rows.start) * padded for rows, padded in spans))
    return DecodePlan(
        tuple(
            _bucket(block_tables[rows], lengths[rows], seen[rows], padded, rows, pool, scratch)
            for rows, padded in spans
        )
    )


def decode(q: Tensor, pool: Tensor, plan: DecodePlan, scale: float, *, softcap: float | None = None) -> Tensor:
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
        keys = keys.transpose(1, 2)
        if softcap is None:
            scores = torch.baddbmm(bucket.mask, queries[batch], keys, alpha=scale)  # [batch, group, L]
        else:
            scores = _capped(torch.bmm(queries[batch], keys), scale, softcap).add_(bucket.mask)
        torch.bmm(torch.softmax(scores, dim=-1), values, out=out[batch])
    return out.view(rows, heads, head_dim)


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
    tiles = [list(_tiles(start, count, window)) for start, count in zip(starts, counts, strict=True)]
    # a tile's mask depends on its numbers of queries and keys only; a narrower one is the right end of a wider one
    widths: dict[int, int] = {}
    for size, first, stop in (tile for run in tiles for tile in run):
        widths[size] = max(stop - first, widths.get(size, 0))
    group = heads // pool.shape[1]
    masks = {size: _mask(size, width, window, pool.dtype).repeat(group, 1) for size, width in widths.items()}

    spans = [(run[0][1], run[-1][2]) for run in tiles]  # the positions that a run reads
    scratch = _scratch(pool, max(stop - first for first, stop in spans))
    runs = []
    query = 0
    for block_table, run, (begin, end) in zip(block_tables, tiles, spans, strict=True):
        index = _pool_rows(torch.tensor([block_table]), torch.arange(begin, end)[None], pool).flatten()
        placed = []
        for size, first, stop in run:
            mask = masks[size][:, first - stop :]
            placed.append(_Tile(slice(query, query + size), slice(first - begin, stop - begin), mask))
            query += size
        runs.append(_Run(index, scratch[: len(index)], tuple(placed)))
    return ExtendPlan(tuple(runs))


def extend(q: Tensor, pool: Tensor, plan: ExtendPlan, scale: float, *, softcap: float | None = None) -> Tensor:
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
            result = _tile(
                by_kv_head[:, :, tile.queries].reshape(1, kv_heads, -1, head_dim),  # the group joins the queries
                keys[:, :, tile.keys],
                values[:, :, tile.keys],
                tile.mask,
                scale,
                softcap,
            )
            out_by_kv_head[:, :, tile.queries] = result.view(kv_heads, group, -1, head_dim)
    return out


def _tile(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, softcap: float | None) -> Tensor:
    """Attention of ``q`` [1, kv_heads, queries, head_dim]: the same shape."""
    if softcap is None:
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale)
    scores = _capped(q @ keys.transpose(2, 3), scale, softcap).add_(mask)
    return torch.softmax(scores, dim=-1) @ values


def _capped(scores: Tensor, scale: float, softcap: float) -> Tensor:
    """Scaled and soft-capped, in place."""
    return scores.mul_(scale / softcap).tanh_().mul_(softcap)


def _padded(length: int) -> int:
    """``length`` rounded up to a multiple of 32, beyond 256 of an eighth of the next power of two.

    So ragged rows share few launches, and little of what they read is padding.
    """
    step = max(32, (1 << (length - 1).bit_length()) // 8)
    return -(-length // step) * step


def _bucket(
    block_tables: Sequence[Sequence[int]],
    lengths: Sequence[int],
    seen: Sequence[int],
    padded: int,
    rows: slice,
    pool: Tensor,
    scratch: Tensor,
) -> _Bucket:
    """The bucket of ``rows``, whose last ``seen[i]`` of ``lengths[i]`` positions are padded to ``padded``."""
    count = torch.tensor(seen)[:, None]  # [rows, 1]
    first = torch.tensor(lengths)[:, None] - count
    # block tables as one tensor; what follows a row's own blocks is never read
    width = -(-max(lengths) // pool.shape[2])
    table = torch.tensor([[*table[:width], *[0] * (width - len(table))] for table in block_tables])
    position = torch.arange(padded)
    mask = torch.zeros(len(table), padded, dtype=pool.dtype).masked_fill_(position >= count, float("-inf"))
    mask = mask.repeat_interleave(pool.shape[1], dim=0)[:, None]
    # beyond its length a row reads its own last token, which is finite, instead of what lies there
    index = _pool_rows(table, first + torch.minimum(position, count - 1), pool).flatten()
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


def _tiles(start: int, count: int, window: int | None) -> Iterator[tuple[int, int, int]]:
    """Size of each tile of ``count`` queries at positions from ``start``, and from and to where it sees keys."""
    for offset in range(start, start + count, _QUERY_TILE):
        stop = min(offset + _QUERY_TILE, start + count)
        yield stop - offset, 0 if window is None else max(0, offset - window + 1), stop


def _mask(size: int, width: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """[size, width] for queries at the last ``size`` of ``width`` positions: -inf where a key is not seen.

    That is in the future, or before the window.
    """
    seen = torch.ones(size, width, dtype=torch.bool).tril_(width - size)
    if window is not None:
        seen.triu_(width - size - window + 1)
    return torch.zeros(size, width, dtype=dtype).masked_fill_(~seen, float("-inf"))
