"""An extend step's work list on the device, and the launch that suits it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from orchestra.kernels.attention.block_table import BlockTable
from orchestra.kernels.attention.extend_work import ITEM, MERGE, extend_work
from orchestra.kernels.kv_pool import head_dim_of
from orchestra.kernels.launch import LaunchConfig, arch_of, launch_config

__all__ = ["FEWEST_ROWS", "ExtendPlan", "plan_extend", "tiled"]

FEWEST_ROWS = 16  # what a tensor core multiplies at once
_PROGRAMS_PER_SM = 2  # that run side by side, of four warps each
_SMS = 132  # of an H200; where there is no GPU to ask


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendPlan:
    """The parts of an :class:`ExtendWork` on the pool's device, and how the kernels are launched.

    ``tokens`` is how many queries an extend must have. ``sums`` float32 [slots, kv_heads, rows, head_dim], and
    ``maxima`` and ``totals`` float32 [slots, kv_heads, rows], are scratch for partial results, which all layers
    share: rows are those of a tile, some queries times the query heads of a KV head.
    """

    tokens: int
    window: int | None
    items: Tensor  # int32 [n, 8]
    merges: Tensor  # int32 [m, 4]
    tables: Tensor  # int32 [blocks]
    sums: Tensor
    maxima: Tensor
    totals: Tensor
    launch: LaunchConfig


def plan_extend(
    block_tables: Sequence[BlockTable],
    starts: Sequence[int],
    counts: Sequence[int],
    pool: Tensor,
    heads: int,
    *,
    window: int | None = None,
) -> ExtendPlan:
    """Plan for runs of queries: sequence ``i`` has ``counts[i]`` of them at positions from ``starts[i]``.

    A query sees the positions up to its own, or with a ``window`` the last so many of them. ``heads`` is the
    number of query heads. ``pool`` is any layer's; only its shape, type and device matter. Block tables are
    quickest as int32 (see `BlockTable`). The list is copied to the device at once, and nothing waits for the copy.

    Raises ValueError where a block table does not cover its run.
    """
    kv_heads, block_size, head_dim = *pool.shape[1:3], head_dim_of(pool)
    group = heads // kv_heads
    programs = max(1, _sms(pool.device) * _PROGRAMS_PER_SM // kv_heads)  # of one KV head
    launch = launch_config("attention.extend", arch_of(pool.device), head_dim=head_dim)
    exact = pool.dtype == torch.float32
    rows = FEWEST_ROWS if exact else _rows(launch.blocks["BLOCK_M"], counts, group, programs)
    rows = max(rows, 1 << (group - 1).bit_length())
    launch = tiled(launch, rows, exact=exact)
    work = extend_work(
        block_tables,
        starts,
        counts,
        block_size=block_size,
        window=window,
        queries=rows // group,
        tile=launch.blocks["BLOCK_N"],
        programs=programs,
    )
    flat = torch.from_numpy(work.flat())
    if pool.device.type != "cpu":  # pinned, so that the host need not wait; it is kept until the copy is done
        flat = flat.pin_memory().to(pool.device, non_blocking=True)
    items, merges, tables = torch.split(flat, [work.items.size, work.merges.size, work.tables.size])
    stats = (work.slots, kv_heads, rows)
    return ExtendPlan(
        tokens=sum(counts),
        window=window,
        items=items.view(-1, len(ITEM)),
        merges=merges.view(-1, len(MERGE)),
        tables=tables,
        sums=torch.empty((*stats, head_dim), dtype=torch.float32, device=pool.device),
        maxima=torch.empty(stats, dtype=torch.float32, device=pool.device),
        totals=torch.empty(stats, dtype=torch.float32, device=pool.device),
        launch=launch,
    )


def tiled(launch: LaunchConfig, rows: int, *, exact: bool = False) -> LaunchConfig:
    """``launch`` for tiles of ``rows``, with as many more warps where these are more than its own.

    ``exact`` is for float32, which tensor cores do not multiply: all is in registers, and few keys at once fit.
    """
    warps = launch.num_warps * max(1, rows // launch.blocks["BLOCK_M"])
    keys = launch.blocks["BLOCK_N"]
    if exact:
        return LaunchConfig(blocks={"BLOCK_M": rows, "BLOCK_N": min(keys, 32)}, num_warps=warps, num_stages=1)
    return replace(launch, blocks={"BLOCK_M": rows, "BLOCK_N": keys}, num_warps=warps)


def _rows(rows: int, counts: Sequence[int], group: int, programs: int) -> int:
    """Rows of a tile for runs of so many queries of a ``group`` of heads each: ``rows`` as a rule.

    They are the fewest where no run fills more, and twice as many where there is work for all ``programs`` even
    so: keys and values are then read half as often.
    """
    if max(counts, default=0) * group <= FEWEST_ROWS:
        return FEWEST_ROWS
    twice = 2 * rows
    return twice if sum(-(-count * group // twice) for count in counts) >= programs else rows


def _sms(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else _SMS
