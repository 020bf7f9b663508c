"""Decode attention against the copy bandwidth, over batches and contexts.

Its floor is to read every cached key and value once. Each row of a batch has as long a context as the others; in
the ragged ones lengths differ as in real traffic.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from gpu.cache import Cache
from gpu.figures import Figure, Target
from gpu.lab import Lab
from gpu.models import MODELS
from gpu.timing import cold_copies
from orchestra.kernels.kv_pool import FLOAT8
from orchestra.localengine.models.spec import ModelSpec

__all__ = ["run"]

_MANY = 1 << 20  # cached tokens, from which on nothing but bandwidth counts
_OF_MANY = Target(least=0.75)
_OF_ONE = Target(least=0.5)
_ONE = (1, 32768)
_GRID = {
    "8B": [
        (32, 32768),
        (256, 4096),
        (1, 32768),
        (64, 1024),
        (1, 8192),
        (1, 1024),
        (8, 1024),
        (8, 8192),
        (256, 1024),
    ],
    "1B": [(32, 32768), (1, 32768), (64, 1024), (1, 1024)],
    "135M": [(256, 4096), (1, 8192), (64, 1024), (1, 1024)],
}
_RAGGED = {"8B": 128, "135M": 128}
_LEAST_CALLS = 16


def run(lab: Lab) -> Iterator[Figure]:
    """Measure the grid, the rows that have targets first."""
    grid = {name: [(2, 40)] for name in MODELS} if lab.rehearsal else _GRID
    points = [(name, rows, context) for name, its in grid.items() for rows, context in its]
    points.sort(key=lambda point: _target(*point) is None)  # stable
    work = [(_named(*point), partial(_uniform, lab, *point)) for point in points]
    for rows, context in [(2, 40)] if lab.rehearsal else [(32, 32768), (1, 32768)]:
        what = f"{_named('8B', rows, context)}, float8 cache"
        work.append((what, partial(_float8, lab, what, rows, context)))
    for name, rows in {"8B": 3}.items() if lab.rehearsal else _RAGGED.items():
        work.append((f"decode attention {name}, {rows} ragged rows", partial(_ragged, lab, name, rows)))
    yield from lab.attempts(work)


def _uniform(lab: Lab, name: str, rows: int, context: int) -> Iterator[Figure]:
    yield _measure(lab, _named(name, rows, context), name, [context] * rows, _target(name, rows, context))


def _float8(lab: Lab, what: str, rows: int, context: int) -> Iterator[Figure]:
    yield lab.lacks(what, FLOAT8) or _measure(lab, what, "8B", [context] * rows, None, FLOAT8)


def _ragged(lab: Lab, name: str, rows: int) -> Iterator[Figure]:
    rng = random.Random(7)
    median, most = (20, 60) if lab.rehearsal else (1500, 16384)
    lengths = [max(1, min(most, int(rng.lognormvariate(0, 1) * median))) for _ in range(rows)]
    what = f"decode attention {name}, {rows} ragged rows, {sum(lengths):,} tokens"
    yield _measure(lab, what, name, lengths, None)


def _measure(
    lab: Lab,
    what: str,
    name: str,
    lengths: Sequence[int],
    target: Target | None,
    dtype: torch.dtype | None = None,
) -> Figure:
    """Attend to ``lengths`` tokens, kept in ``dtype`` (None: the device's)."""
    from orchestra.kernels.attention.triton_ import decode, plan_decode

    spec = lab.model(name)
    dtype = dtype or lab.dtype
    size = _kv_bytes(spec, sum(lengths), dtype.itemsize)
    copies = cold_copies(size, lab.device)
    if missing := lab.needs(what, round(1.2 * copies * size) + (1 << 28)):
        return missing
    cache = Cache(lengths, spec.num_kv_heads, spec.head_dim, dtype=dtype, device=lab.device, copies=copies)
    q = lab.random(len(lengths), spec.num_heads, spec.head_dim)
    plan = plan_decode(cache.tables, lengths, cache.pool)
    scale = spec.head_dim**-0.5
    turns = max(copies, 1 if lab.rehearsal else _LEAST_CALLS)
    calls = [partial(decode, q, cache.pools[turn % copies], plan, scale) for turn in range(turns)]
    seconds = lab.timer.per_call(calls)
    rate = (cache.bytes_read + 2 * q.nbytes) / seconds
    return Figure(
        what=what,
        value=rate / 1e9,
        unit="GB/s",
        share=rate / lab.copy_rate,
        of="copy",
        target=target,
        note=f"{1e6 * seconds:.0f} us",
    )


def _kv_bytes(spec: ModelSpec, tokens: int, itemsize: int) -> int:
    return tokens * 2 * spec.num_kv_heads * spec.head_dim * itemsize


def _named(name: str, rows: int, context: int) -> str:
    return f"decode attention {name}, {rows} x {context:,}"


def _target(name: str, rows: int, context: int) -> Target | None:
    if name != "8B":
        return None
    if rows * context >= _MANY:
        return _OF_MANY
    return _OF_ONE if (rows, context) == _ONE else None
