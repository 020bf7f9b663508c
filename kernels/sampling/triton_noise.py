"""The stateless noise of a draw on a GPU: a hash of (seed, position, token), made where it is used, never stored.

Its integers are those of the reference, bit for bit, and so are the uniform variables made of them (those of
``torch_cpu``, which round as here). The logarithms are our own: what a GPU's fast logarithm loses near 1 is what
decides a draw, and the interpreter has no other that a GPU has too. They are within 4e-7 of the true ones.
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

__all__ = ["aot_cases", "exponential", "exponential_noise", "natural_log", "row_key"]

LN_2 = tl.constexpr(0.6931471805599453)
ROOT_HALF_BITS = tl.constexpr(0x3F3504F3)  # of the float32 next to the square root of 1/2
TWO_TO_MINUS_32 = tl.constexpr(2.0**-32)
LAST_BELOW_1 = tl.constexpr(1 - 2.0**-24)


def exponential_noise(seeds: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """Exponential variables float32 [rows, vocab], each a function of (seed, position, token) alone.

    ``seeds`` and ``positions`` are int64 [rows]. Draws make their own; this shows what they are.
    """
    noise = torch.empty(len(seeds), vocab, dtype=torch.float32, device=seeds.device)
    if len(seeds):
        config = launch_config("sampling", arch_of(seeds.device), vocab=vocab)
        with on_device_of(seeds):
            _noise_kernel[(len(seeds), triton.cdiv(vocab, config.blocks["BLOCK"]))](
                seeds, positions, noise, vocab, **config.blocks, **config.options
            )
    return noise


@triton.jit
def row_key(seed, position):
    """The two halves, uint32, of the key that ``seed`` and ``position``, int64, make."""
    key = _mix64(seed.to(tl.uint64) ^ _mix64(position.to(tl.uint64)))
    return key.to(tl.uint32), (key >> 32).to(tl.uint32)


@triton.jit
def exponential(low, high, tokens):
    """The exponential variables of ``tokens``, int32, in the row whose key is (``low``, ``high``): float32."""
    bits = tl.mul(tokens.to(tl.uint32), 0x9E3779B9, sanitize_overflow=False)
    bits = _mix32(_mix32(tl.add(bits, low, sanitize_overflow=False)) ^ high)
    # int32 to (0, 1): a small value, which is an early arrival and decides the race, keeps all its digits
    uniform = (bits.to(tl.int32, bitcast=True).to(tl.float32) + 0.5) * TWO_TO_MINUS_32
    uniform = tl.minimum(tl.where(uniform < 0, uniform + 1, uniform), LAST_BELOW_1)
    # -log1p(-uniform): the logarithm of the rounded difference, and what the rounding took from it
    rest = 1 - uniform
    lost = (1 - rest) - uniform
    return -(natural_log(rest) + lost / rest)


@triton.jit
def natural_log(x):
    """The logarithm of a normal float32 above 0, to three units in the last place, near 1 too.

    With x = m * 2**e, m from the root of 1/2 to that of 2, it is e * log(2) + 2 * artanh((m - 1) / (m + 1)).
    """
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - ROOT_HALF_BITS) >> 23
    mantissa = (bits - (exponent << 23)).to(tl.float32, bitcast=True)
    s = (mantissa - 1) / (mantissa + 1)
    z = s * s  # at most 0.03: the first term left out is 3e-9 of the sum
    series = 1 + z * (1 / 3 + z * (1 / 5 + z * (1 / 7 + z * (1 / 9))))
    return exponent.to(tl.float32) * LN_2 + 2 * s * series


@triton.jit
def _mix64(x):
    """The output function of SplitMix64 (Steele, Lea and Flood, 2014)."""
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _mix32(x):
    """The finalizer of MurmurHash3 (Appleby, public domain)."""
    x = tl.mul(x ^ (x >> 16), 0x85EBCA6B, sanitize_overflow=False)
    x = tl.mul(x ^ (x >> 13), 0xC2B2AE35, sanitize_overflow=False)
    return x ^ (x >> 16)


@triton.jit
def _noise_kernel(
    seeds,  # [rows]
    positions,  # [rows]
    noise,  # [rows, vocab], without gaps
    vocab,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # a row times the vocabulary may pass 2**31
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    low, high = row_key(tl.load(seeds + row), tl.load(positions + row))
    tl.store(noise + row * vocab + tokens, exponential(low, high, tokens), mask=tokens < vocab)


def aot_cases() -> Iterator[AotCase]:
    """Yield the noise alone, once."""
    for config, absent in launches("sampling", vocab=49152):
        yield AotCase(
            name="exponential_noise",
            kernel=_noise_kernel,
            signature={
                "seeds": "*i64",
                "positions": "*i64",
                "noise": "*fp32",
                "vocab": "i32",
                "BLOCK": "constexpr",
            },
            constexprs=config.blocks,
            aligned=frozenset({"seeds", "positions", "noise", "vocab"}),
            num_warps=config.num_warps,
            num_stages=config.num_stages,
            absent=absent,
        )
