"""SiLU-mul on a CPU: two passes, no temporary beside the result."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

__all__ = ["silu_mul"]


def silu_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` for ``gate_up`` [rows, 2 * width], the gate in the first half: [rows, width]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
