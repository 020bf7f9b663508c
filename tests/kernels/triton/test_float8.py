"""Keys and values of eight bits: how they are written, and what attention makes of them, interpreted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from orchestra.kernels.attention import decode_plan, decode_work, reference
from orchestra.kernels.attention.triton_ import decode, extend, plan_decode, plan_extend
from orchestra.kernels.kv_pool import FLOAT8, FLOAT8_MAX, KvLayout, unpacked, write_slots
from orchestra.kernels.rope_kv import reference as rope_reference
from orchestra.kernels.rope_kv.triton_ import rope_kv

BLOCKS, KV_HEADS, BLOCK_SIZE = 6, 2, 8
# of the arithmetic, keys and values being what they are in the pool
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
TABLES, LENGTHS = [[3, 0, 2], [1, 4], [5]], [3 * BLOCK_SIZE, 9, 1]


def nan_pool(head_dim: int) -> Tensor:
    layout = KvLayout(kv_heads=KV_HEADS, head_dim=head_dim, block_size=BLOCK_SIZE, dtype=FLOAT8)
    pool = layout.allocate(1, BLOCKS, torch.device("cpu"))[0]
    pool.view(torch.uint8).fill_(0x7F)
    return pool


def filled(head_dim: int) -> tuple[Tensor, Tensor]:
    """A pool in which the sequences are written and all else is NaN; and what was written, before rounding."""
    pool = nan_pool(head_dim)
    plain = torch.full((BLOCKS, KV_HEADS, BLOCK_SIZE, 2 * head_dim), float("nan"))
    for table, length in zip(TABLES, LENGTHS, strict=True):
        for position in range(length):
            block, offset = table[position // BLOCK_SIZE], position % BLOCK_SIZE
            plain[block, :, offset] = torch.randn(KV_HEADS, 2 * head_dim)
    slots = plain.view(-1, 2 * head_dim)[:, 0].isfinite().nonzero()[:, 0]
    write_slots(pool, slots, *plain.view(-1, 2, head_dim)[slots].unbind(1))
    return pool, plain


@pytest.fixture(autouse=True)
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_work, "_LEAST_SPLIT", 16)
    monkeypatch.setattr(decode_plan, "_PROGRAMS_PER_SM", 1)


def check(out: Tensor, exact: Tensor, unrounded: Tensor) -> None:
    torch.testing.assert_close(out.double(), exact, atol=TOLERANCE[out.dtype], rtol=0)
    similar = torch.cosine_similarity(out.double().flatten(1), unrounded.flatten(1))
    assert similar.min() > 0.998
    assert (out - unrounded).norm() < 6e-2 * unrounded.norm()


USES = pytest.mark.parametrize(
    ("head_dim", "dtype", "window", "softcap"),
    [
        (64, torch.float32, None, None),
        (64, torch.bfloat16, 20, None),
        (80, torch.float16, 20, 3.0),
    ],
)


@USES
def test_decodes(head_dim: int, dtype: torch.dtype, window: int | None, softcap: float | None) -> None:
    pool, plain = filled(head_dim)
    q = torch.randn(3, 6, head_dim).to(dtype)
    plan = plan_decode(TABLES, LENGTHS, pool, window=window)
    assert plan.slots  # partial results are scaled as whole ones
    out = decode(q, pool, plan, 0.125, softcap=softcap)
    assert out.dtype == dtype
    theirs = reference.plan_decode(TABLES, LENGTHS, pool, window=window)
    exact, unrounded = (
        reference.decode(q.double(), kept.double(), theirs, 0.125, softcap=softcap)
        for kept in (unpacked(pool), plain)
    )
    check(out, exact, unrounded)


@USES
def test_extends(head_dim: int, dtype: torch.dtype, window: int | None, softcap: float | None) -> None:
    pool, plain = filled(head_dim)
    starts, counts = [17, 4, 0], [7, 5, 1]
    q = torch.randn(sum(counts), 6, head_dim).to(dtype)
    out = extend(q, pool, plan_extend(TABLES, starts, counts, pool, 6, window=window), 0.125, softcap=softcap)
    theirs = reference.plan_extend(TABLES, starts, counts, pool, 6, window=window)
    exact, unrounded = (
        reference.extend(q.double(), kept.double(), theirs, 0.125, softcap=softcap)
        for kept in (unpacked(pool), plain)
    )
    check(out, exact, unrounded)


def test_the_reference_reads_it_too() -> None:
    pool, _ = filled(64)
    q = torch.randn(3, 6, 64)
    plan = reference.plan_decode(TABLES, LENGTHS, pool)
    torch.testing.assert_close(
        reference.decode(q, pool, plan, 0.125), reference.decode(q, unpacked(pool), plan, 0.125)
    )


@pytest.mark.parametrize("head_dim", [16, 80])
def test_writes_scaled_keys_and_values_and_nothing_else(head_dim: int) -> None:
    """Numbers that e4m3 has: the interpreter rounds others wrongly, where a carry should reach the exponent."""
    numbers = (torch.arange(8, 16) / 8 * 2.0 ** torch.arange(-4, 4)[:, None]).flatten()
    scale = 2.0 ** torch.randint(-8, 3, (4, 4 + 2 * KV_HEADS, 1))  # another for each token and head
    qkv = numbers[torch.randint(64, (4, 4 + 2 * KV_HEADS, head_dim))] * scale
    qkv[:, :, :1] = -FLOAT8_MAX * scale
    angle = torch.zeros(4, head_dim // 2)  # nothing turns
    slots = torch.tensor([[9, 17], [-1, -1], [0, 95], [64, 40]])
    pool, expected = nan_pool(head_dim), nan_pool(head_dim)
    q = rope_kv(qkv.flatten(1), angle.cos(), angle.sin(), slots, pool)
    assert torch.equal(q, qkv[:, :4])
    written = slots >= 0
    write_slots(expected, slots[written], qkv[:, 4:6][written], qkv[:, 6:8][written])
    assert torch.equal(pool.view(torch.uint8), expected.view(torch.uint8))
    row = unpacked(pool).view(-1, 2, head_dim)[17]
    torch.testing.assert_close(row, torch.stack([qkv[0, 5], qkv[0, 7]]), rtol=1e-6, atol=0)


def test_turns_and_normalises_before_it_scales() -> None:
    qkv, angle = torch.randn(3, (4 + 2 * KV_HEADS) * 16), torch.rand(3, 8) * 6
    slots = torch.tensor([[9, 17], [0, 95], [64, 40]])
    weight = torch.rand(6, 16) + 0.5
    given = (qkv, angle.cos(), angle.sin(), slots)
    pool, expected = nan_pool(16), nan_pool(16)
    q = rope_kv(*given, pool, qk_norm=weight, eps=1e-5)
    torch.testing.assert_close(q, rope_reference.rope_kv(*given, expected, qk_norm=weight, eps=1e-5))
    scales = [kept.view(torch.float32).flatten() for kept in (pool, expected)]
    written = scales[1].isfinite() & (scales[1] > 1e-2) & (scales[1] < 1e2)
    torch.testing.assert_close(scales[0][written], scales[1][written])
    alike = pool.view(torch.uint8) == expected.view(torch.uint8)
    assert alike.float().mean() > 0.99  # the interpreter's carries, and what is between two numbers
