"""Paged attention of runs of queries in Triton: a tile of queries a program, past which the keys go in tiles.

It is FlashAttention-2 (Dao, 2023, arXiv 2307.08691) over a block table. The rows of a tile are some queries of one
run times the query heads that share a KV head: keys and values are read once for all of them, and a group of few
heads still fills a tensor core. Of the context, a program reads what its queries see: without a mask the tiles
that all of them see whole, and with one those on the window's edge and on the diagonal. Tiles of keys begin at
multiples of their size, so that a chunk of a prompt adds up its context in the order in which the whole one would.

Which program does what is decided on the host, sent once a step, and serves every layer. Where a context is
divided among programs, each leaves its softmax unfinished, and a second kernel merges them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from orchestra.kernels.aot import MODELS, NO_FLOAT8, AotCase, ModelShape, launches
from orchestra.kernels.attention.extend_plan import FEWEST_ROWS, ExtendPlan, plan_extend, tiled
from orchestra.kernels.attention.extend_work import ITEM, MERGE
from orchestra.kernels.attention.scores import padded, score_factors
from orchestra.kernels.guard import on_device_of
from orchestra.kernels.kv_pool import FLOAT8_MAX, absmax_of
from orchestra.kernels.launch import LaunchConfig

__all__ = ["ExtendPlan", "aot_cases", "extend", "plan_extend"]

_MERGE_LAUNCH = LaunchConfig(blocks={"ROWS_AT_ONCE": FEWEST_ROWS})
_ITEM_SIZE = tl.constexpr(len(ITEM))
_MERGE_SIZE = tl.constexpr(len(MERGE))
_FLOAT8_MAX = tl.constexpr(FLOAT8_MAX)
# Less than any score, yet finite: a row that has seen no key so far needs no case of its own, as its weights
# exp2(-inf - _NOTHING) are 0 where exp2(-inf - -inf) would be NaN.
_NOTHING = tl.constexpr(-1.0e30)


def extend(q: Tensor, pool: Tensor, plan: ExtendPlan, scale: float, *, softcap: float | None = None) -> Tensor:
    """Attention of ``q`` [sum(counts), heads, head_dim], the runs end to end, over ``pool``: the same shape.

    The result has q's type. ``q`` may be strided. ``q`` and ``pool`` are float32, float16 or bfloat16, and the
    pool may be float8 (see :mod:`orchestra.kernels.kv_pool`); where the types differ, keys and values are taken in
    q's. Sums are in float32 throughout, and products of float32 are not rounded to TF32.

    Raises ValueError where the plan is for another number of queries.
    """
    tokens, heads, head_dim = q.shape
    if tokens != plan.tokens:
        raise ValueError(f"the plan is for {plan.tokens} queries, and q has {tokens}")
    out = torch.empty((tokens, heads, head_dim), dtype=q.dtype, device=q.device)
    if not tokens:
        return out
    if q.stride(2) != 1:
        q = q.contiguous()
    kv_heads, block_size = pool.shape[1:3]
    inner, outer = score_factors(scale, softcap)
    absmax = absmax_of(pool)
    if absmax is not None:
        inner /= FLOAT8_MAX
    partial = (plan.sums, plan.maxima, plan.totals)
    shape = _shape(heads, kv_heads, head_dim)
    with on_device_of(q):
        _extend_kernel[(len(plan.items) * kv_heads,)](
            q,
            pool,
            absmax,
            plan.items,
            plan.tables,
            out,
            *partial,
            inner,
            outer,
            plan.window or 0,
            q.stride(0),
            q.stride(1),
            pool.stride(0),
            pool.stride(1),
            2 * head_dim if absmax is not None else pool.stride(2),
            **shape,
            BLOCK_SIZE=block_size,
            WINDOWED=plan.window is not None,
            SOFTCAP=softcap is not None,
            UPCAST=q.dtype == torch.bfloat16 and q.device.type == "cpu",
            **plan.launch.blocks,
            **plan.launch.options,
        )
        if len(plan.merges):
            rows = plan.launch.blocks["BLOCK_M"]
            _merge_kernel[(len(plan.merges) * kv_heads * (rows // FEWEST_ROWS),)](
                plan.merges,
                *partial,
                out,
                **shape,
                BLOCK_M=rows,
                **_MERGE_LAUNCH.blocks,
                **_MERGE_LAUNCH.options,
            )
    return out


def _shape(heads: int, kv_heads: int, head_dim: int) -> dict[str, int]:
    return {
        "KV_HEADS": kv_heads,
        "GROUP": heads // kv_heads,
        "HEAD_DIM": head_dim,
        "HEAD_PADDED": padded(head_dim),
    }


# A window is not specialised: each that is 1 or divisible by 16 would be another kernel to compile.
@triton.jit(do_not_specialize=["window"])
def _extend_kernel(
    q,
    pool,
    absmax,
    items,
    tables,
    out,
    sums,
    maxima,
    totals,
    inner,
    outer,
    window,
    q_token,
    q_head,
    pool_block,
    pool_head,
    pool_token,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Attend from an item's queries, and the query heads of one KV head, to the item's keys in tiles of BLOCK_N.

    A program is an item and, fastest, a KV head: long items come first for all heads. Row r is query r // GROUP of
    the item and head r % GROUP of the group. Strides are in elements. ``out`` is [tokens, heads, head_dim]. Of a
    partial result ``sums`` are the weighted values not yet divided by the sum of weights, ``maxima`` the largest
    score, in powers of two, and ``totals`` that sum. ``absmax`` is a float8 pool as float32, and else None: its
    scales multiply scores and weights, and a token is then 2 * HEAD_DIM elements behind the last. With UPCAST all
    is computed in float32, for the interpreter has no arithmetic of bfloat16.
    """
    program = tl.program_id(0)
    item = items + program // KV_HEADS * _ITEM_SIZE
    token = tl.load(item)
    size = tl.load(item + 1)
    position = tl.load(item + 2)
    table = tables + tl.load(item + 3)
    first = tl.load(item + 4)
    begin = tl.load(item + 5)
    end = tl.load(item + 6)
    slot = tl.load(item + 7)
    kv_head = program % KV_HEADS

    row = tl.arange(0, BLOCK_M)
    nth = tl.minimum(row // GROUP, size - 1)  # rows beyond the queries repeat the last one, and are not stored
    head = kv_head * GROUP + row % GROUP
    dim = tl.arange(0, HEAD_PADDED)
    in_head = (dim < HEAD_DIM)[None, :]
    # tokens times a stride may pass 2**31, as may blocks and heads times theirs
    vector = (token + nth).to(tl.int64) * q_token + head.to(tl.int64) * q_head
    query = tl.load(q + vector[:, None] + dim[None, :], mask=in_head, other=0.0)
    if UPCAST:
        query = query.to(tl.float32)
    keys_values = pool + kv_head.to(tl.int64) * pool_head + dim[None, :]
    if absmax is not None:  # behind the keys and values of a block and head; strides are in float8
        absmaxes = absmax + kv_head.to(tl.int64) * (pool_head // 4) + BLOCK_SIZE * HEAD_DIM // 2

    # From `left` to `right` every query sees every key: the last one's window begins before, the first is behind.
    left = begin
    if WINDOWED:
        last_sees = tl.maximum(position + size - window, begin)
        left = tl.minimum(tl.cdiv(last_sees, BLOCK_N) * BLOCK_N, end)
    right = tl.minimum(tl.maximum((position + 1) // BLOCK_N * BLOCK_N, left), end)

    peak = tl.full([BLOCK_M], _NOTHING, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    result = tl.zeros([BLOCK_M, HEAD_PADDED], tl.float32)
    for zone in tl.static_range(0 if WINDOWED else 1, 3):  # the window's edge, what all see whole, the diagonal
        low = begin if zone == 0 else (left if zone == 1 else right)
        high = left if zone == 0 else (right if zone == 1 else end)
        for tile in tl.range(low, high, BLOCK_N):
            key_position = tl.multiple_of(tile, BLOCK_N) + tl.arange(0, BLOCK_N)
            # What no query sees is not read: it may be stale, and weights of 0 do not make up for values of NaN.
            there = (key_position >= first) & (key_position < end)
            if zone == 1:
                block = tl.load(table + key_position // BLOCK_SIZE)
            else:
                block = tl.load(table + key_position // BLOCK_SIZE, mask=there, other=0)
            slot_in_pool = block.to(tl.int64) * pool_block + key_position % BLOCK_SIZE * pool_token
            place = keys_values + slot_in_pool[:, None]
            if zone != 1:
                mask = there[:, None] & in_head
                key = tl.load(place, mask=mask, other=0.0)
                value = tl.load(place + HEAD_DIM, mask=mask, other=0.0)
            elif HEAD_DIM < HEAD_PADDED:
                key = tl.load(place, mask=in_head, other=0.0)
                value = tl.load(place + HEAD_DIM, mask=in_head, other=0.0)
            else:
                key = tl.load(place)
                value = tl.load(place + HEAD_DIM)
            key = key.to(query.dtype)
            value = value.to(query.dtype)

            score = tl.dot(query, tl.trans(key), input_precision="ieee") * inner
            if absmax is not None:
                scales = absmaxes + block.to(tl.int64) * (pool_block // 4) + key_position % BLOCK_SIZE * 2
                if zone == 1:
                    key_scale = tl.load(scales)
                    value_scale = tl.load(scales + 1)
                else:
                    key_scale = tl.load(scales, mask=there, other=0.0)
                    value_scale = tl.load(scales + 1, mask=there, other=0.0)
                score *= key_scale[None, :]
            if SOFTCAP:
                score = outer - 2.0 * outer / (tl.exp2(score) + 1.0)
            if zone != 1:
                behind = (position + nth)[:, None] - key_position[None, :]  # how far a key is behind the query
                seen = behind >= 0
                if WINDOWED:
                    seen = seen & (behind < window)
                score = tl.where(seen, score, float("-inf"))
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
        entry = (token + nth).to(tl.int64) * (KV_HEADS * GROUP) + head
        place = out + entry[:, None] * HEAD_DIM + dim[None, :]
        wanted = (row < size * GROUP)[:, None] & in_head
        tl.store(place, (result / total[:, None]).to(out.dtype.element_ty), mask=wanted)
    else:
        entry = (slot.to(tl.int64) * KV_HEADS + kv_head) * BLOCK_M + row
        tl.store(sums + entry[:, None] * HEAD_DIM + dim[None, :], result, mask=in_head)
        tl.store(maxima + entry, peak)
        tl.store(totals + entry, total)


@triton.jit
def _merge_kernel(
    merges,
    sums,
    maxima,
    totals,
    out,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    ROWS_AT_ONCE: tl.constexpr,
):
    """Merge what the items of one tile found for some of its rows, in the order of their keys."""
    program = tl.program_id(0)
    pieces: tl.constexpr = BLOCK_M // ROWS_AT_ONCE
    merge = merges + program // (pieces * KV_HEADS) * _MERGE_SIZE
    token = tl.load(merge)
    size = tl.load(merge + 1)
    slot = tl.load(merge + 2)
    count = tl.load(merge + 3)
    kv_head = program // pieces % KV_HEADS
    row = program % pieces * ROWS_AT_ONCE + tl.arange(0, ROWS_AT_ONCE)
    dim = tl.arange(0, HEAD_PADDED)
    in_head = (dim < HEAD_DIM)[None, :]

    peak = tl.full([ROWS_AT_ONCE], _NOTHING, tl.float32)
    total = tl.zeros([ROWS_AT_ONCE], tl.float32)
    result = tl.zeros([ROWS_AT_ONCE, HEAD_PADDED], tl.float32)
    for nth in tl.range(0, count):
        entry = ((slot + nth).to(tl.int64) * KV_HEADS + kv_head) * BLOCK_M + row
        part = tl.load(sums + entry[:, None] * HEAD_DIM + dim[None, :], mask=in_head, other=0.0)
        its_peak = tl.load(maxima + entry)
        new_peak = tl.maximum(peak, its_peak)
        weight = tl.exp2(its_peak - new_peak)
        fade = tl.exp2(peak - new_peak)
        total = total * fade + tl.load(totals + entry) * weight
        result = result * fade[:, None] + part * weight[:, None]
        peak = new_peak

    entry = (token + row // GROUP).to(tl.int64) * (KV_HEADS * GROUP) + kv_head * GROUP + row % GROUP
    place = out + entry[:, None] * HEAD_DIM + dim[None, :]
    wanted = (row < size * GROUP)[:, None] & in_head
    tl.store(place, (result / total[:, None]).to(out.dtype.element_ty), mask=wanted)


def aot_cases() -> Iterator[AotCase]:
    """Yield the kernels as each model launches them, tiles of every size; types and masks with some."""
    for model in MODELS:
        for size in _SIZES:
            yield from _extend_cases(model, "bf16", size)
        yield _merge_case(model, "bf16")
        if model.name in ("135M", "8B"):
            yield from _extend_cases(model, "bf16", "usual", float8=True)
    yield from _extend_cases(MODELS[0], "fp16", "usual")
    yield from _extend_cases(MODELS[0], "fp32", "fewest")
    yield from _extend_cases(MODELS[0], "bf16", "usual", windowed=True, softcap=True)


_SIZES = ("fewest", "usual", "twice")  # of tiles: what `plan_extend` chooses among


def _extend_cases(
    model: ModelShape,
    dtype: str,
    size: str,
    *,
    windowed: bool = False,
    softcap: bool = False,
    float8: bool = False,
) -> Iterator[AotCase]:
    kind = f"{' windowed' * windowed}{' softcap' * softcap}{' float8' * float8}"
    without = NO_FLOAT8 if float8 else frozenset()
    for config, absent in launches("attention.extend", without, head_dim=model.head_dim):
        usual = config.blocks["BLOCK_M"]
        rows = {"fewest": FEWEST_ROWS, "usual": usual, "twice": 2 * usual}[size]
        launch = tiled(config, rows, exact=dtype == "fp32")
        asked = {"16-byte loads", "16-byte stores"}
        if dtype != "fp32":
            asked |= {"cp.async", "wgmma", "tcgen05"} if rows >= 64 else {"cp.async", "mma"}
        values: dict[str, object] = {
            **_shape(model.heads, model.kv_heads, model.head_dim),
            "BLOCK_SIZE": 16,
            "WINDOWED": windowed,
            "SOFTCAP": softcap,
            "UPCAST": False,
            **launch.blocks,
        }
        arguments = {
            "q": f"*{dtype}",
            "pool": "*fp8e4nv" if float8 else f"*{dtype}",
            "absmax": "*fp32" if float8 else "constexpr",
            **dict.fromkeys(("items", "tables"), "*i32"),
            "out": f"*{dtype}",
            **dict.fromkeys(("sums", "maxima", "totals"), "*fp32"),
            **dict.fromkeys(("inner", "outer"), "fp32"),
            "window": "i32",
            **dict.fromkeys(("q_token", "q_head", "pool_block", "pool_head", "pool_token"), "i32"),
        }
        yield AotCase(
            name=f"attention.extend {_label(model, dtype)} rows={rows}{kind}",
            kernel=_extend_kernel,
            signature=arguments | dict.fromkeys(values, "constexpr"),
            constexprs=values if float8 else {"absmax": None, **values},
            aligned=frozenset(arguments) - {"inner", "outer", "window"} - (set() if float8 else {"absmax"}),
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
            asked=frozenset(asked),
            absent=absent,
            quick=model is MODELS[0] and size == "usual" and dtype == "bf16" and not kind,
        )


def _merge_case(model: ModelShape, dtype: str) -> AotCase:
    values: dict[str, object] = {
        **_shape(model.heads, model.kv_heads, model.head_dim),
        "BLOCK_M": 64,
        **_MERGE_LAUNCH.blocks,
    }
    arguments = {"merges": "*i32", "sums": "*fp32", "maxima": "*fp32", "totals": "*fp32", "out": f"*{dtype}"}
    return AotCase(
        name=f"attention.extend merge {_label(model, dtype)}",
        kernel=_merge_kernel,
        signature=arguments | dict.fromkeys(values, "constexpr"),
        constexprs=values,
        aligned=frozenset(arguments),
        num_warps=_MERGE_LAUNCH.num_warps,
        num_stages=_MERGE_LAUNCH.num_stages,
        asked=frozenset({"16-byte loads", "16-byte stores"}),
        quick=model is MODELS[0],
    )


def _label(model: ModelShape, dtype: str) -> str:
    return f"head={model.head_dim} group={model.heads // model.kv_heads} {dtype}"
