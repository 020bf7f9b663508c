"""Extend attention in Triton, interpreted, against the reference in float64."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from orchestra.kernels.attention import extend_plan, extend_work, reference
from orchestra.kernels.attention.triton_extend import extend, plan_extend

NAN = float("nan")
PAGE = 16  # which is a tile of the interpreter's too
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


class Runs:
    """Queries at the ends of sequences, in a pool whose blocks are in no order, and whose other slots are NaN."""

    def __init__(
        self,
        starts: Sequence[int],
        counts: Sequence[int],
        kv_heads: int = 1,
        head_dim: int = 16,
        *,
        group: int = 1,
        page: int = PAGE,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        lengths = [start + count for start, count in zip(starts, counts, strict=True)]
        blocks = [-(-length // page) for length in lengths]
        ids = torch.randperm(sum(blocks) + 3).tolist()
        self.starts, self.counts = list(starts), list(counts)
        self.tables = [[ids.pop() for _ in range(count)] for count in blocks]
        self.pool = torch.full((sum(blocks) + 3, kv_heads, page, 2 * head_dim), NAN, dtype=dtype)
        for table, length in zip(self.tables, lengths, strict=True):
            slots = self.pool[table].transpose(1, 2).flatten(0, 1)  # [positions, kv_heads, 2 * head_dim]
            slots[:length] = torch.randn(length, kv_heads, 2 * head_dim).to(dtype)
            self.pool[table] = slots.view(-1, page, kv_heads, 2 * head_dim).transpose(1, 2)
        self.q = torch.randn(sum(counts), kv_heads * group, head_dim).to(dtype)

    def plan(self, window: int | None = None) -> extend_plan.ExtendPlan:
        return plan_extend(self.tables, self.starts, self.counts, self.pool, self.q.shape[1], window=window)

    def extended(self, scale: float = 0.25, *, window: int | None = None, softcap: float | None = None) -> Tensor:
        return extend(self.q, self.pool, self.plan(window), scale, softcap=softcap)

    def expected(self, scale: float = 0.25, *, window: int | None = None, softcap: float | None = None) -> Tensor:
        heads = self.q.shape[1]
        plan = reference.plan_extend(self.tables, self.starts, self.counts, self.pool, heads, window=window)
        return reference.extend(self.q.double(), self.pool.double(), plan, scale, softcap=softcap)

    def check(
        self, out: Tensor, scale: float = 0.25, *, window: int | None = None, softcap: float | None = None
    ) -> None:
        assert out.shape == self.q.shape
        assert out.dtype == self.q.dtype
        expected = self.expected(scale, window=window, softcap=softcap)
        torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[self.q.dtype], rtol=0)


@pytest.mark.parametrize(("kv_heads", "group"), [(2, 1), (1, 3), (2, 4), (1, 8)])
def test_runs_that_begin_and_end_about_a_page_and_a_tile(kv_heads: int, group: int) -> None:
    starts = [0, 0, 0, 5, PAGE, PAGE - 1, 2 * PAGE + 1]
    counts = [1, PAGE - 1, PAGE + 1, 3, PAGE, 1, 2]
    runs = Runs(starts, counts, kv_heads, group=group)
    runs.check(runs.extended())


def test_a_group_of_more_heads_than_a_tile_has_rows() -> None:
    runs = Runs([0, 20], [3, 2], group=17)
    runs.check(runs.extended())


@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    [
        (8, torch.float32),
        (8, torch.bfloat16),
        (64, torch.float16),
        (80, torch.float32),
        (80, torch.float16),
        (128, torch.float16),
        (128, torch.bfloat16),
    ],
)
def test_head_sizes_and_types(head_dim: int, dtype: torch.dtype) -> None:
    runs = Runs([0, 45], [17, 4], 2, head_dim, group=3, dtype=dtype)
    scale = head_dim**-0.5
    runs.check(runs.extended(scale), scale)


@pytest.mark.parametrize("page", [4, 5, 64])
def test_pages_smaller_and_larger_than_a_tile(page: int) -> None:
    runs = Runs([0, page - 1, 40], [page + 1, 3, 20], page=page)
    runs.check(runs.extended())


@pytest.mark.parametrize(
    ("window", "softcap"), [(1, 2.0), (7, None), (PAGE, 2.0), (PAGE, None), (33, 2.0), (1000, None)]
)
def test_within_a_window_and_soft_capped(window: int, softcap: float | None) -> None:
    runs = Runs([0, 5, PAGE, 80], [35, 20, PAGE, 15], group=2)
    for table, start in zip(runs.tables, runs.starts, strict=True):  # what lies before the windows is never read
        for position in range(start + 1 - window):
            runs.pool[table[position // PAGE], :, position % PAGE] = NAN
    runs.check(runs.extended(0.5, window=window, softcap=softcap), 0.5, window=window, softcap=softcap)


def test_a_soft_cap_alone() -> None:
    runs = Runs([0, 30], [20, 20], group=3)
    runs.check(runs.extended(2.0, softcap=5.0), 2.0, softcap=5.0)


def test_scores_far_apart_and_large() -> None:
    """The largest comes first, in the middle and last; weights then fade by all that a float32 can tell."""
    runs = Runs([95, 95, 95], [1, 1, 1])
    for row, position in enumerate((0, 50, 95)):
        runs.pool[runs.tables[row][position // PAGE], :, position % PAGE, :16] = runs.q[row] * 20
    runs.check(runs.extended(5.0), 5.0)
    runs.check(runs.extended(5.0, softcap=30.0), 5.0, softcap=30.0)


def test_queries_may_be_strided() -> None:
    runs = Runs([0, 30], [20, 5], 2, group=2)
    expected = runs.extended()
    runs.check(expected)
    beside_keys = torch.full((25, 4 + 4, 16), NAN)
    beside_keys[:, :4] = runs.q
    heads_outermost = runs.q.transpose(0, 1).contiguous().transpose(0, 1)
    dims_outermost = runs.q.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    for strided in (beside_keys[:, :4], heads_outermost, dims_outermost):
        assert not strided.is_contiguous()
        assert torch.equal(extend(strided, runs.pool, runs.plan(), 0.25), expected)


def test_queries_of_another_type_than_the_pool() -> None:
    runs = Runs([0, 30], [20, 5], group=3, dtype=torch.float16)
    runs.q = runs.q.float()
    runs.check(runs.extended())


@pytest.mark.parametrize("window", [None, 20])
def test_runs_may_share_blocks_and_tables_be_longer_than_runs(window: int | None) -> None:
    runs = Runs([0, 0], [70, 60], group=2)
    own, other = runs.tables
    # the same table, one that shares its beginning, and one with a block reserved ahead
    runs.tables, runs.starts, runs.counts = (
        [own, own, own[:2] + other[2:], [*own, 0]],
        [0, 40, 32, 66],
        [5, 9, 20, 4],
    )
    runs.q = torch.randn(38, 2, 16)
    runs.check(runs.extended(window=window), window=window)


def test_one_plan_serves_every_layer() -> None:
    runs = Runs([0, 510], [20, 7], group=2)
    plan, before = runs.plan(), runs.pool
    assert len(plan.merges)
    first = extend(runs.q, before, plan, 0.25)
    runs.check(first)
    runs.pool = before * -0.5
    runs.check(extend(runs.q, runs.pool, plan, 0.25))
    assert torch.equal(extend(runs.q, before, plan, 0.25), first)


def test_a_block_may_lie_beyond_what_an_int32_counts() -> None:
    stride = 2**30  # of a block: that of block 3 begins at 3 * 2**30; what is not written takes no memory
    huge = torch.empty(3 * stride + 2 * PAGE * 32, dtype=torch.float16)
    runs = Runs([0, 10], [40, 10], 2, dtype=torch.float16)
    pool = huge.as_strided((4, 2, PAGE, 32), (stride, PAGE * 32, 32, 1))
    pool.copy_(torch.randn(4, 2, PAGE, 32))
    runs.tables, runs.pool = [[3, 0, 2], [1, 3]], pool.clone()
    runs.check(extend(runs.q, pool, runs.plan(), 0.25))


@pytest.mark.parametrize("window", [None, 25])
def test_a_prompt_in_chunks_is_the_whole_prompt(window: int | None) -> None:
    runs = Runs([0], [60], group=3)
    whole = runs.extended(window=window)
    runs.check(whole, window=window)
    chunks, start = [], 0
    for count in (1, 20, 17, 22):
        part = runs.q[start : start + count]
        plan = plan_extend(runs.tables, [start], [count], runs.pool, 3, window=window)
        chunks.append(extend(part, runs.pool, plan, 0.25))
        start += count
    torch.testing.assert_close(torch.cat(chunks), whole, atol=1e-6, rtol=0)


def test_few_queries_after_a_long_context_divide_it() -> None:
    runs = Runs([511, 250, 0], [7, 8, 4], group=3)
    plan = runs.plan()
    # tiles of five queries: the first of each whose context is longer than a part, and in how many it is
    assert plan.merges[:, [0, 3]].tolist() == [[0, 3], [5, 3], [12, 2]]
    assert plan.merges[:, 2].tolist() == [0, 3, 6]
    runs.check(extend(runs.q, runs.pool, plan, 0.25))
    assert not len(Runs([504, 250], [7, 8], group=3).plan().merges)  # merging would cost more than it gains


@pytest.mark.parametrize(("window", "softcap"), [(None, 2.0), (20, None), (30, 2.0), (70, None)])
def test_a_divided_context_within_a_window(
    window: int | None, softcap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extend_work, "LEAST_PART", PAGE)
    runs = Runs([70, 25, 0], [16, 12, 20], 2)  # some queries see nothing of a part that others see
    plan = runs.plan(window)
    assert len(plan.merges)
    runs.check(extend(runs.q, runs.pool, plan, 0.5, softcap=softcap), 0.5, window=window, softcap=softcap)


def test_many_queries_have_tiles_of_twice_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs([0, 116], [40, 12], group=3, dtype=torch.float16)
    assert runs.plan().launch.blocks["BLOCK_M"] == 16
    monkeypatch.setattr(extend_plan, "_SMS", 3)
    plan = runs.plan()
    assert plan.launch.blocks["BLOCK_M"] == 32
    assert not len(plan.merges)
    runs.check(extend(runs.q, runs.pool, plan, 0.25))
    monkeypatch.setattr(extend_work, "LEAST_PART", PAGE)
    plan = runs.plan()
    assert plan.launch.blocks["BLOCK_M"] == 32
    assert len(plan.merges)
    runs.check(extend(runs.q, runs.pool, plan, 0.25))


def test_runs_without_queries_are_no_work() -> None:
    runs = Runs([3, 0, 20], [0, 5, 0], group=2)
    runs.check(runs.extended())
    nothing = Runs([3], [0])
    assert nothing.extended().shape == (0, 1, 16)
    assert plan_extend([], [], [], nothing.pool, 1).tokens == 0


def test_what_does_not_fit_is_refused() -> None:
    runs = Runs([0, 20], [16, 12])
    with pytest.raises(ValueError, match="in 3 blocks, and its block table has 2"):
        plan_extend(runs.tables, [0, 20], [16, 13], runs.pool, 1)
    with pytest.raises(ValueError, match="the plan is for 28 queries, and q has 27"):
        extend(runs.q[1:], runs.pool, runs.plan(), 0.25)


@pytest.mark.parametrize("window", [None, 1, 100, 256, 3000])
@pytest.mark.parametrize("programs", [1, 20, 400])
def test_every_query_meets_each_key_that_it_sees_once(window: int | None, programs: int) -> None:
    starts, counts, tile = [0, 1000, 0, 255, 4000], [300, 1, 21, 130, 40], 64
    tables = [range(-(-(start + count) // 16)) for start, count in zip(starts, counts, strict=True)]
    work = extend_work.extend_work(
        tables, starts, counts, block_size=16, window=window, queries=21, tile=tile, programs=programs
    )
    positions = [start + i for start, count in zip(starts, counts, strict=True) for i in range(count)]
    meets: list[list[tuple[int, int]]] = [[] for _ in positions]  # the keys from and to which, by query
    slots: dict[int, list[int]] = {}  # of each tile by its first query, in the order of the context
    for token, size, position, table, first, begin, end, slot in sorted(work.items.tolist(), key=lambda i: i[5]):
        assert begin % tile == 0
        assert end % tile == 0 or end == position + size
        assert work.tables[table] == 0
        assert first == (0 if window is None else max(0, position - window + 1))
        assert positions[token : token + size] == list(range(position, position + size))
        for query in range(token, token + size):
            meets[query].append((begin, end))
        slots.setdefault(token, []).append(slot)
    for position, spans in zip(positions, meets, strict=True):
        assert spans[0][0] <= (0 if window is None else max(0, position - window + 1))
        assert spans[-1][1] > position
        assert [end for _, end in spans[:-1]] == [begin for begin, _ in spans[1:]]
    longest_first = [end - begin for begin, end in work.items[:, 5:7].tolist()]
    assert longest_first == sorted(longest_first, reverse=True)
    assert all(len(taken) > 1 for taken in slots.values() if taken != [-1])
    assert {token: taken for token, taken in slots.items() if taken != [-1]} == {
        token: list(range(slot, slot + count)) for token, _, slot, count in work.merges.tolist()
    }
    assert sorted(slot for taken in slots.values() for slot in taken if slot >= 0) == list(range(work.slots))
    if window is None:
        assert bool(work.slots) == (programs > 1)
