"""Decode attention in Triton, interpreted, against the reference in float64."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import numpy
import pytest
import torch
from torch import Tensor

from orchestra.kernels.attention import decode_plan, decode_work, reference
from orchestra.kernels.attention.block_table import BlockTable
from orchestra.kernels.attention.triton_decode import DecodePlanBuffer, decode, plan_decode

NAN = float("nan")
PAGE = 16  # which is a tile of the interpreter's too
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
LEAST, STRICT = 16, 32


@pytest.fixture(autouse=True)
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one tile, of two in strict mode, and one program a multiprocessor: interpreted tiles are slow."""
    monkeypatch.setattr(decode_work, "_LEAST_SPLIT", LEAST)
    monkeypatch.setattr(decode_plan, "_STRICT_SPLIT", STRICT)
    monkeypatch.setattr(decode_plan, "_PROGRAMS_PER_SM", 1)


class Cache:
    """Sequences in a pool whose blocks are in no order, and whose every other slot is NaN."""

    def __init__(
        self,
        lengths: Sequence[int],
        kv_heads: int = 1,
        head_dim: int = 16,
        *,
        page: int = PAGE,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        counts = [-(-length // page) for length in lengths]
        ids = torch.randperm(sum(counts) + 3).tolist()
        self.lengths = list(lengths)
        self.tables = [[ids.pop() for _ in range(count)] for count in counts]
        self.pool = torch.full((sum(counts) + 3, kv_heads, page, 2 * head_dim), NAN, dtype=dtype)
        for table, length in zip(self.tables, lengths, strict=True):
            slots = self.pool[table].transpose(1, 2).flatten(0, 1)  # [positions, kv_heads, 2 * head_dim]
            slots[:length] = torch.randn(length, kv_heads, 2 * head_dim).to(dtype)
            self.pool[table] = slots.view(-1, page, kv_heads, 2 * head_dim).transpose(1, 2)

    def queries(self, group: int = 1) -> Tensor:
        kv_heads, width = self.pool.shape[1], self.pool.shape[3]
        return torch.randn(len(self.lengths), kv_heads * group, width // 2).to(self.pool.dtype)

    def check(
        self,
        q: Tensor,
        out: Tensor,
        scale: float = 0.25,
        *,
        window: int | None = None,
        softcap: float | None = None,
    ) -> None:
        plan = reference.plan_decode(self.tables, self.lengths, self.pool, window=window)
        expected = reference.decode(q.double(), self.pool.double(), plan, scale, softcap=softcap)
        assert out.shape == q.shape
        assert out.dtype == q.dtype
        torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[q.dtype], rtol=1e-5)


@pytest.mark.parametrize(("kv_heads", "group"), [(2, 1), (2, 3), (1, 4), (1, 8), (1, 17)])
def test_lengths_about_a_page_and_a_tile(kv_heads: int, group: int) -> None:
    cache = Cache([1, PAGE - 1, PAGE, PAGE + 1, 31, 33, 2], kv_heads, 64)
    q = cache.queries(group)
    cache.check(q, decode(q, cache.pool, plan_decode(cache.tables, cache.lengths, cache.pool), 0.25))


@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    [
        (8, torch.float32),
        (8, torch.bfloat16),
        (80, torch.float32),
        (80, torch.float16),
        (128, torch.float16),
        (128, torch.bfloat16),
    ],
)
def test_head_sizes_and_types(head_dim: int, dtype: torch.dtype) -> None:
    cache = Cache([1, 17, 40], 1, head_dim, dtype=dtype)
    q = cache.queries(3)
    scale = head_dim**-0.5
    plan = plan_decode(cache.tables, cache.lengths, cache.pool)
    cache.check(q, decode(q, cache.pool, plan, scale), scale)


@pytest.mark.parametrize("page", [4, 5, 32, 64])
def test_pages_smaller_and_larger_than_a_tile(page: int) -> None:
    cache = Cache([1, page - 1, page, page + 1, 40], page=page)
    q = cache.queries()
    cache.check(q, decode(q, cache.pool, plan_decode(cache.tables, cache.lengths, cache.pool), 0.25))


@pytest.mark.parametrize("strict", [False, True])
def test_lengths_about_a_split(strict: bool) -> None:
    split = STRICT if strict else LEAST
    cache = Cache([split - 1, split, split + 1, 2 * split - 1, 2 * split, 2 * split + 1, 1])
    q = cache.queries(3)
    plan = plan_decode(cache.tables, cache.lengths, cache.pool, strict=strict)
    assert plan.slots == 2 + 2 + 2 + 3
    cache.check(q, decode(q, cache.pool, plan, 0.25))


def test_any_number_of_splits_gives_the_same() -> None:
    cache = Cache([13 * PAGE - 5, 7])
    q = cache.queries(2)
    for splits in (1, 2, 3, 5, 7, 13):  # what 13 tiles can be cut into; one program more is for the short row
        plan = plan_decode(cache.tables, cache.lengths, cache.pool, num_sms=splits + 1)
        assert plan.slots == (splits if splits > 1 else 0)
        cache.check(q, decode(q, cache.pool, plan, 0.25))


def test_more_splits_than_are_merged_at_once() -> None:
    cache = Cache([40 * LEAST - 3])
    q = cache.queries(2)
    cache.pool[cache.tables[0][-1], 0, 5, :16] = 2 * q[0, 0]  # the largest score, among those that are merged last
    plan = plan_decode(cache.tables, cache.lengths, cache.pool)
    assert plan.slots == 40
    cache.check(q, decode(q, cache.pool, plan, 0.25))


@pytest.mark.parametrize(
    ("window", "softcap"),
    [(1, None), (2, 2.0), (PAGE - 1, None), (PAGE, 2.0), (33, None), (33, 2.0), (1000, 2.0)],
)
def test_within_a_window_and_soft_capped(window: int, softcap: float | None) -> None:
    cache = Cache([1, PAGE, PAGE + 1, 33, 60])
    for table, length in zip(
        cache.tables, cache.lengths, strict=True
    ):  # what lies before the window is never read
        for position in range(length - window):
            cache.pool[table[position // PAGE], :, position % PAGE] = NAN
    q = cache.queries(3)
    plan = plan_decode(cache.tables, cache.lengths, cache.pool, window=window)
    out = decode(q, cache.pool, plan, 0.5, softcap=softcap)
    cache.check(q, out, 0.5, window=window, softcap=softcap)


def test_scores_far_apart_and_large() -> None:
    """The largest comes first, in the middle and last; weights then fade by all that a float32 can tell."""
    cache = Cache([60, 60, 60])
    q = cache.queries()
    for row, position in enumerate((0, 30, 59)):
        key = cache.pool[cache.tables[row][position // PAGE], :, position % PAGE, :16]
        key.copy_(q[row] * 20)
    plan = plan_decode(cache.tables, cache.lengths, cache.pool)
    cache.check(q, decode(q, cache.pool, plan, 5.0), 5.0)
    cache.check(q, decode(q, cache.pool, plan, 5.0, softcap=10.0), 5.0, softcap=10.0)


def test_queries_may_be_strided() -> None:
    cache = Cache([20, 3, 50])
    q = cache.queries(4)
    plan = plan_decode(cache.tables, cache.lengths, cache.pool)
    expected = decode(q, cache.pool, plan, 0.25)
    cache.check(q, expected)
    beside_keys = torch.full((3, 4 + 4, 16), NAN)
    beside_keys[:, :4] = q
    heads_outermost = q.transpose(0, 1).contiguous().transpose(0, 1)
    dims_outermost = q.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    for strided in (beside_keys[:, :4], heads_outermost, dims_outermost):
        assert not strided.is_contiguous()
        assert torch.equal(decode(strided, cache.pool, plan, 0.25), expected)


def test_queries_of_another_type_than_the_pool() -> None:
    cache = Cache([20, 3, 50], dtype=torch.float16)
    q = cache.queries(2).float()
    cache.check(q, decode(q, cache.pool, plan_decode(cache.tables, cache.lengths, cache.pool), 0.25))


@pytest.mark.parametrize("window", [None, 20])
def test_rows_may_share_blocks_and_tables_be_longer_than_rows(window: int | None) -> None:
    cache = Cache([80, 60])
    own, other = cache.tables
    # the same table, one like it, one that shares its beginning, and one with a block reserved ahead
    cache.tables = [own, own, list(own), own[:3] + other[3:], [*own, 0], own]
    cache.lengths = [80, 20, 33, 60, 80, 50]
    q = cache.queries()
    plan = plan_decode(cache.tables, cache.lengths, cache.pool, window=window)
    cache.check(q, decode(q, cache.pool, plan, 0.25), window=window)


def test_one_plan_serves_every_layer() -> None:
    cache = Cache([40, 7])
    q = cache.queries()
    plan = plan_decode(cache.tables, cache.lengths, cache.pool)
    first = decode(q, cache.pool, plan, 0.25)
    cache.check(q, first)
    before = cache.pool
    cache.pool = before * -0.5
    cache.check(q, decode(q, cache.pool, plan, 0.25))
    assert torch.equal(decode(q, before, plan, 0.25), first)


def test_layers_share_room_for_partial_results() -> None:
    cache = Cache([70, 5])
    q = cache.queries(3)
    buffer = DecodePlanBuffer(cache.pool, 2, 5, num_sms=4)
    buffer.fill(cache.tables, cache.lengths)
    decode(q, cache.pool, buffer.plan, 0.25)
    room = buffer.plan.scratch.tensors(buffer.plan.slots, 3, 16, q.device)
    room[0].fill_(NAN)
    cache.check(q, decode(q, cache.pool, buffer.plan, 0.25))
    assert room[0].isfinite().any()  # where they were: a graph replays with these addresses


@pytest.mark.parametrize("kind", [lambda ids: array("i", ids), lambda ids: numpy.array(ids, numpy.int32)])
def test_block_tables_may_be_arrays(kind: Callable[[list[int]], BlockTable]) -> None:
    cache = Cache([40, 7, 33])
    plan = plan_decode(cache.tables, cache.lengths, cache.pool)
    arrays = plan_decode([kind(table) for table in cache.tables], cache.lengths, cache.pool)
    assert torch.equal(arrays.tables, plan.tables)
    assert torch.equal(arrays.items, plan.items)


def test_a_block_may_lie_beyond_what_an_int32_counts() -> None:
    stride = 2**29  # of a block: the last begins at 2**31; what is not written takes no memory
    huge = torch.empty(4 * stride + 2 * PAGE * 32, dtype=torch.float16)
    small = Cache([40, 20], 2, dtype=torch.float16)
    tables = [[4, 0, 2], [1, 3]]
    pool = huge.as_strided((5, 2, PAGE, 32), (stride, PAGE * 32, 32, 1))
    pool.copy_(torch.randn(5, 2, PAGE, 32))
    q = small.queries(2)
    small.tables, small.pool = tables, pool.clone()
    plan = plan_decode(tables, small.lengths, pool)
    small.check(q, decode(q, pool, plan, 0.25))


@pytest.mark.parametrize(("window", "softcap"), [(None, None), (35, 5.0)])
def test_strict_rows_have_the_same_bits_in_any_company(window: int | None, softcap: float | None) -> None:
    cache = Cache([3, 20, STRICT - 1, STRICT + 1, 40, 70])
    q = cache.queries(3)

    def decoded(rows: list[int], num_sms: int = 132) -> Tensor:
        tables, lengths = [cache.tables[i] for i in rows], [cache.lengths[i] for i in rows]
        plan = plan_decode(tables, lengths, cache.pool, window=window, strict=True, num_sms=num_sms)
        return decode(q[rows], cache.pool, plan, 0.5, softcap=softcap)

    together = decoded([0, 1, 2, 3, 4, 5])
    cache.check(q, together, 0.5, window=window, softcap=softcap)
    for row in range(6):
        assert torch.equal(decoded([row])[0], together[row])
    shuffled = [4, 0, 5, 2, 4]
    assert torch.equal(decoded(shuffled, num_sms=1), together[shuffled])


@pytest.mark.parametrize("strict", [False, True])
def test_a_buffer_is_filled_anew_for_every_step(strict: bool) -> None:
    cache = Cache([70, 5, 33, 40])
    q = cache.queries(3)
    buffer = DecodePlanBuffer(cache.pool, 4, 5, strict=strict, num_sms=4)
    plan = buffer.plan
    decode(q, cache.pool, plan, 0.25)  # there is nothing to do yet, and nothing fails
    for rows in ([0, 1, 2, 3], [1], [3, 0], [2, 1, 3]):
        tables, lengths = [cache.tables[i] for i in rows], [cache.lengths[i] for i in rows]
        buffer.fill(tables, lengths)
        padded = torch.cat([q[rows], torch.full((4 - len(rows), 3, 16), NAN)])
        own = plan_decode(tables, lengths, cache.pool, strict=strict, num_sms=4)
        expected = decode(q[rows], cache.pool, own, 0.25)
        assert torch.equal(decode(padded, cache.pool, plan, 0.25)[: len(rows)], expected)
    assert buffer.plan is plan


def test_what_does_not_fit_is_refused() -> None:
    cache = Cache([20, 40])
    tables, pool = cache.tables, cache.pool
    buffer = DecodePlanBuffer(pool, 1, 2)
    with pytest.raises(ValueError, match="room for 1 rows of 32 positions"):
        buffer.fill(tables, [20, 20])
    with pytest.raises(ValueError, match="not for 1 rows of up to 33"):
        buffer.fill([tables[1]], [33])
    with pytest.raises(ValueError, match="in 3 blocks, and its block table has 2"):
        plan_decode(tables, [33, 40], pool)
    with pytest.raises(ValueError, match="at least one position"):
        plan_decode(tables, [20, 0], pool)
    with pytest.raises(ValueError, match="the plan is for 2 rows, and q has 1"):
        decode(cache.queries()[:1], pool, plan_decode(tables, [20, 40], pool), 0.25)
