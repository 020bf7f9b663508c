"""Paged decode attention in Triton: split-KV over a flat work list.

One program attends from the query heads of one KV head to one chunk of one row, so that a key or a value is read
once for all heads of its group (grouped-query attention, arXiv 2305.13245). It holds the running maximum, sum and
product of an online softmax (Milakov and Gimelshein, arXiv 1805.02867), in powers of two: a GPU has exp2, and the
factor log2(e) costs nothing within the scale. What several programs found of one row is merged by a second kernel.

Which program does what is decided on the host, sent once a step, and serves every layer.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from orchestra.kernels.aot import MODELS, NO_FLOAT8, AotCase, ModelShape, launches
from orchestra.kernels.attention.decode_plan import DecodePlan, DecodePlanBuffer, plan_decode
from orchestra.kernels.attention.decode_work import ITEM, MERGE
from orchestra.kernels.attention.scores import padded, score_factors
from orchestra.kernels.guard import on_device_of
from orchestra.kernels.kv_pool import FLOAT8_MAX, absmax_of
from orchestra.kernels.launch import LaunchConfig

__all__ = ["DecodePlan", "DecodePlanBuffer", "aot_cases", "decode", "plan_decode"]

_LEAST_SIDE = 16  # of a matrix that a tensor core takes
_MERGED_AT_ONCE = 32  # slots in a tile of the merging kernel
_MERGE_LAUNCH = LaunchConfig(num_warps=4, num_stages=2)
_ITEM_SIZE = tl.constexpr(len(ITEM))
_MERGE_SIZE = tl.constexpr(len(MERGE))
_FLOAT8_MAX = tl.constexpr(FLOAT8_MAX)


def decode(q: Tensor, pool: Tensor, plan: DecodePlan, scale: float, *, softcap: float | None = None) -> Tensor:
    """Attention of ``q`` [rows, heads, head_dim] over ``pool``: [rows, heads, head_dim], of q's type.

    Query head ``h`` reads KV head ``h // (heads / kv_heads)``. ``q`` and ``pool`` are float32, float16 or
    bfloat16, and the pool may be float8 (see :mod:`orchestra.kernels.kv_pool`); where the types differ, keys and
    values are taken in q's. Products are added up in float32, and those of float32 are not rounded to TF32.

    Raises ValueError where the plan is for another number of rows.
    """
    rows, heads, head_dim = q.shape
    if rows != plan.rows:
        raise ValueError(f"the plan is for {plan.rows} rows, and q has {rows}")
    if q.stride(2) != 1:
        q = q.contiguous()
    kv_heads, block_size = pool.shape[1:3]
    out = torch.empty((rows, heads, head_dim), dtype=q.dtype, device=q.device)
    partials, stats = plan.scratch.tensors(plan.slots, heads, head_dim, q.device)
    inner, outer = score_factors(scale, softcap)
    absmax = absmax_of(pool)
    if absmax is not None:
        inner /= FLOAT8_MAX
    head_padded = padded(head_dim)
    with on_device_of(q):
        _decode_kernel[(len(plan.items) * kv_heads,)](
            q,
            pool,
            absmax,
            plan.items,
            plan.tables,
            out,
            partials,
            stats,
            inner,
            outer,
            q.stride(0),
            q.stride(1),
            pool.stride(0),
            pool.stride(1),
            2 * head_dim if absmax is not None else pool.stride(2),
            HEADS=heads,
            KV_HEADS=kv_heads,
            GROUP_PADDED=padded(heads // kv_heads),
            HEAD_DIM=head_dim,
            HEAD_PADDED=head_padded,
            BLOCK_SIZE=block_size,
            SOFTCAP=softcap is not None,
            UPCAST=q.dtype == torch.bfloat16 and q.device.type == "cpu",
            **plan.launch.blocks,
            **plan.launch.options,
        )
        if len(plan.merges):
            _merge_kernel[(len(plan.merges) * heads,)](
                plan.merges,
                partials,
                stats,
                out,
                HEADS=heads,
                HEAD_DIM=head_dim,
                HEAD_PADDED=head_padded,
                SLOTS=_MERGED_AT_ONCE,
                **_MERGE_LAUNCH.options,
            )
    return out


@triton.jit
def _decode_kernel(
    q,
    pool,
    absmax,
    items,
    tables,
    out,
    partials,
    stats,
    inner,
    outer,
    q_row,
    q_head,
    pool_block,
    pool_head,
    pool_token,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Attend from the query heads of one KV head to one item's positions, in tiles of BLOCK_N.

    A program is an item and, fastest, a KV head: long items come first for all heads. Strides are in elements.
    ``out`` is [rows, heads, head_dim]. ``partials`` [slots, heads, head_dim] are sums of weighted values not yet
    divided by the sum of weights; ``stats`` [slots, heads, 2] are the largest score, in powers of two, and that
    sum. ``absmax`` is a float8 pool as float32, and else None: its scales multiply scores and weights, which are
    fewer than keys and values, and a token is then 2 * HEAD_DIM elements behind the last. With UPCAST all is
    computed in float32, for the interpreter has no arithmetic of bfloat16.
    """
    program = tl.program_id(0)
    item = items + program // KV_HEADS * _ITEM_SIZE
    begin = tl.load(item + 2)
    end = tl.load(item + 3)
    if begin >= end:  # the list is padded
        return
    row = tl.load(item).to(tl.int64)
    table = tables + tl.load(item + 1)
    slot = tl.load(item + 4)
    kv_head = program % KV_HEADS

    member = tl.arange(0, GROUP_PADDED)
    head = kv_head * (HEADS // KV_HEADS) + member
    dim = tl.arange(0, HEAD_PADDED)
    wanted = (member < HEADS // KV_HEADS)[:, None] & (dim < HEAD_DIM)[None, :]
    query = tl.load(q + row * q_row + head[:, None] * q_head + dim[None, :], mask=wanted, other=0.0)
    if UPCAST:
        query = query.to(tl.float32)
    keys_values = pool + kv_head.to(tl.int64) * pool_head + dim[None, :]
    if absmax is not None:  # behind the keys and values of a block and head; strides are in float8
        absmaxes = absmax + kv_head.to(tl.int64) * (pool_head // 4) + BLOCK_SIZE * HEAD_DIM // 2

    peak = tl.full([GROUP_PADDED], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PADDED], tl.float32)
    result = tl.zeros([GROUP_PADDED, HEAD_PADDED], tl.float32)
    whole = begin + (end - begin) // BLOCK_N * BLOCK_N
    for rest in tl.static_range(2):  # whole tiles without a mask, then the rest under one
        for tile in range(whole if rest else begin, end if rest else whole, BLOCK_N):
            position = tile + tl.arange(0, BLOCK_N)
            seen = position < end
            if rest:  # nothing is read beyond the end: the block table ends there, and what lies behind may be NaN
                block = tl.load(table + position // BLOCK_SIZE, mask=seen, other=0)
            else:
                block = tl.load(table + position // BLOCK_SIZE)
            # a pool may have more elements than an int32 counts
            token = block.to(tl.int64) * pool_block + position % BLOCK_SIZE * pool_token
            place = keys_values + token[:, None]
            if rest:
                mask = seen[:, None] & (dim < HEAD_DIM)[None, :]
                key = tl.load(place, mask=mask, other=0.0)
                value = tl.load(place + HEAD_DIM, mask=mask, other=0.0)
            elif HEAD_DIM < HEAD_PADDED:
                mask = (dim < HEAD_DIM)[None, :]
                key = tl.load(place, mask=mask, other=0.0)
                value = tl.load(place + HEAD_DIM, mask=mask, other=0.0)
            else:
                key = tl.load(place)
                value = tl.load(place + HEAD_DIM)
            key = key.to(query.dtype)
            value = value.to(query.dtype)

            score = tl.dot(query, tl.trans(key), input_precision="ieee") * inner
            if absmax is not None:
                scales = absmaxes + block.to(tl.int64) * (pool_block // 4) + position % BLOCK_SIZE * 2
                if rest:
                    key_scale = tl.load(scales, mask=seen, other=0.0)
                    value_scale = tl.load(scales + 1, mask=seen, other=0.0)
                else:
                    key_scale = tl.load(scales)
                    value_scale = tl.load(scales + 1)
                score *= key_scale[None, :]
            if SOFTCAP:
                score = outer - 2.0 * outer / (tl.exp2(score) + 1.0)
            if rest:
                score = tl.where(seen[None, :], score, float("-inf"))
            new_peak = tl.maximum(peak, tl.max(score, 1))
            weight = tl.exp2(score - new_peak[:, None])
            fade = tl.exp2(peak - new_peak)
            total = total * fade + tl.sum(weight, 1)
            if absmax is not None:
                weight *= value_scale[None, :]
            result = tl.dot(weight.to(query.dtype), value, result * fade[:, None], input_precision="ieee")
            peak = new_peak
    if absmax is not None:
        result *= 1.0 / _FLOAT8_MAX

    if slot < 0:
        place = out + (row * HEADS + head[:, None]) * HEAD_DIM + dim[None, :]
        tl.store(place, (result / total[:, None]).to(out.dtype.element_ty), mask=wanted)
    else:
        entry = slot.to(tl.int64) * HEADS + head
        tl.store(partials + entry[:, None] * HEAD_DIM + dim[None, :], result, mask=wanted)
        tl.store(stats + entry * 2, peak, mask=member < HEADS // KV_HEADS)
        tl.store(stats + entry * 2 + 1, total, mask=member < HEADS // KV_HEADS)


@triton.jit
def _merge_kernel(
    merges,
    partials,
    stats,
    out,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """Merge what the items of one row found for one query head, in their order, SLOTS of them at once."""
    program = tl.program_id(0)
    merge = merges + program // HEADS * _MERGE_SIZE
    count = tl.load(merge + 2)
    if count <= 0:  # the list is padded
        return
    row = tl.load(merge).to(tl.int64)
    first = tl.load(merge + 1).to(tl.int64)
    head = program % HEADS
    dim = tl.arange(0, HEAD_PADDED)
    wanted = dim < HEAD_DIM

    peak = float("-inf")
    total = 0.0
    result = tl.zeros([HEAD_PADDED], tl.float32)
    for tile in range(0, count, SLOTS):
        nth = tile + tl.arange(0, SLOTS)
        there = nth < count
        entry = (first + nth) * HEADS + head
        peaks = tl.load(stats + entry * 2, mask=there, other=float("-inf"))
        totals = tl.load(stats + entry * 2 + 1, mask=there, other=0.0)
        mask = there[:, None] & wanted[None, :]
        parts = tl.load(partials + entry[:, None] * HEAD_DIM + dim[None, :], mask=mask, other=0.0)
        new_peak = tl.maximum(peak, tl.max(peaks, 0))
        weight = tl.exp2(peaks - new_peak)
        fade = tl.exp2(peak - new_peak)
        total = total * fade + tl.sum(weight * totals, 0)
        result = result * fade + tl.sum(weight[:, None] * parts, 0)
        peak = new_peak
    tl.store(out + (row * HEADS + head) * HEAD_DIM + dim, (result / total).to(out.dtype.element_ty), mask=wanted)


def aot_cases() -> Iterator[AotCase]:
    """Yield the kernels as each model launches them; Gemma 2's soft-cap and float8 with some."""
    for model in MODELS:
        yield from _decode_cases(model, "bf16")
        yield _merge_case(model, "bf16")
        if model.name in ("135M", "8B", "head 256"):
            yield from _decode_cases(model, "bf16", float8=True)
    yield from _decode_cases(MODELS[0], "fp32")
    yield _merge_case(MODELS[0], "fp32")
    yield from _decode_cases(MODELS[0], "bf16", softcap=True)


def _decode_cases(
    model: ModelShape, dtype: str, *, softcap: bool = False, float8: bool = False
) -> Iterator[AotCase]:
    quick = model is MODELS[0] and dtype == "bf16" and not softcap
    without = NO_FLOAT8 if float8 else frozenset()
    key_bytes = 1 if float8 else {"bf16": 2, "fp32": 4}[dtype]
    for config, absent in launches("attention.decode", without, head_dim=model.head_dim, key_bytes=key_bytes):
        values: dict[str, object] = {
            "HEADS": model.heads,
            "KV_HEADS": model.kv_heads,
            "GROUP_PADDED": padded(model.heads // model.kv_heads),
            "HEAD_DIM": model.head_dim,
            "HEAD_PADDED": padded(model.head_dim),
            "BLOCK_SIZE": 16,
            "SOFTCAP": softcap,
            "UPCAST": False,
            **config.blocks,
        }
        arguments = (
            {"q": f"*{dtype}", "pool": "*fp8e4nv" if float8 else f"*{dtype}"}
            | {"absmax": "*fp32" if float8 else "constexpr"}
            | {"items": "*i32", "tables": "*i32", "out": f"*{dtype}"}
            | dict.fromkeys(("partials", "stats"), "*fp32")
            | dict.fromkeys(("inner", "outer"), "fp32")
            | dict.fromkeys(("q_row", "q_head", "pool_block", "pool_head", "pool_token"), "i32")
        )
        yield AotCase(
            name=f"attention.decode {_label(model, dtype)}{' softcap' * softcap}{' float8' * float8}",
            kernel=_decode_kernel,
            signature=arguments | dict.fromkeys(values, "constexpr"),
            constexprs=values if float8 else {"absmax": None, **values},
            aligned=frozenset(name for name, kind in arguments.items() if kind not in ("fp32", "constexpr")),
            num_warps=config.num_warps,
            num_stages=config.num_stages,
            asked=frozenset({"cp.async"} if dtype == "fp32" else {"cp.async", "mma"}),
            absent=absent,
            quick=quick,
        )


def _merge_case(model: ModelShape, dtype: str) -> AotCase:
    values: dict[str, object] = {
        "HEADS": model.heads,
        "HEAD_DIM": model.head_dim,
        "HEAD_PADDED": padded(model.head_dim),
        "SLOTS": _MERGED_AT_ONCE,
    }
    arguments = {"merges": "*i32", "partials": "*fp32", "stats": "*fp32", "out": f"*{dtype}"}
    return AotCase(
        name=f"attention.decode merge {_label(model, dtype)}",
        kernel=_merge_kernel,
        signature=arguments | dict.fromkeys(values, "constexpr"),
        constexprs=values,
        aligned=frozenset(arguments),
        num_warps=_MERGE_LAUNCH.num_warps,
        num_stages=_MERGE_LAUNCH.num_stages,
        quick=model is MODELS[0] and dtype == "bf16",
    )


def _label(model: ModelShape, dtype: str) -> str:
    return f"head={model.head_dim} group={model.heads // model.kv_heads} {dtype}"
