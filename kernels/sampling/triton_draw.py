"""Draws on a GPU, in one pass over the vocabulary and without a sort: the first arrival of an exponential race.

A row is read by several programs at once, each of which finds the winner of its chunk; one more compares the
winners. The largest logit of the row, which is taken from all, is not known in the first pass: there a chunk takes
its own largest from its logits. That changes no winner, but for what rounds differently. Winners are then compared
exactly as the reference does. How a row is cut depends on the vocabulary alone, and so on no other row.
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
from orchestra.kernels.sampling.triton_filter import keep_mask, thresholds
from orchestra.kernels.sampling.triton_noise import exponential, natural_log, row_key

__all__ = ["aot_cases", "greedy", "log_probabilities", "sample"]

_FINISH = LaunchConfig(num_warps=1, num_stages=1)  # the winners are few


def greedy(logits: Tensor) -> Tensor:
    """The likeliest token of each row of ``logits`` [rows, vocab]; the lowest id among equals: int64 [rows]."""
    return _race(logits)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    min_p: Tensor | None = None,
) -> Tensor:
    """Draw one token of each row of ``logits`` [rows, vocab]: int64 [rows].

    ``temperature`` float32 [rows], where 0 is greedy, so that mixed rows need no copy; ``top_k`` int64 [rows];
    ``top_p`` and ``min_p`` float32 [rows]; ``seeds`` and ``positions`` int64 [rows].

    All but the logits may lie on the host: then what no row asks for is not launched. Where they lie on the GPU,
    that cannot be asked without waiting for it, and filters that are off cost four launches that end at once.
    """
    device = logits.device
    filtered = not _known_to_keep_all(top_k, top_p, min_p)

    def here(values: Tensor) -> Tensor:
        return values.to(device, non_blocking=True)

    temperature = here(temperature)
    found: Tensor | None = None
    tops: Tensor | None = None
    if filtered:
        least = None if min_p is None else here(min_p)
        found, tops = thresholds(logits, temperature, here(top_k), here(top_p), least)
    return _race(logits, temperature, here(seeds), here(positions), found, tops)


def log_probabilities(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor | None = None,
) -> Tensor:
    """The logarithms of the probabilities that :func:`sample` draws by, float32 [rows, vocab].

    Minus infinity where a token is not kept. The arguments are those of :func:`sample`, on the device, and each
    ``temperature`` is above 0. But for the search of what is kept, torch's own operations do: this is rare.
    """
    scaled = logits.to(torch.float32)
    scaled = (scaled - scaled.amax(dim=-1, keepdim=True)).div_(temperature[:, None])
    return torch.log_softmax(scaled.masked_fill_(~keep_mask(scaled, top_k, top_p, min_p), float("-inf")), dim=-1)


def _known_to_keep_all(top_k: Tensor, top_p: Tensor, min_p: Tensor | None) -> bool:
    """Whether no filter is on, as far as the host can tell without waiting."""
    filters = (top_k, top_p) if min_p is None else (top_k, top_p, min_p)
    if any(values.device.type != "cpu" for values in filters):
        return False
    return not (
        bool((top_k > 0).any()) or bool((top_p < 1).any()) or (min_p is not None and bool((min_p > 0).any()))
    )


def _race(
    logits: Tensor,
    temperature: Tensor | None = None,
    seeds: Tensor | None = None,
    positions: Tensor | None = None,
    found: Tensor | None = None,
    tops: Tensor | None = None,
) -> Tensor:
    """The first arrival of each row; without a temperature, the largest. ``found`` and ``tops``: `thresholds`."""
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        raise ValueError("the logits of a row must lie side by side")
    drawn = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if not rows:
        return drawn
    config = launch_config("sampling", arch_of(logits.device), vocab=vocab)
    chunks = triton.cdiv(vocab, config.blocks["BLOCK"])
    winners = torch.empty(rows, chunks, dtype=torch.int32, device=logits.device)
    peaks = torch.empty(rows, chunks, dtype=torch.float32, device=logits.device)
    given = (logits, temperature, seeds, positions)
    stride = logits.stride(0)
    with on_device_of(logits):
        _race_kernel[(rows, chunks)](
            *given, found, tops, winners, peaks, stride, vocab, chunks, **config.blocks, **config.options
        )
        _finish_kernel[(rows,)](
            *given, winners, peaks, drawn, stride, chunks, BLOCK=_finish_block(chunks), **_FINISH.options
        )
    return drawn


def _finish_block(chunks: int) -> int:
    return max(16, int(triton.next_power_of_2(chunks)))


@triton.jit
def _arrivals(x, peak, tokens, row, temperature, seeds, positions):
    """How early the ``tokens`` arrive, the first the largest: logits ``x`` less ``peak``, scaled, and noise."""
    arrival = x - tl.where(peak > float("-inf"), peak, 0.0)  # where all are minus infinity, they stay that
    if temperature is not None:
        heat = tl.load(temperature + row)
        is_random = heat > 0
        low, high = row_key(tl.load(seeds + row), tl.load(positions + row))
        gumbel = -natural_log(exponential(low, high, tokens))
        arrival = tl.div_rn(arrival, tl.where(is_random, heat, 1.0)) + tl.where(is_random, gumbel, 0.0)
    return arrival


@triton.jit
def _race_kernel(
    logits,  # [rows, vocab]
    temperature,  # [rows], or None: the largest wins
    seeds,  # [rows], or None likewise
    positions,  # [rows], or None likewise
    found,  # [rows], the least scaled value that is kept, or None: all are
    tops,  # [rows], what was taken from the logits that it is compared with, or None likewise
    winners,  # [rows, chunks]: tokens, -1 where the chunk has none that is possible
    peaks,  # [rows, chunks]: the largest logit
    stride,  # of the rows of logits
    vocab,
    chunks,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # a row times a stride may pass 2**31
    chunk = tl.program_id(1)
    tokens = chunk * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * stride + tokens, mask=tokens < vocab, other=float("-inf")).to(tl.float32)
    peak = tl.max(x, axis=0)
    arrival = _arrivals(x, peak, tokens, row, temperature, seeds, positions)
    if found is not None:
        heat = tl.load(temperature + row)
        scaled = tl.div_rn(x - tl.load(tops + row), tl.where(heat > 0, heat, 1.0))
        arrival = tl.where(scaled >= tl.load(found + row), arrival, float("-inf"))
    best, place = tl.max(arrival, axis=0, return_indices=True)
    tl.store(winners + row * chunks + chunk, tl.where(best > float("-inf"), chunk * BLOCK + place, -1))
    tl.store(peaks + row * chunks + chunk, peak)


@triton.jit
def _finish_kernel(
    logits,  # the first four as above
    temperature,
    seeds,
    positions,
    winners,  # [rows, chunks]
    peaks,  # [rows, chunks]
    drawn,  # [rows], to be the tokens
    stride,  # of the rows of logits
    chunks,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < chunks
    tokens = tl.load(winners + row * chunks + lanes, mask=inside, other=-1)
    peak = tl.max(tl.load(peaks + row * chunks + lanes, mask=inside, other=float("-inf")), axis=0)
    x = tl.load(logits + row * stride + tokens, mask=tokens >= 0, other=float("-inf")).to(tl.float32)
    arrival = _arrivals(x, peak, tokens, row, temperature, seeds, positions)
    _, place = tl.max(arrival, axis=0, return_indices=True)  # of equals the first, whose token is the lowest
    token = tl.sum(tl.where(lanes == place, tokens, 0), axis=0)
    tl.store(drawn + row, tl.maximum(token, 0).to(tl.int64))  # a row of nothing possible: token 0


def aot_cases() -> Iterator[AotCase]:
    """Yield both kernels for two vocabularies: the largest, the first arrival, and that of what filters keep."""
    for vocab, dtype in ((49152, "fp32"), (49152, "bf16"), (128256, "fp32"), (128256, "bf16")):
        for config, absent in launches("sampling", vocab=vocab):
            for way in ("greedy", "sample", "sample filtered"):
                yield from _cases(vocab, dtype, way, config, absent)


def _cases(vocab: int, dtype: str, way: str, config: LaunchConfig, absent: frozenset[str]) -> Iterator[AotCase]:
    chunks = triton.cdiv(vocab, config.blocks["BLOCK"])
    rows = {"temperature": "*fp32", "seeds": "*i64", "positions": "*i64"}
    kept = {"found": "*fp32", "tops": "*fp32"}
    if way == "greedy":
        rows = dict.fromkeys(rows, "constexpr")
    if way != "sample filtered":
        kept = dict.fromkeys(kept, "constexpr")
    results = {"winners": "*i32", "peaks": "*fp32"}
    kernels = {
        "race": (
            _race_kernel,
            {"logits": f"*{dtype}", **rows, **kept, **results, "stride": "i32", "vocab": "i32", "chunks": "i32"},
            config.blocks["BLOCK"],
        ),
        "finish": (
            _finish_kernel,
            {"logits": f"*{dtype}", **rows, **results, "drawn": "*i64", "stride": "i32", "chunks": "i32"},
            _finish_block(chunks),
        ),
    }
    for part, (kernel, signature, block) in kernels.items():
        if part == "finish" and way == "sample filtered":
            continue  # it has no part in filters
        how = _FINISH if part == "finish" else config
        pointers = {name for name, kind in signature.items() if kind.startswith("*")}
        yield AotCase(
            name=f"{way} {part} vocab={vocab} {dtype}",
            kernel=kernel,
            signature={**signature, "BLOCK": "constexpr"},
            constexprs={**{name: None for name, kind in signature.items() if kind == "constexpr"}, "BLOCK": block},
            aligned=frozenset(pointers | ({"vocab", "stride"} & set(signature))),
            num_warps=how.num_warps,
            num_stages=how.num_stages,
            asked=frozenset({"16-byte loads"} if part == "race" else ()),
            absent=absent,
            quick=(way, part) in (("sample filtered", "race"), ("sample", "finish"))
            and vocab == 128256
            and dtype == "bf16",
        )
