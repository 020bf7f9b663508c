"""What changes logits before a draw, and what is told of them after it, on a GPU.

Bias and penalties touch a few places of the rows that have them: torch's own operations do, as on a CPU, and none
of them waits for the device. What is forbidden touches all, so it is a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from orchestra.kernels.aot import AotCase, launches
from orchestra.kernels.guard import on_device_of
from orchestra.kernels.launch import arch_of, launch_config
from orchestra.kernels.sampling.torch_cpu import add_bias, penalize

__all__ = ["add_bias", "aot_cases", "forbid", "penalize", "rank_tokens"]


def forbid(logits: Tensor, allowed: Tensor) -> Tensor:
    """``logits`` [rows, vocab] with minus infinity where a token is not allowed.

    Token ``t`` is allowed where bit ``t % 32`` of ``allowed[row, t // 32]`` is set: int32 [rows, words]. A
    vocabulary that goes beyond the words is not allowed there.
    """
    rows, vocab = logits.shape
    if logits.stride(1) != 1 or allowed.stride(1) != 1:
        raise ValueError("the logits and the words of a row must lie side by side")
    left = torch.empty(rows, vocab, dtype=logits.dtype, device=logits.device)
    if rows:
        config = launch_config("sampling", arch_of(logits.device), vocab=vocab)
        with on_device_of(logits):
            _forbid_kernel[(rows, triton.cdiv(vocab, config.blocks["BLOCK"]))](
                logits,
                allowed,
                left,
                logits.stride(0),
                allowed.stride(0),
                vocab,
                allowed.shape[1],
                **config.blocks,
                **config.options,
            )
    return left


def rank_tokens(logprobs: Tensor, chosen: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What to tell of ``chosen`` int64 [rows] among ``logprobs`` float32 [rows, vocab].

    Returns its value float32 [rows] and its rank int64 [rows] (1 + how many are larger), and the ``top`` largest
    values float32 [rows, top] with their tokens int64 [rows, top]: largest first, the lower id among equals.
    """
    vocab = logprobs.shape[1]
    top = min(top, vocab)
    value = logprobs.gather(1, chosen[:, None])  # [rows, 1]
    rank = 1 + (logprobs > value).sum(dim=-1)
    # torch's selection takes equals in any order: no two of these integers are equal, and they are ordered by the
    # value first, then by the id, the lowest first
    bits = (logprobs + 0.0).view(torch.int32)  # the sum makes one zero of both
    by_value = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)
    last = (1 << 32) - 1
    keys = (by_value << 32) | (last - torch.arange(vocab, device=logprobs.device))
    tokens = last - (keys.topk(top, dim=-1).values & last)
    return value[:, 0], rank, logprobs.gather(1, tokens), tokens


@triton.jit
def _forbid_kernel(
    logits,  # [rows, vocab]
    allowed,  # [rows, words]
    left,  # [rows, vocab], without gaps
    logits_stride,
    allowed_stride,
    vocab,
    words,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # a row times a stride may pass 2**31
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = tokens < vocab
    place = tokens >> 5
    word = tl.load(allowed + row * allowed_stride + place, mask=place < words, other=0)
    is_allowed = ((word >> (tokens & 31)) & 1) != 0
    x = tl.load(logits + row * logits_stride + tokens, mask=inside, other=float("-inf"))
    tl.store(left + row * vocab + tokens, tl.where(is_allowed, x, float("-inf")), mask=inside)


def aot_cases() -> Iterator[AotCase]:
    """Yield the kernel for two vocabularies."""
    for vocab, dtype in ((49152, "fp32"), (128256, "bf16")):
        for config, absent in launches("sampling", vocab=vocab):
            yield AotCase(
                name=f"forbid vocab={vocab} {dtype}",
                kernel=_forbid_kernel,
                signature={
                    "logits": f"*{dtype}",
                    "allowed": "*i32",
                    "left": f"*{dtype}",
                    "logits_stride": "i32",
                    "allowed_stride": "i32",
                    "vocab": "i32",
                    "words": "i32",
                    "BLOCK": "constexpr",
                },
                constexprs=config.blocks,
                aligned=frozenset({"logits", "allowed", "left", "logits_stride", "vocab"}),
                num_warps=config.num_warps,
                num_stages=config.num_stages,
                asked=frozenset({"16-byte loads", "16-byte stores"}),
                absent=absent,
                quick=dtype == "bf16",
            )
