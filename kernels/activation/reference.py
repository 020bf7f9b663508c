"""The activations of gated MLPs (Shazeer, 2020, arXiv 2002.05202) in plain torch: SwiGLU's and GeGLU's."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["gelu_tanh_mul", "silu_mul"]


def silu_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` for ``gate_up`` [rows, 2 * width], the gate in the first half: [rows, width]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """``gelu(gate) * up`` likewise, with the tanh form of GELU (Hendrycks and Gimpel, 2016, arXiv 1606.08415)."""
    gate, up = gate_up.chunk(2, dim=-1)
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return 0.5 * gate * (1 + torch.tanh(inner)) * up
