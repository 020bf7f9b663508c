"""Top-k, top-p and min-p on a GPU: the least value that is kept, by a search among few candidates, without a sort.

Whatever the filters of a row are, they keep the values from some least one upward, so all that a draw needs of
them is that value. It is found in four launches, none of which waits for the host:

1. *survey*: the largest of each group of neighbouring tokens. All programs read.
2. *bound*: what no kept value is below. With top-k it is the ``k``-th largest of the groups' largest: so many
   values are as large at least. With min-p it is min-p's own. With top-p, values whose probabilities could not
   make up ``1 - p`` together are lighter than any kept.
3. *gather*: what is not below the bound goes, densely, into a buffer: as a rule a few hundred values of a hundred
   thousand, at worst the whole row, which is slower and no less right. All programs read, for the last time.
4. *search*: bisection of the candidates, one program a row. Floats are searched as integers of the same order, and
   both ends move on to the next value that is there, so that it ends after few steps, at a value of the row.

Mass is counted in whole numbers, so that sums are exact: no order of programs or atomics can change a result. (The
bracket that moves to values: FlashInfer, Ye et al., 2025, arXiv 2501.01005. Candidates first: Qrita, Park et al.,
2026, arXiv 2602.01518, where the bound is guessed from the distribution; here it holds always.)
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from orchestra.kernels.aot import AotCase, launches
from orchestra.kernels.guard import on_device_of
from orchestra.kernels.launch import LaunchConfig, arch_of, launch_config

__all__ = ["aot_cases", "keep_mask", "thresholds"]

_MOST_GROUPS = 256  # of a row; one step of their search reads them all at once
_BOUND = LaunchConfig(num_warps=4, num_stages=1)

LOG2_E = tl.constexpr(1.4426950408889634)
NEVER_KEY = tl.constexpr(-0x7F800001)  # of minus infinity
LAST_KEY = tl.constexpr(0x7FFFFFFF)
MASS_OF_LIKELIEST = tl.constexpr(2.0**40)  # eight million tokens of it are a sum that int64 still holds


def keep_mask(scaled: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor | None = None) -> Tensor:
    """Which tokens may be drawn, bool [rows, vocab], from ``scaled`` logits (already over the temperature).

    First those at least ``min_p`` [rows] times as probable as the likeliest (0: all; Nguyen et al., 2024), of
    these the ``top_k`` [rows] largest (0: all), then the fewest of those, largest first, whose probabilities
    reach ``top_p`` [rows] of what is left (1: all). Tokens equal to the last one kept are kept too, so that
    nothing depends on the order of equals. At least one token is kept.
    """
    least, _ = thresholds(scaled, None, top_k, top_p, min_p)
    return (scaled >= least[:, None]) & (scaled > float("-inf"))


def thresholds(
    values: Tensor, temperature: Tensor | None, top_k: Tensor, top_p: Tensor, min_p: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The least scaled value that the filters of each row keep, and what was taken from its values to scale them.

    ``values`` [rows, vocab] are logits, scaled as ``(value - the row's largest) / temperature`` [rows], or scaled
    already where ``temperature`` is None. Both results are float32 [rows]; of a row that filters nothing, or whose
    temperature is 0, they are minus infinity and 0. The parameters are those of `keep_mask`, on the device.
    """
    rows, vocab = values.shape
    if values.stride(1) != 1:
        raise ValueError("the values of a row must lie side by side")

    def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device=values.device)

    found, tops = made(rows), made(rows)
    if not rows:
        return found, tops
    config = launch_config("sampling", arch_of(values.device), vocab=vocab)
    block = config.blocks["BLOCK"]
    group = _group(vocab, block)
    groups, chunks = triton.cdiv(vocab, group), triton.cdiv(vocab, block)
    filters = (temperature, top_k, top_p, None if min_p is None else min_p.log())
    maxima, keys = made(rows, groups, dtype=torch.int32), made(rows, vocab, dtype=torch.int32)
    least, light, tally = made(rows), made(rows), made(rows, 2, dtype=torch.int64)
    stride = values.stride(0)
    bounds = (tops, least, light, tally)
    with on_device_of(values):
        _survey_kernel[(rows, chunks)](
            values, *filters, maxima, stride, vocab, groups, GROUP=group, BLOCK=block, **config.options
        )
        _bound_kernel[(rows,)](
            *filters, maxima, *bounds, found, vocab, groups, BLOCK=_MOST_GROUPS, **_BOUND.options
        )
        _gather_kernel[(rows, chunks)](
            values, *filters, *bounds, keys, stride, vocab, BLOCK=block, **config.options
        )
        _search_kernel[(rows,)](*filters, tally, keys, found, vocab, BLOCK=block, **config.options)
    return found, tops


def _group(vocab: int, block: int) -> int:
    """Tokens a group: a power of two, for at most `_MOST_GROUPS` groups where a block holds so many tokens."""
    return min(int(triton.next_power_of_2(triton.cdiv(vocab, _MOST_GROUPS))), block)


@triton.jit
def _is_filtered(row, temperature, top_k, top_p, floor, vocab):
    filtered = (_rank(row, top_k, vocab) > 0) | (tl.load(top_p + row) < 1)
    if floor is not None:
        filtered = filtered | (tl.load(floor + row) > float("-inf"))
    if temperature is not None:
        filtered = filtered & (tl.load(temperature + row) > 0)
    return filtered


@triton.jit
def _rank(row, top_k, vocab):
    """The row's ``top_k``; 0 where it keeps all."""
    k = tl.load(top_k + row)
    return tl.where(k < vocab, k, 0)


@triton.jit
def _key(x):
    """An int32 that is ordered as the float32 ``x`` is, and -0 before 0: either as the least value keeps both."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(key):
    """What `_key` was made of."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _mass(y, top):
    """The probability of ``y`` in relation to that of ``top``, the likeliest, as a whole number."""
    return (tl.exp2((y - top) * LOG2_E) * MASS_OF_LIKELIEST).to(tl.int64)


@triton.jit
def _extremes(keys, number, BLOCK: tl.constexpr):
    """The least and the largest of ``number`` keys."""
    lanes = tl.arange(0, BLOCK)
    least = tl.full([BLOCK], LAST_KEY, tl.int32)
    largest = tl.full([BLOCK], NEVER_KEY, tl.int32)
    for start in range(0, number, BLOCK):
        inside = start + lanes < number
        key = tl.load(keys + start + lanes, mask=inside, other=NEVER_KEY)
        least = tl.minimum(least, tl.where(inside, key, LAST_KEY))
        largest = tl.maximum(largest, key)
    return tl.min(least, axis=0), tl.max(largest, axis=0)


@triton.jit
def _search(keys, number, low, high, need, top, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The least of the keys from ``low`` to ``high`` (both of them keys) that less than ``need`` are larger than.

    What is counted is keys or, ``BY_MASS``, the mass of their values. ``high`` is to be the largest of all, and is
    the answer even if ``need`` is 0.
    """
    lanes = tl.arange(0, BLOCK)
    # No key below low is sought; high may be it. Each step excludes the middle, or all above it, so it ends.
    while low < high:
        middle = (low & high) + ((low ^ high) >> 1)  # rounded down, and never beyond an int32
        larger = tl.zeros([BLOCK], tl.int64)
        below = tl.full([BLOCK], NEVER_KEY, tl.int32)
        above = tl.full([BLOCK], LAST_KEY, tl.int32)
        for start in range(0, number, BLOCK):
            key = tl.load(keys + start + lanes, mask=start + lanes < number, other=NEVER_KEY)
            is_larger = key > middle
            if BY_MASS:
                larger += tl.where(is_larger, _mass(_value(key), top), 0)
            else:
                larger += is_larger.to(tl.int64)
            below = tl.maximum(below, tl.where(is_larger, NEVER_KEY, key))
            above = tl.minimum(above, tl.where(is_larger, key, LAST_KEY))
        few = tl.sum(larger, axis=0) < need
        # between the middle and its neighbours is nothing, so what holds of it holds of them
        high = tl.where(few, tl.max(below, axis=0), high)
        low = tl.where(few, low, tl.min(above, axis=0))
    return high


@triton.jit
def _mass_from(keys, number, least, top, BLOCK: tl.constexpr):
    """The mass of the keys that are not below ``least``."""
    lanes = tl.arange(0, BLOCK)
    mass = tl.zeros([BLOCK], tl.int64)
    for start in range(0, number, BLOCK):
        key = tl.load(keys + start + lanes, mask=start + lanes < number, other=NEVER_KEY)
        mass += tl.where(key >= least, _mass(_value(key), top), 0)
    return tl.sum(mass, axis=0)


@triton.jit
def _survey_kernel(
    values,  # [rows, vocab]
    temperature,  # [rows], or None
    top_k,  # [rows]
    top_p,  # [rows]
    floor,  # [rows], the logarithm of min-p, or None
    maxima,  # [rows, groups], keys
    stride,  # of the rows of values
    vocab,
    groups,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # a row times a stride may pass 2**31
    filtered = _is_filtered(row, temperature, top_k, top_p, floor, vocab)
    if not filtered:
        return
    GROUPS: tl.constexpr = BLOCK // GROUP  # of this program
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(values + row * stride + tokens, mask=tokens < vocab, other=float("-inf")).to(tl.float32)
    largest = tl.max(tl.reshape(_key(x), [GROUPS, GROUP]), axis=1)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    tl.store(maxima + row * groups + group, largest, mask=group < groups)


@triton.jit
def _bound_kernel(
    temperature,  # these four as above
    top_k,
    top_p,
    floor,
    maxima,  # [rows, groups], keys
    tops,  # [rows], to be the largest value, which is taken from all
    least,  # [rows], to be the scaled value that no kept one is below
    light,  # [rows], and that below which top-p keeps none
    tally,  # [rows, 2], to be set to zero
    found,  # [rows]
    vocab,
    groups,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tl.store(tally + 2 * row, 0)
    tl.store(tally + 2 * row + 1, 0)
    filtered = _is_filtered(row, temperature, top_k, top_p, floor, vocab)
    if not filtered:
        tl.store(found + row, float("-inf"))
        tl.store(tops + row, 0.0)
        return
    keys = maxima + row * groups
    low, high = _extremes(keys, groups, BLOCK)
    largest = _value(high)
    top = tl.where(largest > float("-inf"), largest, 0.0)  # a row of nothing else: its differences must be numbers
    tl.store(tops + row, top)

    k = _rank(row, top_k, vocab)
    by_rank = (k > 0) & (k <= groups)
    if by_rank:
        low = _search(keys, groups, low, high, k, top, False, BLOCK)
    bound = tl.where(by_rank, _value(low), float("-inf"))
    if temperature is not None:
        bound = tl.div_rn(bound - top, tl.load(temperature + row))
        top = top - top  # so the largest is scaled to 0
    if floor is not None:
        bound = tl.maximum(bound, top + tl.load(floor + row))
    tl.store(least + row, bound)

    # All below this together have less than 1 - p of the likeliest alone, even if rounding took a hundredth. Their
    # mass counts all the same. With top-k it is not known yet whose does; there, the other bound is enough.
    p = tl.load(top_p + row)
    share = tl.where(p < 1, 1 - p, 1.0)
    dropped = top + tl.log(share * 0.99 / vocab)
    tl.store(light + row, tl.where((p < 1) & (k <= 0), dropped, float("-inf")))


@triton.jit
def _gather_kernel(
    values,  # the first five as above
    temperature,
    top_k,
    top_p,
    floor,
    tops,  # [rows]
    least,  # [rows]
    light,  # [rows]
    tally,  # [rows, 2]: how many keys, and the mass of those that are too light to be among them
    keys,  # [rows, vocab], of scaled values, in any order
    stride,  # of the rows of values
    vocab,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    filtered = _is_filtered(row, temperature, top_k, top_p, floor, vocab)
    if not filtered:
        return
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(values + row * stride + tokens, mask=tokens < vocab, other=float("-inf")).to(tl.float32)
    top = tl.load(tops + row)
    if temperature is not None:
        y = tl.div_rn(y - top, tl.load(temperature + row))
        top = top - top  # so the largest is scaled to 0
    allowed = (y >= tl.load(least + row)) & (y > float("-inf"))
    heavy = y >= tl.load(light + row)
    passed_over = tl.sum(tl.where(allowed & ~heavy, _mass(y, top), 0), axis=0)
    tl.atomic_add(tally + 2 * row + 1, passed_over, sem="relaxed")
    chosen = allowed & heavy
    place = tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    start = tl.atomic_add(tally + 2 * row, tl.sum(chosen.to(tl.int64), axis=0), sem="relaxed")
    tl.store(keys + row * vocab + start + place, _key(y), mask=chosen)


@triton.jit
def _search_kernel(
    temperature,  # these four as above
    top_k,
    top_p,
    floor,
    tally,  # [rows, 2]
    keys,  # [rows, vocab]
    found,  # [rows], to be the least scaled value that is kept
    vocab,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    filtered = _is_filtered(row, temperature, top_k, top_p, floor, vocab)
    if not filtered:
        return
    keys += row * vocab
    number = tl.load(tally + 2 * row).to(tl.int32)
    least, high = _extremes(keys, number, BLOCK)
    top = _value(high)
    k = _rank(row, top_k, vocab)
    if k > 0:
        least = _search(keys, number, least, high, k, top, False, BLOCK)
    p = tl.load(top_p + row)
    if p < 1:
        mass = tl.load(tally + 2 * row + 1) + _mass_from(keys, number, least, top, BLOCK)
        need = tl.ceil(p.to(tl.float64) * mass.to(tl.float64)).to(tl.int64)
        least = _search(keys, number, least, high, need, top, True, BLOCK)
    tl.store(found + row, tl.where(number > 0, _value(least), float("-inf")))


def aot_cases() -> Iterator[AotCase]:
    """Yield the four kernels for two vocabularies: logits with all filters, and values scaled already."""
    for vocab, dtype in ((49152, "fp32"), (128256, "bf16"), (128256, "fp32")):
        for config, absent in launches("sampling", vocab=vocab):
            for scaled in (False, True) if dtype == "fp32" else (False,):
                yield from _cases(vocab, dtype, scaled, config, absent)


def _cases(
    vocab: int, dtype: str, scaled: bool, config: LaunchConfig, absent: frozenset[str]
) -> Iterator[AotCase]:
    block = config.blocks["BLOCK"]
    filters = {
        "temperature": "constexpr" if scaled else "*fp32",
        "top_k": "*i64",
        "top_p": "*fp32",
        "floor": "constexpr" if scaled else "*fp32",
    }
    rows = {"tops": "*fp32", "least": "*fp32", "light": "*fp32", "tally": "*i64"}
    sizes = {"vocab": "i32", "groups": "i32"}
    kernels = {
        "survey": (
            _survey_kernel,
            {"values": f"*{dtype}", **filters, "maxima": "*i32", "stride": "i32", **sizes, "GROUP": "constexpr"},
            {"GROUP": _group(vocab, block), "BLOCK": block},
        ),
        "bound": (
            _bound_kernel,
            {**filters, "maxima": "*i32", **rows, "found": "*fp32", **sizes},
            {"BLOCK": _MOST_GROUPS},
        ),
        "gather": (
            _gather_kernel,
            {"values": f"*{dtype}", **filters, **rows, "keys": "*i32", "stride": "i32", "vocab": "i32"},
            {"BLOCK": block},
        ),
        "search": (
            _search_kernel,
            {**filters, "tally": "*i64", "keys": "*i32", "found": "*fp32", "vocab": "i32"},
            {"BLOCK": block},
        ),
    }
    for part, (kernel, signature, constexprs) in kernels.items():
        if dtype == "bf16" and "values" not in signature:
            continue  # the others never see them
        how = _BOUND if part == "bound" else config
        pointers = {name for name, kind in signature.items() if kind.startswith("*")}
        yield AotCase(
            name=f"keep_mask {part} vocab={vocab} {'scaled' if scaled else dtype}",
            kernel=kernel,
            signature={**signature, "BLOCK": "constexpr"},
            constexprs={**({"temperature": None, "floor": None} if scaled else {}), **constexprs},
            aligned=frozenset(pointers | ({"vocab", "stride"} & set(signature))),
            num_warps=how.num_warps,
            num_stages=how.num_stages,
            asked=frozenset({"16-byte loads"} if "values" in signature else ()),
            absent=absent,
            quick=part in ("gather", "search") and vocab == 128256 and dtype == "fp32" and not scaled,
        )
