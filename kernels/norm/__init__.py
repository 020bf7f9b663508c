"""RMSNorm, alone and fused with the residual addition before it: ``rms_norm`` and ``add_rms_norm``."""

from orchestra.kernels.norm.torch_cpu import add_rms_norm, rms_norm

__all__ = ["add_rms_norm", "rms_norm"]
