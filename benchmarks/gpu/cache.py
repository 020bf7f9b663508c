"""Sequences in a paged KV pool, as kernels find them, and what attention over them is in float64."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from orchestra.kernels.kv_pool import KvLayout, head_dim_of, unpacked, write_slots

__all__ = ["Cache", "attention"]

BLOCK_SIZE = 16


class Cache:
    """Sequences of ``lengths`` tokens in ``copies`` pools alike, by blocks in no order.

    What no sequence owns is NaN: what a kernel reads there shows. ``first_block``: blocks before it are nobody's.
    Raises ValueError where the device does not know ``dtype``.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        copies: int = 1,
        first_block: int = 0,
    ) -> None:
        counts = [-(-length // BLOCK_SIZE) for length in lengths]
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(1)) + first_block
        self.lengths = list(lengths)
        self.tables = [array("i", part.tolist()) for part in order.split(counts)]
        layout = KvLayout(kv_heads=kv_heads, head_dim=head_dim, block_size=BLOCK_SIZE, dtype=dtype)
        self.pools = layout.allocate(copies, first_block + sum(counts) + 1, device)
        self.bytes_read = sum(lengths) * layout.bytes_per_token
        self.pools.view(torch.uint8).fill_(0xFF)  # which is NaN in every type
        for table, length in zip(order.to(device).split(counts), lengths, strict=True):
            _fill(self.pool, table, length)
        self.pools[1:] = self.pools[0]

    @property
    def pool(self) -> Tensor:
        """The first of the pools."""
        return self.pools[0]


def _fill(pool: Tensor, table: Tensor, length: int) -> None:
    """Write random keys and values to the first ``length`` positions of a sequence."""
    kv_heads, head_dim = pool.shape[1], head_dim_of(pool)
    position = torch.arange(length, device=pool.device)
    blocks = table[position // BLOCK_SIZE]
    slots = (blocks[:, None] * kv_heads + torch.arange(kv_heads, device=pool.device)) * BLOCK_SIZE
    slots = (slots + position[:, None] % BLOCK_SIZE).flatten()
    keys, values = torch.randn(2, len(slots), head_dim, device=pool.device)
    write_slots(pool, slots, keys, values)


def attention(
    q: Tensor,
    pool: Tensor,
    table: Sequence[int],
    start: int,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """In float64, attention of ``q`` [n, heads, head_dim] at positions from ``start`` over one sequence: like q.

    What it means is in ``orchestra.kernels.attention.reference``, a query and a head at a time; here all at once.
    """
    count, heads, _ = q.shape
    length = start + count
    blocks = torch.as_tensor(list(table[: -(-length // BLOCK_SIZE)]), device=pool.device)
    tokens = unpacked(pool[blocks]).double().transpose(1, 2).flatten(0, 1)[:length]  # [length, kv_heads, 2 * D]
    group = heads // tokens.shape[1]
    keys, values = (part.repeat_interleave(group, dim=1) for part in tokens.chunk(2, dim=-1))
    scores = torch.einsum("nhd,lhd->hnl", q.double(), keys) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    query = torch.arange(start, length, device=pool.device)[:, None]
    key = torch.arange(length, device=pool.device)
    seen = key <= query if window is None else (key <= query) & (key > query - window)
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1)
    # what no query sees may be NaN, which a weight of 0 does not make up for
    values = torch.where(seen.any(0)[:, None, None], values, 0.0)
    return torch.einsum("hnl,lhd->nhd", weights, values)
