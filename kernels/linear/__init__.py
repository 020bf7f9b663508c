"""``y = x W^T`` with weights packed once: ``pack(weight)`` and ``linear(x, packed)``."""

from orchestra.kernels.linear.torch_cpu import linear, pack

__all__ = ["linear", "pack"]
