"""The gated activation of the MLP: ``silu_mul(gate_up)`` and ``gelu_tanh_mul(gate_up)``."""

from orchestra.kernels.activation.torch_cpu import gelu_tanh_mul, silu_mul

__all__ = ["gelu_tanh_mul", "silu_mul"]
