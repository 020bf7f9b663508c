"""The gated activation of the MLP: ``silu_mul(gate_up)``."""

from orchestra.kernels.activation.torch_cpu import silu_mul

__all__ = ["silu_mul"]
