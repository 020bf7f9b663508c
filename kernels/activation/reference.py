"""SwiGLU's activation (Shazeer, 2020, arXiv 2002.05202) in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["silu_mul"]


def silu_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` for ``gate_up`` [rows, 2 * width], the gate in the first half: [rows, width]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up
