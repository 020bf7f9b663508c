"""Every kernel in bfloat16 on this device against float64: the figure is the relative error of a whole result.

What a kernel leaves unwritten, or reads where nothing was written, is NaN and shows; so does a race, as results of
the same call must have the same bits. How large an error may be is what bfloat16 makes of exact arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from gpu.correctness_attention import attention_checks
from gpu.correctness_sampling import sampling_checks
from gpu.errors import compared
from gpu.figures import Figure, Target
from gpu.lab import Lab
from gpu.models import MODELS
from orchestra.kernels.kv_pool import FLOAT8, KvLayout, unpacked
from orchestra.localengine.models.spec import ModelSpec

__all__ = ["attention_large", "attention_small", "others"]

Check = tuple[str, Callable[[], Iterator[Figure]]]
_EPS = 1e-5


def attention_large(lab: Lab) -> Iterator[Figure]:
    """Check attention in the shape of the largest model."""
    yield from _attention(lab, "8B")


def attention_small(lab: Lab) -> Iterator[Figure]:
    """Check attention in the shapes of the others."""
    yield from _attention(lab, "135M", "1B")


def others(lab: Lab) -> Iterator[Figure]:
    """Check all other operations, for every model and vocabulary."""
    names = ["8B"] if lab.rehearsal else list(MODELS)
    checks = (_elementwise_checks(lab, name, lab.model(name)) for name in names)
    yield from lab.attempts([*chain.from_iterable(checks), *sampling_checks(lab)])


def _attention(lab: Lab, *names: str) -> Iterator[Figure]:
    yield from lab.attempts(chain.from_iterable(attention_checks(lab, name, lab.model(name)) for name in names))


def _elementwise_checks(lab: Lab, name: str, spec: ModelSpec) -> Iterator[Check]:
    yield f"norms {name}", partial(_norms, lab, f"norms {name}", spec)
    yield f"gated activations {name}", partial(_activations, lab, f"gated activations {name}", spec)
    for kind, dtype in (("", lab.dtype), (", float8 cache", FLOAT8)):
        what = f"rotary embedding and KV write {name}{kind}"
        yield what, partial(_rope, lab, what, spec, dtype)


def _norms(lab: Lab, what: str, spec: ModelSpec) -> Iterator[Figure]:
    from orchestra.kernels.norm import reference, triton_

    rows = 5 if lab.rehearsal else 257
    x = _gapped(lab, rows, spec.hidden_size)
    weight = lab.random(spec.hidden_size).float()  # as the engine has them
    exact = [reference.rms_norm(x.double(), weight.double(), _EPS)]
    residuals = [lab.random(rows, spec.hidden_size).to(dtype) for dtype in (torch.float32, lab.dtype)]
    for residual in residuals:
        total = (x + residual).double()  # rounded as it is stored, before it is normalised
        exact += [reference.rms_norm(total, weight.double(), _EPS), total]

    def ours() -> list[Tensor]:
        results = [triton_.rms_norm(x, weight, _EPS)]
        for residual in residuals:
            stored = residual.clone()
            results += [triton_.add_rms_norm(x, stored, weight, _EPS), stored]
        return results

    yield compared(lab, what, ours, exact)


def _activations(lab: Lab, what: str, spec: ModelSpec) -> Iterator[Figure]:
    from orchestra.kernels.activation import reference, triton_

    gate_up = _gapped(lab, 3 if lab.rehearsal else 129, 2 * spec.intermediate_size)
    yield compared(
        lab,
        what,
        lambda: (triton_.silu_mul(gate_up), triton_.gelu_tanh_mul(gate_up)),
        (reference.silu_mul(gate_up.double()), reference.gelu_tanh_mul(gate_up.double())),
    )


def _rope(lab: Lab, what: str, spec: ModelSpec, dtype: torch.dtype) -> Iterator[Figure]:
    """With and without norms of queries and keys; some rows write nothing, and the rest of the pool stays NaN."""
    from orchestra.kernels.rope_kv import reference, triton_

    if missing := lab.lacks(what, dtype):
        yield missing
        return
    tokens, blocks, block_size = 2 if lab.rehearsal else 17, 4, 16
    heads, kv_heads, head_dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
    qkv = _gapped(lab, tokens, (heads + 2 * kv_heads) * head_dim)
    angle = torch.randint(0, 5000, (tokens, 1)) * 10_000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
    cos, sin = angle.cos(), angle.sin()
    place = torch.randperm(blocks * block_size)[:tokens, None]
    slots = (place // block_size * kv_heads + torch.arange(kv_heads)) * block_size + place % block_size
    silent = torch.arange(tokens) % 3 == 1  # rows that only fill up a recorded batch
    written = slots.masked_fill(silent[:, None], -1)
    qk_norm = lab.random(heads + kv_heads, head_dim)
    layout = KvLayout(kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, dtype=dtype)

    def ours() -> list[Tensor]:
        results = []
        there = (cos.to(lab.device), sin.to(lab.device), written.to(lab.device))
        for weight in (None, qk_norm):
            pool = layout.allocate(1, blocks, lab.device)[0]
            pool.view(torch.uint8).fill_(0xFF)  # which is NaN in every type
            results += [triton_.rope_kv(qkv, *there, pool, qk_norm=weight, eps=_EPS), unpacked(pool)]
        return results

    exact: list[Tensor] = []
    for weight in (None, qk_norm.double().cpu()):
        pool = torch.full((blocks, kv_heads, block_size, 2 * head_dim), float("nan"), dtype=torch.float64)
        given = (qkv.double().cpu().contiguous(), cos.double(), sin.double())
        exact.append(reference.rope_kv(*given, slots, pool, qk_norm=weight, eps=_EPS))
        pool.view(-1, 2 * head_dim)[slots[silent].flatten()] = float("nan")
        exact.append(pool)
    # an element of float8 has three bits behind the first
    target = Target(most=6e-2) if dtype == FLOAT8 else Target(most=1e-2)
    yield compared(lab, what, ours, exact, target)


def _gapped(lab: Lab, rows: int, width: int) -> Tensor:
    """Random rows with gaps of NaN between them."""
    memory = torch.full((rows, width + 16), float("nan"), dtype=lab.dtype, device=lab.device)
    memory[:, :width].normal_()
    return memory[:, :width]
