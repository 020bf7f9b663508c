"""Paged attention on a CPU: keys and values are gathered, each contiguous, then multiplied in batches.

A token's key and value lie side by side in the pool, as two rows of ``head_dim`` numbers. They are gathered apart,
one after the other into the same scratch buffer: products of matrices whose rows follow each other directly take
about half the time of those with gaps between.

Decode folds the query heads that share a KV head into the query axis, so that keys and values are read once and
never expanded. Rows are padded to few lengths. In strict mode that of a row is a function of its own length alone:
its products have the same shapes whoever its neighbours are, and its result the same bits; else neighbours are
padded alike where a launch saved is worth it. (``scaled_dot_product_attention`` is neither faster here nor
independent of the number of rows.) Neighbouring rows of one block table, as where the tokens of a
prompt are rows of their own, read what is gathered once, by products of those same shapes.

Extend takes one sequence at a time, in tiles of queries, each against the keys up to its last query: half the
work of a whole square is above the diagonal.

With a window, both gather and multiply what is inside it only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from orchestra.kernels.kv_pool import refuse_float8

__all__ = ["DecodePlan", "ExtendPlan", "decode", "extend", "plan_decode", "plan_extend"]

_QUERY_TILE = 128
_GATHER_BYTES = 16 << 20  # read at once in decode: half of it stays in the cache, and memory is bounded
_BUCKET_POSITIONS = 700  # of padding that take as long as the launches of one bucket more (two cores, 9 heads)
_MOST_SHARING = 128  # rows: their scores are as large as what is gathered is small


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Neighbouring rows of one padded length L, as many as are gathered at once.

    ``keys`` and ``values`` are int64 [rows * kv_heads * L], into the pool flattened to rows of head_dim.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor  # [rows * kv_heads, 1, L], added to the scores: 0, or -inf beyond the row's length
    gathered: Tensor  # [rows * kv_heads, L, head_dim], a scratch buffer that all buckets share


@dataclass(frozen=True, slots=True)
class _SharedBucket:
    """Neighbouring rows of one block table and one padded length L, which they gather once.

    ``keys`` and ``values`` are int64 [kv_heads * L], as in _Bucket.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor  # [rows, 1, L], as in _Bucket
    gathered: Tensor  # [kv_heads, L, head_dim], scratch likewise


@dataclass(frozen=True, slots=True)
class DecodePlan:
    buckets: tuple[_Bucket | _SharedBucket, ...]


@dataclass(frozen=True, slots=True)
class _Tile:
    """Some queries of one sequence, and the keys from the first that one of them sees to the last."""

    queries: slice  # in the concatenated runs
    keys: slice  # in what the run gathers
    mask: Tensor  # [group * queries, keys], added to the scores


@dataclass(frozen=True, slots=True)
class _Run:
    """The queries of one sequence; ``keys`` and ``values`` are int64 [kv_heads * length], as in _Bucket."""

    keys: Tensor
    values: Tensor
    gathered: Tensor  # [2, kv_heads, length, head_dim], shared scratch for keys and values
    tiles: tuple[_Tile, ...]


@dataclass(frozen=True, slots=True)
class ExtendPlan:
    runs: tuple[_Run, ...]


def plan_decode(
    block_tables: Sequence[Sequence[int]],
    lengths: Sequence[int],
    pool: Tensor,
    *,
    window: int | None = None,
    strict: bool = False,
) -> DecodePlan:
    """Plan for rows of one query each: row ``i`` sees positions ``0 .. lengths[i] - 1`` of its block table.

    With a ``window`` it sees the last so many of them only. With ``strict`` a row is padded by its own length
    alone, so that its result is the same to the last bit in any company; without, to that of neighbours too, where
    that is quicker. ``pool`` is any layer's; only its shape and type matter. Rows of similar length should be
    neighbours.
    """
    refuse_float8(pool)
    token_bytes = pool[0, :, 0].nbytes
    seen = [length if window is None else min(length, window) for length in lengths]

    def alike(row: int) -> tuple[int, int | None]:
        """Its padded length and, where a neighbour has the same, its block table."""
        table = block_tables[row]
        neighbours = (block_tables[i] for i in (row - 1, row + 1) if 0 <= i < len(block_tables))
        shares = window is None and any(other is table for other in neighbours)
        return _padded(seen[row]), id(table) if shares else None

    groups = [(padded, table, len(list(members))) for (padded, table), members in groupby(range(len(seen)), alike)]
    spans = []
    start = 0
    for padded, shared, count in groups if strict else _joined(groups):
        stop = start + count
        most = _MOST_SHARING if shared is not None else max(1, _GATHER_BYTES // (padded * token_bytes))
        spans += [(slice(i, min(i + most, stop)), padded, shared is not None) for i in range(start, stop, most)]
        start = stop
    scratch = _scratch(
        pool, max(padded if shared else (rows.stop - rows.start) * padded for rows, padded, shared in spans)
    )
    return DecodePlan(
        tuple(
            _shared_bucket(block_tables[rows.start], seen[rows], padded, pool, scratch)
            if shared
            else _bucket(block_tables[rows], lengths[rows], seen[rows], padded, pool, scratch)
            for rows, padded, shared in spans
        )
    )


def _joined(groups: Iterable[tuple[int, int | None, int]]) -> Iterator[tuple[int, int | None, int]]:
    """Join neighbouring groups (padded length, shared table, rows) that share no table, where that is quicker.

    Of all ways to cut them, the one with the least padding and the fewest pieces, a piece being worth
    ``_BUCKET_POSITIONS``.
    """
    for own, members in groupby(groups, key=lambda group: group[1] is None):
        if not own:
            yield from members
            continue
        alone = [(padded, rows) for padded, _, rows in members]
        # the least cost of the first n groups, and where their last piece begins
        best: list[tuple[int, int]] = [(0, 0)]
        for stop in range(1, len(alone) + 1):
            longest = rows = 0
            ways = []
            for begin in range(stop - 1, -1, -1):
                longest, rows = max(longest, alone[begin][0]), rows + alone[begin][1]
                ways.append((best[begin][0] + longest * rows + _BUCKET_POSITIONS, begin))
            best.append(min(ways))
        pieces = []
        stop = len(alone)
        while stop:
            begin = best[stop][1]
            pieces.append(alone[begin:stop])
            stop = begin
        for piece in reversed(pieces):
            yield max(padded for padded, _ in piece), None, sum(rows for _, rows in piece)


def decode(q: Tensor, pool: Tensor, plan: DecodePlan, scale: float, *, softcap: float | None = None) -> Tensor:
    """Attention of ``q`` [rows, heads, head_dim] over ``pool``: [rows, heads, head_dim].

    Query head ``h`` reads KV head ``h // (heads / kv_heads)``.
    """
    rows, heads, head_dim = q.shape
    kv_heads = pool.shape[1]
    # the batch axis is (row, kv head) from here on
    queries = q.reshape(rows * kv_heads, heads // kv_heads, head_dim)
    out = torch.empty_like(queries)
    flat_pool = pool.view(-1, head_dim)
    sizes = [len(bucket.mask) * (kv_heads if isinstance(bucket, _SharedBucket) else 1) for bucket in plan.buckets]
    for bucket, query, result in zip(
        plan.buckets, torch.split(queries, sizes), torch.split(out, sizes), strict=True
    ):
        gathered = bucket.gathered  # the keys, and once they are done with, the values
        torch.index_select(flat_pool, 0, bucket.keys, out=gathered.view(-1, head_dim))
        if isinstance(bucket, _SharedBucket):
            by_head = query.view(-1, kv_heads, *query.shape[1:]).unbind(1)  # each [rows, group, head_dim]
            keys = [own.T.expand(len(bucket.mask), -1, -1) for own in gathered]
            weights = [_weights(*own, bucket.mask, scale, softcap) for own in zip(by_head, keys, strict=True)]
            torch.index_select(flat_pool, 0, bucket.values, out=gathered.view(-1, head_dim))
            for own, weight, values in zip(
                result.view(-1, kv_heads, *query.shape[1:]).unbind(1), weights, gathered, strict=True
            ):
                own.copy_(torch.bmm(weight, values.expand(len(bucket.mask), -1, -1)))
        else:
            weight = _weights(query, gathered.transpose(1, 2), bucket.mask, scale, softcap)
            torch.index_select(flat_pool, 0, bucket.values, out=gathered.view(-1, head_dim))
            torch.bmm(weight, gathered, out=result)
    return out.view(rows, heads, head_dim)


def _weights(query: Tensor, keys: Tensor, mask: Tensor, scale: float, softcap: float | None) -> Tensor:
    """How much each of ``query`` [batch, group, head_dim] takes of each of ``keys`` [batch, head_dim, L]."""
    if softcap is None:
        scores = torch.baddbmm(mask, query, keys, alpha=scale)  # [batch, group, L]
    else:
        scores = _capped(torch.bmm(query, keys), scale, softcap).add_(mask)
    return torch.softmax(scores, dim=-1)


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
    kv_heads, head_dim = pool.shape[1], pool.shape[3] // 2
    refuse_float8(pool)
    tiles = [list(_tiles(start, count, window)) for start, count in zip(starts, counts, strict=True)]
    # a tile's mask depends on its numbers of queries and keys only; a narrower one is the right end of a wider one
    widths: dict[int, int] = {}
    for size, first, stop in (tile for run in tiles for tile in run):
        widths[size] = max(stop - first, widths.get(size, 0))
    group = heads // kv_heads
    masks = {size: _mask(size, width, window, pool.dtype).repeat(group, 1) for size, width in widths.items()}

    spans = [(run[0][1], run[-1][2]) for run in tiles]  # the positions that a run reads
    scratch = _scratch(pool, 2 * max(stop - first for first, stop in spans))
    runs = []
    query = 0
    for block_table, run, (begin, end) in zip(block_tables, tiles, spans, strict=True):
        keys, values = _pool_rows(numpy.array([block_table]), numpy.arange(begin, end)[None], pool)
        gathered = scratch[: 2 * len(keys)].view(2, kv_heads, -1, head_dim)
        placed = []
        for size, first, stop in run:
            mask = masks[size][:, first - stop :]
            placed.append(_Tile(slice(query, query + size), slice(first - begin, stop - begin), mask))
            query += size
        runs.append(_Run(keys, values, gathered, tuple(placed)))
    return ExtendPlan(tuple(runs))


def extend(q: Tensor, pool: Tensor, plan: ExtendPlan, scale: float, *, softcap: float | None = None) -> Tensor:
    """Attention of ``q`` [sum(counts), heads, head_dim], the runs end to end, over ``pool``: the same shape."""
    tokens, heads, head_dim = q.shape
    kv_heads = pool.shape[1]
    group = heads // kv_heads
    by_kv_head = q.reshape(tokens, kv_heads, group, head_dim).permute(1, 2, 0, 3)  # [kv_heads, group, tokens, d]
    out = q.new_empty(tokens, heads, head_dim)
    out_by_kv_head = out.view(tokens, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    flat_pool = pool.view(-1, head_dim)
    for run in plan.runs:
        keys, values = torch.split(run.gathered, 1)  # [1, kv_heads, length, head_dim]
        torch.index_select(flat_pool, 0, run.keys, out=keys.view(-1, head_dim))
        torch.index_select(flat_pool, 0, run.values, out=values.view(-1, head_dim))
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
    pool: Tensor,
    scratch: Tensor,
) -> _Bucket:
    """The bucket of rows whose last ``seen[i]`` of ``lengths[i]`` positions are padded to ``padded``."""
    kv_heads, block_size, width = pool.shape[1:]
    count = numpy.array(seen)[:, None]  # [rows, 1]
    first = numpy.array(lengths)[:, None] - count
    # block tables as one array; what follows a row's own blocks is never read
    table = numpy.zeros((len(lengths), -(-max(lengths) // block_size)), numpy.int64)
    for own, blocks in zip(table, block_tables, strict=True):
        known = blocks[: len(own)]
        own[: len(known)] = known
    position = numpy.arange(padded)
    # beyond its length a row reads its own last token, which is finite, instead of what lies there
    keys, values = _pool_rows(table, first + numpy.minimum(position, count - 1), pool)
    beyond = torch.from_numpy(position >= count)
    mask = torch.zeros(beyond.shape, dtype=pool.dtype).masked_fill_(beyond, float("-inf"))
    return _Bucket(
        keys,
        values,
        mask.repeat_interleave(kv_heads, dim=0)[:, None],
        scratch[: len(keys)].view(-1, padded, width // 2),
    )


def _shared_bucket(
    block_table: Sequence[int], seen: Sequence[int], padded: int, pool: Tensor, scratch: Tensor
) -> _SharedBucket:
    """The bucket of rows of one block table that see its first ``seen[i]`` positions, padded to ``padded``."""
    position, longest = numpy.arange(padded), max(seen)
    table = numpy.array([block_table[: -(-longest // pool.shape[2])]], numpy.int64)
    keys, values = _pool_rows(table, numpy.minimum(position, longest - 1)[None], pool)
    beyond = torch.from_numpy(position >= numpy.array(seen)[:, None])
    mask = torch.zeros(beyond.shape, dtype=pool.dtype).masked_fill_(beyond, float("-inf"))
    return _SharedBucket(keys, values, mask[:, None], scratch[: len(keys)].view(-1, padded, pool.shape[3] // 2))


def _pool_rows(table: NDArray[numpy.int64], position: NDArray[numpy.int64], pool: Tensor) -> tuple[Tensor, Tensor]:
    """Where keys and values lie, as rows of the pool flattened to [blocks * kv_heads * block_size * 2, head_dim].

    ``table`` [rows, blocks], ``position`` [rows, L]: by row, head and position, [rows * kv_heads * L].
    """
    kv_heads, block_size = pool.shape[1:3]
    block, offset = numpy.divmod(position, block_size)
    block = numpy.take_along_axis(table, block, axis=1)[:, None]
    token = (block * kv_heads + numpy.arange(kv_heads)[:, None]) * block_size + offset[:, None]
    keys = torch.from_numpy(token.ravel()).mul_(2)
    return keys, keys + 1


def _scratch(pool: Tensor, tokens: int) -> Tensor:
    """Room for the keys, or the values, of ``tokens`` tokens."""
    return torch.empty(tokens * pool.shape[1], pool.shape[3] // 2, dtype=pool.dtype)


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
