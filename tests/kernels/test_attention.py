from types import ModuleType

import pytest
import torch
from torch import Tensor

from orchestra.kernels.attention import reference, torch_cpu

BLOCK = 16
MODULES = [reference, torch_cpu]
HEADS = [(3, 3), (9, 3), (8, 2)]  # groups of 1, 3, 4


class Cache:
    """Sequences whose keys and values are known, laid into a pool whose every other slot is NaN."""

    def __init__(self, lengths: list[int], kv_heads: int, head_dim: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        counts = [-(-n // BLOCK) for n in lengths]
        ids = torch.randperm(sum(counts) + 3, generator=generator).tolist()
        self.pool = torch.full((len(ids), kv_heads, BLOCK, 2 * head_dim), float("nan"))
        self.tables: list[list[int]] = []
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        for length, count in zip(lengths, counts, strict=True):
            table = [ids.pop() for _ in range(count)]
            key, value = torch.randn(2, length, kv_heads, head_dim, generator=generator)
            for p in range(length):
                self.pool[table[p // BLOCK], :, p % BLOCK] = torch.cat([key[p], value[p]], -1)
            self.tables.append(table)
            self.keys.append(key)
            self.values.append(value)


def exact(
    q: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None = None, softcap: float | None = None
) -> Tensor:
    """Causal attention in float64, the queries being the last positions: q [n, heads, d], key [len, kv, d]."""
    group = q.shape[1] // key.shape[1]
    k, v = (x.double().repeat_interleave(group, 1).transpose(0, 1) for x in (key, value))
    scores = q.double().transpose(0, 1) @ k.transpose(1, 2) * scale  # [heads, n, len]
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    n, length = scores.shape[1:]
    back = torch.arange(length - n, length)[:, None] - torch.arange(length)  # how far behind the query a key is
    unseen = (back < 0) | (back >= (length if window is None else window))
    return (scores.masked_fill(unseen, float("-inf")).softmax(-1) @ v).transpose(0, 1)


def check(actual: Tensor, expected: Tensor) -> None:
    assert actual.shape == expected.shape
    torch.testing.assert_close(actual.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_decode(module: ModuleType, heads: int, kv_heads: int, head_dim: int) -> None:
    lengths = [1, BLOCK - 1, BLOCK, BLOCK + 1, 31, 32, 33, 100, 2]
    cache = Cache(lengths, kv_heads, head_dim)
    q, scale = torch.randn(len(lengths), heads, head_dim), head_dim**-0.5
    plan = module.plan_decode(cache.tables, lengths, cache.pool)
    out = module.decode(q, cache.pool, plan, scale)
    rows = zip(q, cache.keys, cache.values, strict=True)
    check(out, torch.cat([exact(x[None], key, value, scale) for x, key, value in rows]))


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_extend(module: ModuleType, heads: int, kv_heads: int, head_dim: int) -> None:
    # whole prompts, chunks that start in mid-block and on a boundary, one token
    starts = [0, 0, 5, BLOCK, 40, 0]
    counts = [BLOCK - 1, BLOCK + 1, 20, BLOCK, 1, 1]
    lengths = [start + count for start, count in zip(starts, counts, strict=True)]
    cache = Cache(lengths, kv_heads, head_dim)
    q, scale = torch.randn(sum(counts), heads, head_dim), head_dim**-0.5
    plan = module.plan_extend(cache.tables, starts, counts, cache.pool, heads)
    out = module.extend(q, cache.pool, plan, scale)
    rows = zip(q.split(counts), cache.keys, cache.values, strict=True)
    check(out, torch.cat([exact(x, key, value, scale) for x, key, value in rows]))


@pytest.mark.parametrize("counts", [[127], [128], [129], [300], [300, 44, 128, 260]])
def test_extend_in_several_tiles(counts: list[int]) -> None:
    starts = [17, 0, 90, 33][: len(counts)]
    cache = Cache([start + count for start, count in zip(starts, counts, strict=True)], 2, 64)
    q = torch.randn(sum(counts), 4, 64)
    plan = torch_cpu.plan_extend(cache.tables, starts, counts, cache.pool, 4)
    rows = zip(q.split(counts), cache.keys, cache.values, strict=True)
    expected = torch.cat([exact(x, key, value, 0.125) for x, key, value in rows])
    check(torch_cpu.extend(q, cache.pool, plan, 0.125), expected)


@pytest.mark.parametrize("length", [255, 256, 257, 320, 513, 1000])
def test_decode_of_long_rows(length: int) -> None:
    cache = Cache([length], 2, 64)
    q = torch.randn(1, 6, 64)
    plan = torch_cpu.plan_decode(cache.tables, [length], cache.pool)
    check(torch_cpu.decode(q, cache.pool, plan, 0.125), exact(q, cache.keys[0], cache.values[0], 0.125))


def test_decode_gathers_in_parts_where_the_whole_would_be_large(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [40, 50, 60, 33, 100, 5]
    cache = Cache(lengths, 2, 64)
    q = torch.randn(6, 4, 64)

    def decode() -> tuple[int, Tensor]:
        plan = torch_cpu.plan_decode(cache.tables, lengths, cache.pool, strict=True)
        return len(plan.buckets), torch_cpu.decode(q, cache.pool, plan, 0.125)

    buckets, whole = decode()
    monkeypatch.setattr(torch_cpu, "_GATHER_BYTES", 3 * 64 * 2 * 128 * 4)  # three rows of 64
    more_buckets, parts = decode()
    assert (buckets, more_buckets) == (3, 4)
    assert torch.equal(parts, whole)


def test_rows_are_padded_alike_where_that_is_quicker() -> None:
    lengths = [20, 40, 60, 64, 90, 900, 910]
    cache = Cache(lengths, 2, 64)
    q = torch.randn(len(lengths), 4, 64)
    plan = torch_cpu.plan_decode(cache.tables, lengths, cache.pool)
    assert [bucket.gathered.shape[1] for bucket in plan.buckets] == [96, 1024]  # five short rows, two long ones
    rows = zip(q, cache.keys, cache.values, strict=True)
    expected = torch.cat([exact(x[None], key, value, 0.125) for x, key, value in rows])
    check(torch_cpu.decode(q, cache.pool, plan, 0.125), expected)


@pytest.mark.parametrize("module", MODULES)
def test_sequences_may_share_blocks(module: ModuleType) -> None:
    cache = Cache([48], 2, 64)
    lengths = [48, 20, 48, 33]  # four readers of one block table
    q = torch.randn(4, 4, 64)
    out = module.decode(q, cache.pool, module.plan_decode(cache.tables * 4, lengths, cache.pool), 0.125)
    key, value = cache.keys[0], cache.values[0]
    check(out, torch.cat([exact(q[i : i + 1], key[:n], value[:n], 0.125) for i, n in enumerate(lengths)]))


def test_one_plan_serves_every_layer() -> None:
    caches = [Cache([40, 7], 2, 64, seed=3) for _ in range(2)]
    second = caches[1].pool.mul_(-0.5)
    plan = torch_cpu.plan_decode(caches[0].tables, [40, 7], caches[0].pool)
    q = torch.randn(2, 4, 64)
    first = torch_cpu.decode(q, caches[0].pool, plan, 0.125)
    torch_cpu.decode(q, second, plan, 0.125)
    assert torch.equal(torch_cpu.decode(q, caches[0].pool, plan, 0.125), first)


@pytest.mark.usefixtures("two_threads")
def test_a_row_has_the_same_bits_whoever_its_neighbours_are() -> None:
    lengths = [3, 20, 40, 64, 129, 140, 150, 300]
    cache = Cache(lengths, 3, 64)
    q = torch.randn(len(lengths), 9, 64)

    def decode(rows: list[int]) -> Tensor:
        tables, own = [cache.tables[i] for i in rows], [lengths[i] for i in rows]
        return torch_cpu.decode(
            q[rows], cache.pool, torch_cpu.plan_decode(tables, own, cache.pool, strict=True), 0.125
        )

    together = decode(list(range(len(lengths))))
    for i in range(len(lengths)):
        assert torch.equal(decode([i])[0], together[i])
    shuffled = [5, 0, 7, 2, 4]
    assert torch.equal(decode(shuffled), together[shuffled])


def test_a_block_table_may_be_longer_than_the_row() -> None:
    cache = Cache([20, 40], 2, 64)
    tables = [[*cache.tables[0], 0, 1], cache.tables[1]]  # blocks reserved ahead
    q = torch.randn(2, 4, 64)
    expected = torch_cpu.decode(q, cache.pool, torch_cpu.plan_decode(cache.tables, [20, 40], cache.pool), 0.125)
    assert torch.equal(
        torch_cpu.decode(q, cache.pool, torch_cpu.plan_decode(tables, [20, 40], cache.pool), 0.125), expected
    )


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("window", [1, 2, BLOCK - 1, BLOCK, 33, 40, 1000])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_decode_within_a_window_and_soft_capped(module: ModuleType, window: int, softcap: float | None) -> None:
    lengths = [1, BLOCK, BLOCK + 1, 33, 40, 41, 100, 2]
    cache = Cache(lengths, 2, 64)
    for i, length in enumerate(lengths):  # what lies before the window is never read
        for p in range(length - window):
            cache.pool[cache.tables[i][p // BLOCK], :, p % BLOCK] = float("nan")
    q = torch.randn(len(lengths), 6, 64)
    plan = module.plan_decode(cache.tables, lengths, cache.pool, window=window)
    out = module.decode(q, cache.pool, plan, 0.25, softcap=softcap)
    rows = zip(q, cache.keys, cache.values, strict=True)
    check(out, torch.cat([exact(x[None], key, value, 0.25, window, softcap) for x, key, value in rows]))


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("window", [None, 1, 7, BLOCK, 40, 1000])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_extend_within_a_window_and_soft_capped(
    module: ModuleType, window: int | None, softcap: float | None
) -> None:
    starts, counts = [0, 0, 5, BLOCK, 40, 90], [BLOCK - 1, 50, 20, BLOCK, 1, 30]
    lengths = [start + count for start, count in zip(starts, counts, strict=True)]
    cache = Cache(lengths, 2, 64)
    for i, start in enumerate(starts):
        for p in range(0 if window is None else start + 1 - window):
            cache.pool[cache.tables[i][p // BLOCK], :, p % BLOCK] = float("nan")
    q = torch.randn(sum(counts), 6, 64)
    plan = module.plan_extend(cache.tables, starts, counts, cache.pool, 6, window=window)
    out = module.extend(q, cache.pool, plan, 0.25, softcap=softcap)
    rows = zip(q.split(counts), cache.keys, cache.values, strict=True)
    check(out, torch.cat([exact(x, key, value, 0.25, window, softcap) for x, key, value in rows]))


@pytest.mark.parametrize("window", [1, 100, 128, 150, 500])
def test_extend_within_a_window_in_several_tiles(window: int) -> None:
    starts, counts = [17, 0, 200], [300, 129, 260]
    cache = Cache([start + count for start, count in zip(starts, counts, strict=True)], 2, 64)
    q = torch.randn(sum(counts), 4, 64)
    plan = torch_cpu.plan_extend(cache.tables, starts, counts, cache.pool, 4, window=window)
    rows = zip(q.split(counts), cache.keys, cache.values, strict=True)
    expected = torch.cat([exact(x, key, value, 0.125, window) for x, key, value in rows])
    check(torch_cpu.extend(q, cache.pool, plan, 0.125), expected)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_a_windowed_row_has_the_same_bits_whoever_its_neighbours_are(softcap: float | None) -> None:
    lengths = [3, 20, 40, 64, 129, 300]
    cache = Cache(lengths, 3, 64)
    q = torch.randn(len(lengths), 9, 64)

    def decode(rows: list[int], window: int | None) -> Tensor:
        tables, own = [cache.tables[i] for i in rows], [lengths[i] for i in rows]
        plan = torch_cpu.plan_decode(tables, own, cache.pool, window=window, strict=True)
        return torch_cpu.decode(q[rows], cache.pool, plan, 0.125, softcap=softcap)

    together = decode(list(range(len(lengths))), 50)
    for i in range(len(lengths)):
        assert torch.equal(decode([i], 50)[0], together[i])
    # a window that hides nothing is none, to the last bit
    assert torch.equal(decode([0, 1, 2], 50), decode([0, 1, 2], None))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("window", [None, 50])
def test_rows_of_one_table_read_it_once_and_have_the_same_bits(softcap: float | None, window: int | None) -> None:
    """The tokens of a prompt as rows of their own: with others beside them, in parts, and each alone."""
    cache = Cache([300, 40], 3, 64)
    lengths = [*range(1, 301), 40]
    tables = [cache.tables[0]] * 300 + [cache.tables[1]]
    q = torch.randn(len(lengths), 9, 64)

    def decode(rows: range) -> Tensor:
        own, seen = [tables[i] for i in rows], [lengths[i] for i in rows]
        plan = torch_cpu.plan_decode(own, seen, cache.pool, window=window, strict=True)
        return torch_cpu.decode(q[rows.start : rows.stop], cache.pool, plan, 0.125, softcap=softcap)

    together = decode(range(301))
    for i in (0, 1, 31, 32, 33, 200, 255, 299, 300):
        assert torch.equal(decode(range(i, i + 1))[0], together[i])
    assert torch.equal(decode(range(17, 280)), together[17:280])
    check(together[:300], exact(q[:300], cache.keys[0], cache.values[0], 0.125, window, softcap))
    plan = torch_cpu.plan_decode(tables, lengths, cache.pool)
    gathered = sum(len(bucket.keys) for bucket in plan.buckets)
    assert gathered < 3 * 20 * 320  # and not 3 * 300 * 300
