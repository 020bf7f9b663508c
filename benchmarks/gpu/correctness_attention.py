"""Checks of paged attention: edges of blocks, tiles and splits, windows, soft-caps, graphs, large pools."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from gpu.cache import Cache, attention
from gpu.errors import WrongResult, compared
from gpu.figures import Figure
from gpu.lab import Lab
from orchestra.kernels.kv_pool import FLOAT8
from orchestra.localengine.models.spec import ModelSpec

__all__ = ["attention_checks"]

Check = tuple[str, Callable[[], Iterator[Figure]]]
_LENGTHS = [1, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 257, 1000, 4097, 9001]
_FEW = [17, 1, 33]
_RUNS = [(0, 1), (0, 17), (0, 300), (5, 3), (63, 2), (64, 65), (1000, 128), (9000, 7), (127, 1)]
_FEW_RUNS = [(15, 3)]
_INT32 = 1 << 31


def attention_checks(lab: Lab, name: str, spec: ModelSpec) -> Iterator[Check]:
    """Yield the checks of a model's shape, and what measures each."""
    kinds = (
        ("", lab.dtype, None, None),
        (", window and soft-cap", lab.dtype, 100, 5.0),
        (", float8 cache", FLOAT8, None, None),
    )
    # the groups of a 1B's heads are those of an 8B, and its heads are as large as a 135M's
    for kind, dtype, window, softcap in kinds[: 1 if name == "1B" or (lab.rehearsal and name != "8B") else 3]:
        for operation, check in (("decode", _decode), ("extend", _extend)):
            what = f"{operation} {name}{kind}"
            yield what, partial(check, lab, what, spec, dtype, window, softcap)
    if name == "8B":
        for what, special in (
            ("decode within a CUDA graph, filled anew", _graph),
            ("decode, strict: a row in any company", _strict),
            ("attention and KV write beyond 2**31 elements", _far),
        ):
            yield what, partial(special, lab, what, spec)


def _decode(
    lab: Lab, what: str, spec: ModelSpec, dtype: torch.dtype, window: int | None, softcap: float | None
) -> Iterator[Figure]:
    from orchestra.kernels.attention.triton_ import decode, plan_decode

    if missing := lab.lacks(what, dtype):
        yield missing
        return
    cache, q = _rows(lab, spec, _FEW if lab.rehearsal else _LENGTHS, dtype)
    scale = spec.head_dim**-0.5
    plan = plan_decode(cache.tables, cache.lengths, cache.pool, window=window)
    exact = _exact_rows(cache, q, scale, window, softcap)
    yield compared(lab, what, lambda: [decode(q, cache.pool, plan, scale, softcap=softcap)], [exact])


def _extend(
    lab: Lab, what: str, spec: ModelSpec, dtype: torch.dtype, window: int | None, softcap: float | None
) -> Iterator[Figure]:
    """Tiles of every size: few queries, some, and enough for all programs."""
    from orchestra.kernels.attention.triton_ import extend, plan_extend

    if missing := lab.lacks(what, dtype):
        yield missing
        return
    batches = [_FEW_RUNS] if lab.rehearsal else [_RUNS]
    if not lab.rehearsal and dtype == lab.dtype and softcap is None:  # each other size of tile is compiled anew
        batches += [(0, 2048)] * 4, [(700, 4), (9000, 4)]
    scale = spec.head_dim**-0.5
    results: list[Callable[[], Tensor]] = []
    exact = []
    for runs in batches:
        starts, counts = [start for start, _ in runs], [count for _, count in runs]
        cache = _cache(lab, spec, [start + count for start, count in runs], dtype)
        q = lab.random(sum(counts), spec.num_heads, spec.head_dim)
        plan = plan_extend(cache.tables, starts, counts, cache.pool, spec.num_heads, window=window)
        results.append(partial(extend, q, cache.pool, plan, scale, softcap=softcap))
        parts = zip(q.split(counts), cache.tables, starts, strict=True)
        exact.append(
            torch.cat(
                [
                    attention(part, cache.pool, table, start, scale, window=window, softcap=softcap)
                    for part, table, start in parts
                ]
            )
        )
    yield compared(lab, what, lambda: [result() for result in results], exact)


def _graph(lab: Lab, what: str, spec: ModelSpec) -> Iterator[Figure]:
    """A plan filled anew under a recorded launch: rows fewer and longer than those that it was recorded with."""
    from orchestra.kernels.attention.triton_ import DecodePlanBuffer, decode

    cache, q = _rows(lab, spec, _FEW if lab.rehearsal else _LENGTHS[::-1], lab.dtype)
    scale, rows = spec.head_dim**-0.5, len(cache.lengths)
    # a rehearsal's grid is small: programs without work are slow to interpret
    sms = 1 if lab.rehearsal else None
    buffer = DecodePlanBuffer(cache.pool, rows, max(map(len, cache.tables)), num_sms=sms)
    buffer.fill(cache.tables[:1], [1])
    launch = partial(decode, q, cache.pool, buffer.plan, scale)
    replay = _recorded(lab, launch)
    exact = _exact_rows(cache, q, scale, None, None)

    def filled(count: int) -> Tensor:
        buffer.fill(cache.tables[:count], cache.lengths[:count])
        return replay()[:count].clone()

    counts = (rows, 1, rows // 2 + 1)
    yield compared(lab, what, lambda: [filled(count) for count in counts], [exact[:count] for count in counts])


def _recorded(lab: Lab, launch: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """``launch`` as a CUDA graph's replay; itself where there is no GPU."""
    if lab.device.type != "cuda":
        return launch
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        launch()
    torch.cuda.current_stream().wait_stream(aside)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = launch()

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay


def _strict(lab: Lab, what: str, spec: ModelSpec) -> Iterator[Figure]:
    from orchestra.kernels.attention.triton_ import decode, plan_decode

    cache, q = _rows(lab, spec, _FEW if lab.rehearsal else _LENGTHS, lab.dtype)
    scale = spec.head_dim**-0.5

    def computed(first: int, stop: int) -> Tensor:
        plan = plan_decode(cache.tables[first:stop], cache.lengths[first:stop], cache.pool, strict=True)
        return decode(q[first:stop], cache.pool, plan, scale)

    together = computed(0, len(q))
    alone = torch.cat([computed(row, row + 1) for row in range(len(q))])
    if not torch.equal(together, alone):
        different = (together != alone).flatten(1).any(1).nonzero().flatten().tolist()
        lengths = [cache.lengths[row] for row in different]
        raise WrongResult(f"rows of lengths {lengths} have other bits alone than among others")
    yield compared(lab, what, lambda: [computed(0, len(q))], [_exact_rows(cache, q, scale, None, None)])


def _far(lab: Lab, what: str, spec: ModelSpec) -> Iterator[Figure]:
    """The last blocks of a pool of more elements than an int32 counts."""
    from orchestra.kernels.attention.triton_ import decode, extend, plan_decode, plan_extend
    from orchestra.kernels.rope_kv.triton_ import rope_kv

    block = spec.num_kv_heads * 16 * 2 * spec.head_dim  # elements
    first = 0 if lab.rehearsal else _INT32 // block + 8
    if missing := lab.needs(what, round(2.5 * first * block * lab.dtype.itemsize)):
        yield missing
        return
    cache = _cache(lab, spec, [33, 17], lab.dtype, first)
    scale, count = spec.head_dim**-0.5, 3
    q = lab.random(2, spec.num_heads, spec.head_dim)
    runs = lab.random(2 * count, spec.num_heads, spec.head_dim)
    starts = [length - count for length in cache.lengths]
    plan = plan_decode(cache.tables, cache.lengths, cache.pool)
    extend_plan = plan_extend(cache.tables, starts, [count] * 2, cache.pool, spec.num_heads)
    exact_runs = torch.cat(
        [
            attention(part, cache.pool, table, start, scale)
            for part, table, start in zip(runs.split(count), cache.tables, starts, strict=True)
        ]
    )
    # what is written there: turned by nothing, so that it can be read back as it is
    qkv = lab.random(1, (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim)
    flat = spec.head_dim // 2
    cos, sin = torch.ones(1, flat, device=lab.device), torch.zeros(1, flat, device=lab.device)
    last = cache.pool.shape[0] - 1  # which no sequence owns
    slots = (last * spec.num_kv_heads + torch.arange(spec.num_kv_heads, device=lab.device)[None]) * 16
    keys, values = qkv.view(-1, spec.head_dim)[spec.num_heads :].chunk(2)

    def results() -> list[Tensor]:
        cache.pool[last] = float("nan")
        rope_kv(qkv, cos, sin, slots, cache.pool)
        return [
            decode(q, cache.pool, plan, scale),
            extend(runs, cache.pool, extend_plan, scale),
            cache.pool[last, :, 0].clone(),
        ]

    written = torch.cat([keys, values], dim=-1)
    yield compared(lab, what, results, [_exact_rows(cache, q, scale, None, None), exact_runs, written.double()])


def _cache(lab: Lab, spec: ModelSpec, lengths: Sequence[int], dtype: torch.dtype, first_block: int = 0) -> Cache:
    shape = (spec.num_kv_heads, spec.head_dim)
    return Cache(lengths, *shape, dtype=dtype, device=lab.device, first_block=first_block)


def _rows(lab: Lab, spec: ModelSpec, lengths: Sequence[int], dtype: torch.dtype) -> tuple[Cache, Tensor]:
    """Sequences, and a query for each; the queries have gaps between them, as within a step's projections."""
    cache = _cache(lab, spec, lengths, dtype)
    gapped = lab.random(len(lengths), spec.num_heads + 1, spec.head_dim)
    return cache, gapped[:, : spec.num_heads]


def _exact_rows(cache: Cache, q: Tensor, scale: float, window: int | None, softcap: float | None) -> Tensor:
    """Decode in float64: a row's one query is at the last of its positions."""
    return torch.cat(
        [
            attention(query[None], cache.pool, table, length - 1, scale, window=window, softcap=softcap)
            for query, table, length in zip(q, cache.tables, cache.lengths, strict=True)
        ]
    )
