"""Int8 matrix products on a CPU, through FBGEMM: a byte a number, quicker, and less exact.

FBGEMM fills the columns of a weight up to a multiple of 512, so that 576 of them take the memory of 1024.

What torch offers as dynamic int8 gives wrong answers to a language model on a processor without VNNI, silently:

- The kernel adds pairs of products in 16 bits. Activations of 8 bits times weights within +-127 overflow, so
  weights are kept within +-63 here: 2 * 255 * 63 fits.
- It takes one scale for all rows. One loud row (the first token's, in most models) then rounds its neighbours to
  zero, and a request's answer depends on its company. Here each row is divided by its own largest number before
  the product, and multiplied by it after: the scale that the kernel is given is always the same.

So a row's result is the same to the last bit in any company: sums of integers do not depend on their order.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Int8Matrix", "int8_fault", "linear_int8", "pack_int8"]

_ENGINE = "fbgemm"
_WEIGHT_STEPS = 63
_ACTIVATION_STEPS = 127
_ZERO_POINT = 128  # activations are unsigned: 1 .. 255
_LEAST = 1e-30  # stands for the largest number of a row of zeros


@dataclass(frozen=True, slots=True, eq=False)
class Int8Matrix:
    """A weight [out, in] in 8 bits with a scale for each of its rows, laid out for FBGEMM."""

    shape: tuple[int, int]
    packed: torch.ScriptObject


def pack_int8(weight: Tensor) -> Int8Matrix:
    """Round ``weight`` float32 [out, in] to 7 bits and a sign, each row by a scale of its own.

    Nothing of ``weight`` is kept. Raises RuntimeError where `int8_fault` has something to say.
    """
    if fault := int8_fault():
        raise RuntimeError(fault)
    return _pack(weight)


def linear_int8(x: Tensor, matrix: Int8Matrix) -> Tensor:
    """``x`` float32 [rows, in] times the matrix, transposed: float32 [rows, out]."""
    peak = torch.linalg.vector_norm(x, ord=float("inf"), dim=-1, keepdim=True).clamp_(min=_LEAST)  # [rows, 1]
    product: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
        x / peak, 1 / _ACTIVATION_STEPS, _ZERO_POINT, matrix.packed
    )
    return product.mul_(peak)


@functools.cache
def int8_fault() -> str | None:
    """Why there are no int8 products here, for people; None where there are."""
    if _ENGINE not in torch.backends.quantized.supported_engines:
        return f"this torch ({torch.__version__}) is built without the {_ENGINE} engine that int8 needs"
    # 255 * 63 in every product is what overflows first; the second row is a thousand times the first
    weight = torch.ones(8, 64)
    x = torch.stack([torch.full((64,), 1.0), torch.full((64,), 1000.0), torch.linspace(-1, 1, 64)])
    try:
        product = linear_int8(x, _pack(weight))
    except (AttributeError, RuntimeError, TypeError) as error:
        return f"int8 products fail in this torch ({torch.__version__}): {str(error).partition(chr(10))[0]}"
    exact = torch.tensor([[64.0], [64_000.0], [0.0]]).expand(3, 8)
    if not torch.allclose(product, exact, rtol=1e-3, atol=0.5):
        return f"int8 products are wrong in this torch ({torch.__version__})"
    return None


def _pack(weight: Tensor) -> Int8Matrix:
    scale = weight.abs().amax(dim=1).clamp_(min=_LEAST).double() / _WEIGHT_STEPS  # [out]
    zeros = torch.zeros(len(weight), dtype=torch.int64)
    # its tensors are about to leave torch; `int8_fault` will say so when they have
    warnings.filterwarnings("ignore", message="torch.quantize_per_tensor, torch.quantize_per_channel")
    rounded = torch.quantize_per_channel(weight, scale, zeros, 0, torch.qint8)
    with _engine():
        packed = torch.ops.quantized.linear_prepack(rounded, None)
    return Int8Matrix((weight.shape[0], weight.shape[1]), packed)


@contextmanager
def _engine() -> Iterator[None]:
    """Packing asks a setting of the process which engine to pack for; the product asks the packed matrix."""
    backends = torch.backends.quantized
    before = backends.engine
    backends.engine = _ENGINE
    try:
        yield
    finally:
        backends.engine = before
