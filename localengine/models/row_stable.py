"""The same bits for a row in any company: what the forward pass does otherwise for that.

Attention and norms have that property as they are, rotary embeddings and softmax likewise, whatever the number of
rows and threads. These do not:

- Matrix products, unless their weights are packed (see `orchestra.kernels.linear`). Packed ones are tried, and
  where they fail, each row is multiplied by itself.
- Activations of many rows. torch divides those among its threads wherever that makes equal parts, and computes
  the few numbers beside a cut without vector instructions, whose exponential is another.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from orchestra.kernels.linear import Int8Matrix, RowByRow, is_row_stable

__all__ = ["in_small_pieces", "packing_stably"]

_UNDIVIDED = 1 << 14  # numbers: torch computes so many in one thread, GELU's and the others'

Matrix = Tensor | Int8Matrix | RowByRow


def packing_stably(pack: Callable[[Tensor], Tensor | Int8Matrix]) -> Callable[[Tensor], Matrix]:
    """``pack``, but with a packed weight for each row by itself where rows change each other's bits."""
    stable: dict[torch.Size, bool] = {}

    def packed(weight: Tensor) -> Matrix:
        matrix = pack(weight)
        if weight.shape not in stable:  # a model has many matrices and few shapes
            stable[weight.shape] = is_row_stable(matrix, weight.shape[1])
        return matrix if stable[weight.shape] else RowByRow(matrix)

    return packed


def in_small_pieces(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """``activation``, of so few rows at once that torch divides none of them.

    A row that is too long for that is divided alike in any company.
    """

    def activate(x: Tensor) -> Tensor:
        pieces = torch.split(x, max(1, 2 * _UNDIVIDED // x.shape[-1]))  # half of a row is the gate
        return activation(x) if len(pieces) == 1 else torch.cat([activation(piece) for piece in pieces])

    return activate
