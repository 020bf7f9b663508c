"""RMSNorm (Zhang and Sennrich, 2019, arXiv 1910.07467) in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["add_rms_norm", "rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Each row of ``x`` [rows, hidden] over its root mean square, times ``weight`` [hidden]."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add ``x`` to ``residual`` in place, and return the sum normalised."""
    residual += x
    return rms_norm(residual, weight, eps)
