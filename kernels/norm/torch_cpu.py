"""RMSNorm on a CPU: the norm by one fused reduction, the rest in place."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["add_rms_norm", "rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Each row of ``x`` [rows, hidden] over its root mean square, times ``weight`` [hidden]."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # [rows, 1]
    scale = norm.square_().mul_(1 / x.shape[-1]).add_(eps).rsqrt_()
    return x.mul(scale).mul_(weight)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add ``x`` to ``residual`` in place, and return the sum normalised."""
    residual += x
    return rms_norm(residual, weight, eps)
