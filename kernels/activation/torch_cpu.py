"""Gated activations on a CPU: two passes, no temporary beside the result."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

__all__ = ["gelu_tanh_mul", "silu_mul"]


def silu_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` for ``gate_up`` [rows, 2 * width], the gate in the first half: [rows, width]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """``gelu(gate) * up`` likewise, with the tanh form of GELU (Hendrycks and Gimpel, 2016, arXiv 1606.08415)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh").mul_(up)
