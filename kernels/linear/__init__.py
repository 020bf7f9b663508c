"""``y = x W^T`` with weights packed once: ``pack(weight)`` or ``pack_int8(weight)``, and ``linear(x, packed)``."""

from orchestra.kernels.linear.torch_cpu import RowByRow, is_row_stable, linear, pack
from orchestra.kernels.linear.torch_cpu_int8 import Int8Matrix, int8_fault, pack_int8

__all__ = ["Int8Matrix", "RowByRow", "int8_fault", "is_row_stable", "linear", "pack", "pack_int8"]
