"""Prefill attention against the rate of matrix products: whole prompts, chunks after a context, and many of both.

Operations counted are those of the causal part alone: 4 a query, key, head and dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch.nn.functional as F  # noqa: N812

from gpu.cache import Cache
from gpu.figures import Figure
from gpu.lab import Lab

__all__ = ["run"]

# runs, queries of each, context before them
_GRID = {
    "8B": [(1, 8192, 0), (1, 2048, 0), (8, 512, 0), (8, 512, 4096), (1, 512, 32256), (64, 16, 4096)],
    "135M": [(1, 8192, 0), (4, 512, 0), (1, 512, 7680)],
    "1B": [(1, 8192, 0), (8, 512, 4096)],
}
_CALLS = 8


def run(lab: Lab) -> Iterator[Figure]:
    """Measure the grid, and torch's own attention beside the longest prompt."""
    grid = {"8B": [(1, 20, 0), (2, 5, 17)]} if lab.rehearsal else _GRID
    work = [(_named(name, *one), partial(_extend, lab, name, *one)) for name, its in grid.items() for one in its]
    prompt = 20 if lab.rehearsal else 8192
    work.insert(1, (f"torch's SDPA 8B, {prompt} tokens", partial(_sdpa, lab, "8B", prompt)))
    yield from lab.attempts(work)


def _extend(lab: Lab, name: str, runs: int, count: int, context: int) -> Iterator[Figure]:
    from orchestra.kernels.attention.triton_ import extend, plan_extend

    what = _named(name, runs, count, context)
    spec = lab.model(name)
    lengths = [context + count] * runs
    size = sum(lengths) * spec.num_kv_heads * 2 * spec.head_dim * lab.dtype.itemsize
    if missing := lab.needs(what, 2 * size + (1 << 30)):
        yield missing
        return
    cache = Cache(lengths, spec.num_kv_heads, spec.head_dim, dtype=lab.dtype, device=lab.device)
    q = lab.random(runs * count, spec.num_heads, spec.head_dim)
    plan = plan_extend(cache.tables, [context] * runs, [count] * runs, cache.pool, spec.num_heads)
    call = partial(extend, q, cache.pool, plan, spec.head_dim**-0.5)
    seen = runs * (count * context + count * (count + 1) // 2)
    yield _figure(lab, what, lab.timer.per_call([call] * _calls(lab)), seen * spec.num_heads * spec.head_dim)


def _sdpa(lab: Lab, name: str, prompt: int) -> Iterator[Figure]:
    """What torch brings along, for one prompt whose keys and values lie in one piece."""
    spec = lab.model(name)
    q = lab.random(1, spec.num_heads, prompt, spec.head_dim)
    k, v = (lab.random(1, spec.num_kv_heads, prompt, spec.head_dim) for _ in range(2))
    call = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True, enable_gqa=True)
    seen = prompt * (prompt + 1) // 2
    what = f"torch's SDPA {name}, a prompt of {prompt:,} (unpaged, for comparison)"
    yield _figure(lab, what, lab.timer.per_call([call] * _calls(lab)), seen * spec.num_heads * spec.head_dim)


def _figure(lab: Lab, what: str, seconds: float, products: int) -> Figure:
    rate = 4 * products / seconds
    note = f"{1e6 * seconds:.0f} us"
    return Figure(
        what=what, value=rate / 1e12, unit="TFLOP/s", share=rate / lab.matmul_rate, of="matmul", note=note
    )


def _calls(lab: Lab) -> int:
    return 1 if lab.rehearsal else _CALLS


def _named(name: str, runs: int, count: int, context: int) -> str:
    many = f"{runs} x " if runs > 1 else ""
    return f"prefill attention {name}, {many}{count:,} tokens" + (f" after {context:,}" if context else "")
