"""Matrix products on a CPU: float32 through weights that oneDNN has laid out for itself, int8 through FBGEMM.

Measured on two AVX2 cores (EPYC, torch 2.13), float32, all 120 matrices of a 135M model, median ms per step:

=====  ==========  =========  ======
rows   F.linear    W @ x.T    packed
=====  ==========  =========  ======
1      42          37         34
2      68          34         34
4      71          31         34
8      57          52         36
16     90          52         51
32     89          65         70
64     136         107        114
256    469         401        381
=====  ==========  =========  ======

The packed product is also the same to the last bit for a row alone and among any others (rows 1 to 600 were
compared, with 1, 2, 3 and 5 threads); the other two are not. The operators are private to torch, so a probe
decides at the first use whether they are there and right; elsewhere ``W @ x.T`` serves, which needs no second
layout.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestra.kernels.linear.torch_cpu_int8 import Int8Matrix, linear_int8

__all__ = ["RowByRow", "is_row_stable", "linear", "pack"]


@dataclass(frozen=True, slots=True, eq=False)
class RowByRow:
    """A packed weight that each row is multiplied with by itself, so that rows cannot change each other's bits."""

    packed: Tensor | Int8Matrix


def pack(weight: Tensor) -> Tensor:
    """Prepare ``weight`` [out, in] for :func:`linear`. The result is opaque: pass it to nothing else.

    Where it is a copy, dropping ``weight`` afterwards leaves one layout in memory.
    """
    weight = weight.contiguous()
    return _onednn_pack(weight) if _onednn_works() else weight


def linear(x: Tensor, packed: Tensor | Int8Matrix | RowByRow) -> Tensor:
    """``x`` [rows, in] times the packed weight, transposed: [rows, out], contiguous."""
    if isinstance(packed, RowByRow):
        return torch.cat([linear(row[None], packed.packed) for row in x])
    if isinstance(packed, Int8Matrix):
        return linear_int8(x, packed)
    if packed.is_mkldnn:
        return _onednn_linear(x, packed)
    return (packed @ x.T).T.contiguous()


def is_row_stable(packed: Tensor | Int8Matrix, columns: int) -> bool:
    """Whether a row's product, as far as a trial tells, is the same to the last bit alone and among others.

    That depends on the shape, the processor and the number of threads. ``columns`` are those of the weight.
    """
    x = torch.randn(72, columns, generator=torch.Generator().manual_seed(0))
    whole = linear(x, packed)
    parts = [slice(first, first + rows) for rows in (1, 2, 3, 5, 8, 16, 33, 64) for first in (0, 7)]
    return all(torch.equal(linear(x[part], packed), whole[part]) for part in parts)


def _onednn_pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight.default(weight, None)
    return packed


def _onednn_linear(x: Tensor, packed: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, packed, None, "none", [], "")
    return product


@functools.cache
def _onednn_works() -> bool:
    weight = torch.linspace(-1, 1, 48 * 32).view(48, 32)
    x = torch.linspace(-2, 2, 3 * 32).view(3, 32)
    try:
        product = _onednn_linear(x, _onednn_pack(weight))
    except (AttributeError, RuntimeError, TypeError):  # another torch, or one built without oneDNN
        return False
    return product.shape == (3, 48) and torch.allclose(product, x @ weight.T, atol=1e-4)
