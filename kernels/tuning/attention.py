"""Uses of paged attention to tune launches with: blocks are in no order, as after a while in an engine."""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from orchestra.kernels.attention import reference
from orchestra.kernels.kv_pool import KvLayout, unpacked, write_slots
from orchestra.kernels.tuning.dtypes import FLOAT_TYPES, KEY_TYPES, TOLERANCES
from orchestra.kernels.tuning.search import Problem

__all__ = ["decode_problem", "extend_problem"]

_BLOCK_SIZE = 16
_AT_ONCE = 1 << 16  # slots filled at once
_SCALE = 0.0625  # scores of a few units at most, whatever the head


def decode_problem(device: torch.device, size: Sequence[int], head_dim: int, key_bytes: int) -> Problem:
    """``size``: rows, and positions of the longest; the first rows of several are a little shorter."""
    rows, longest = size
    lengths = [max(1, longest - 7 * (rows - 1 - row)) for row in range(rows)]
    pool, tables = _pool(device, lengths, head_dim, key_bytes)
    dtype = torch.float32 if key_bytes == 4 else FLOAT_TYPES[device.type]
    q = torch.randn(rows, _heads(pool, head_dim), head_dim, device=device).to(dtype)
    triton_ = importlib.import_module("orchestra.kernels.attention.triton_")

    def prepare() -> Callable[[], Tensor]:
        plan = triton_.plan_decode(tables, lengths, pool)
        return lambda: triton_.decode(q, pool, plan, _SCALE)

    def expected() -> Tensor:
        exact = unpacked(pool.cpu()).double()
        return reference.decode(q.cpu().double(), exact, reference.plan_decode(tables, lengths, exact), _SCALE)

    name = f"{rows} rows of {longest:,} positions"
    return Problem(name=name, prepare=prepare, expected=expected, tolerance=TOLERANCES[dtype])


def extend_problem(device: torch.device, size: Sequence[int], head_dim: int) -> Problem:
    """``size``: runs, where each begins, and its queries; the first of several begin a little later."""
    runs, start, count = size
    starts = [start + 3 * (runs - 1 - run) for run in range(runs)]
    counts = [count] * runs
    dtype = FLOAT_TYPES[device.type]
    pool, tables = _pool(device, [begin + count for begin in starts], head_dim, dtype.itemsize)
    heads = _heads(pool, head_dim)
    q = torch.randn(runs * count, heads, head_dim, device=device).to(dtype)
    triton_ = importlib.import_module("orchestra.kernels.attention.triton_")

    def prepare() -> Callable[[], Tensor]:
        plan = triton_.plan_extend(tables, starts, counts, pool, heads)
        return lambda: triton_.extend(q, pool, plan, _SCALE)

    def expected() -> Tensor:
        exact = pool.cpu().double()
        plan = reference.plan_extend(tables, starts, counts, exact, heads)
        return reference.extend(q.cpu().double(), exact, plan, _SCALE)

    name = f"{runs} runs of {count:,} queries from {start:,}"
    return Problem(name=name, prepare=prepare, expected=expected, tolerance=TOLERANCES[dtype])


def _heads(pool: Tensor, head_dim: int) -> int:
    return pool.shape[1] * (2 if head_dim == 256 else 4)


def _pool(
    device: torch.device, lengths: Sequence[int], head_dim: int, key_bytes: int
) -> tuple[Tensor, list[array[int]]]:
    """A pool full of random keys and values, on a GPU eight heads wide, and the block tables of such sequences."""
    blocks = [-(-length // _BLOCK_SIZE) for length in lengths]
    dtype = FLOAT_TYPES[device.type] if key_bytes == 2 else KEY_TYPES[key_bytes]
    kv_heads = 2 if device.type == "cpu" else (4 if head_dim == 256 else 8)
    layout = KvLayout(kv_heads=kv_heads, head_dim=head_dim, block_size=_BLOCK_SIZE, dtype=dtype)
    pool = layout.allocate(1, sum(blocks), device)[0]
    for slots in torch.split(torch.arange(sum(blocks) * kv_heads * _BLOCK_SIZE, device=device), _AT_ONCE):
        keys_values = torch.randn(2, len(slots), head_dim, device=device)
        write_slots(pool, slots, *keys_values)
    ids = iter(torch.randperm(sum(blocks)).tolist())
    return pool, [array("i", (next(ids) for _ in range(count))) for count in blocks]
