"""What ``pack``, ``pack_int8`` and ``linear`` mean, in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Int8Matrix", "linear", "pack", "pack_int8"]


@dataclass(frozen=True, slots=True, eq=False)
class Int8Matrix:
    """Whole numbers within +-63, [out, in], and what each row of them is in units of, [out, 1]."""

    steps: Tensor
    scale: Tensor


def pack(weight: Tensor) -> Tensor:
    """Prepare ``weight`` [out, in] for :func:`linear`. The result is opaque: pass it to nothing else."""
    return weight


def pack_int8(weight: Tensor) -> Int8Matrix:
    """Round ``weight`` [out, in] to 63 steps of either sign, each row by the scale that it needs itself."""
    scale = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 63
    return Int8Matrix((weight / scale).round(), scale)


def linear(x: Tensor, packed: Tensor | Int8Matrix) -> Tensor:
    """``x`` [rows, in] times the packed weight, transposed: [rows, out].

    With an :class:`Int8Matrix`, ``x`` is rounded too: each row to 127 steps of either sign.
    """
    if isinstance(packed, Tensor):
        return x @ packed.T
    scale = x.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
    total = (x / scale).round().double() @ packed.steps.double().T  # whole numbers, exactly
    return (total * (scale * packed.scale.T)).float()
