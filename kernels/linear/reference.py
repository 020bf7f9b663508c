"""What ``pack`` and ``linear`` mean, in plain torch."""

from __future__ import annotations

from torch import Tensor

__all__ = ["linear", "pack"]


def pack(weight: Tensor) -> Tensor:
    """Prepare ``weight`` [out, in] for :func:`linear`. The result is opaque: pass it to nothing else."""
    return weight


def linear(x: Tensor, packed: Tensor) -> Tensor:
    """``x`` [rows, in] times the packed weight, transposed: [rows, out]."""
    return x @ packed.T
