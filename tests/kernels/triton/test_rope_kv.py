from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from orchestra.kernels.rope_kv import reference, triton_

BLOCKS, BLOCK_SIZE = 5, 4
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3}
# Two heads are a program's here: it may hold queries and keys, and there may be one head left for the last.
HEADS_AND_TYPES = [
    ((4, 1), torch.float32),
    ((9, 3), torch.float32),
    ((9, 3), torch.float16),
    ((2, 2), torch.float16),
]


@dataclass
class Inputs:
    qkv: Tensor  # its rows have gaps of NaN between them
    cos: Tensor
    sin: Tensor
    slots: Tensor
    pool: Tensor  # all NaN
    before: Tensor  # what lies before the pool, where a slot of -1 would be: NaN as well

    @classmethod
    def draw(cls, tokens: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> Inputs:
        width = (heads + 2 * kv_heads) * head_dim
        memory = torch.full((tokens, width + 16), float("nan"), dtype=dtype)
        memory[:, :width] = torch.randn(tokens, width)
        angle = torch.randint(0, 500, (tokens, 1)) * 10_000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
        place = torch.randperm(BLOCKS * BLOCK_SIZE)[:tokens, None]
        slots = (place // BLOCK_SIZE * kv_heads + torch.arange(kv_heads)) * BLOCK_SIZE + place % BLOCK_SIZE
        pool = torch.full((1 + BLOCKS, kv_heads, BLOCK_SIZE, 2 * head_dim), float("nan"), dtype=dtype)
        return cls(memory[:, :width], angle.cos(), angle.sin(), slots, pool[1:], pool[0])

    def exactly(self, qk_norm: Tensor | None = None, eps: float = 0.0) -> tuple[Tensor, Tensor]:
        """What the reference makes of them in float64: queries, and the pool."""
        qkv = self.qkv.double().contiguous()
        pool = self.pool.double()
        weight = None if qk_norm is None else qk_norm.double()
        cos, sin = self.cos.double(), self.sin.double()
        return reference.rope_kv(qkv, cos, sin, self.slots, pool, qk_norm=weight, eps=eps), pool


@pytest.mark.parametrize(("heads", "kv_heads", "dtype"), [(*heads, dtype) for heads, dtype in HEADS_AND_TYPES])
@pytest.mark.parametrize("head_dim", [16, 80])  # the latter fills no power of two
def test_rotates_and_writes(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    given = Inputs.draw(3, heads, kv_heads, head_dim, dtype)
    queries, pool = given.exactly()
    before = given.qkv.clone()
    q = triton_.rope_kv(given.qkv, given.cos, given.sin, given.slots, given.pool)
    assert (q.shape, q.dtype) == ((3, heads, head_dim), dtype)
    torch.testing.assert_close(q.double(), queries, atol=TOLERANCE[dtype], rtol=0)
    # the rest of the pool is NaN as before
    torch.testing.assert_close(given.pool.double(), pool, atol=TOLERANCE[dtype], rtol=0, equal_nan=True)
    assert torch.equal(given.qkv, before)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("head_dim", [16, 80])
def test_normalises_queries_and_keys_before_they_turn(head_dim: int, dtype: torch.dtype) -> None:
    given = Inputs.draw(3, 4, 2, head_dim, dtype)
    weight = torch.randn(6, head_dim, dtype=dtype)
    queries, pool = given.exactly(weight, 0.1)
    q = triton_.rope_kv(given.qkv, given.cos, given.sin, given.slots, given.pool, qk_norm=weight, eps=0.1)
    tolerance = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
    torch.testing.assert_close(q.double(), queries, **tolerance)
    torch.testing.assert_close(given.pool.double(), pool, equal_nan=True, **tolerance)


def test_a_slot_of_minus_one_writes_nothing() -> None:
    given = Inputs.draw(4, 4, 2, 16, torch.float32)
    kept = [0, 2]
    given.slots[1::2] = -1
    alone = given.pool.clone()
    q = triton_.rope_kv(given.qkv, given.cos, given.sin, given.slots, given.pool)
    some = (given.qkv[kept], given.cos[kept], given.sin[kept], given.slots[kept])
    assert torch.equal(q[kept], triton_.rope_kv(*some, alone))
    assert torch.equal(given.pool.nan_to_num(99.0), alone.nan_to_num(99.0))
    assert given.before.isnan().all()
    assert alone.isfinite().any(-1).sum() == len(kept) * 2  # a row of the pool for each KV head
    assert q.isfinite().all()


def test_the_pool_may_have_a_type_of_its_own() -> None:
    given = Inputs.draw(3, 4, 2, 16, torch.float32)
    pool = given.pool.half()
    triton_.rope_kv(given.qkv, given.cos, given.sin, given.slots, given.pool)
    triton_.rope_kv(given.qkv, given.cos, given.sin, given.slots, pool)
    assert torch.equal(pool.nan_to_num(99.0), given.pool.half().nan_to_num(99.0))


def test_tokens_and_slots_may_lie_beyond_what_an_int32_counts() -> None:
    given = Inputs.draw(3, 4, 2, 16, torch.float16)
    queries, _ = given.exactly()
    stride, blocks = 2**30, 2**31 // (2 * BLOCK_SIZE * 32) + BLOCKS  # what is not written takes no memory
    qkv = torch.empty(2 * stride + 128, dtype=torch.float16).as_strided((3, 128), (stride, 1))
    qkv.copy_(given.qkv)
    pool = torch.empty(blocks, 2, BLOCK_SIZE, 32, dtype=torch.float16)
    beyond = (blocks - BLOCKS) * 2 * BLOCK_SIZE
    q = triton_.rope_kv(qkv, given.cos, given.sin, given.slots + beyond, pool)
    torch.testing.assert_close(q.double(), queries, atol=TOLERANCE[torch.float16], rtol=0)
    triton_.rope_kv(qkv, given.cos, given.sin, given.slots, given.pool)
    taken = given.slots.flatten()
    assert torch.equal(pool.view(-1, 32)[taken + beyond], given.pool.view(-1, 32)[taken])


def test_no_tokens_are_no_work() -> None:
    given = Inputs.draw(0, 4, 2, 16, torch.float32)
    q = triton_.rope_kv(given.qkv, given.cos, given.sin, given.slots, given.pool)
    assert q.shape == (0, 4, 16)
    assert given.pool.isnan().all()


def test_gaps_are_refused() -> None:
    given = Inputs.draw(3, 4, 2, 16, torch.float32)
    with pytest.raises(ValueError, match="without gaps"):
        triton_.rope_kv(given.qkv, given.cos, given.sin, given.slots[:, :1].expand(-1, 2), given.pool)
    with pytest.raises(ValueError, match="without gaps"):
        triton_.rope_kv(given.qkv, given.cos, given.sin, given.slots, given.pool[:, :, ::2])
    assert given.pool.isnan().all()
