"""All the kernels that the runner launches on a device, and the plans that they go by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from orchestra.localengine.models.operations import Operations

__all__ = ["GpuKernels", "PlanBuffer", "triton_kernels"]


class PlanBuffer(Protocol):
    """A decode plan at a fixed place: what a captured step reads, filled anew before each replay."""

    plan: Any

    def fill(self, block_tables: Sequence[Any], lengths: Sequence[int]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuKernels:
    """``operations`` of the forward pass; ``plan_decode``, ``plan_extend`` and ``plan_buffer`` are those of
    `orchestra.kernels.attention.triton_`, and ``sampling`` has the functions of `orchestra.kernels.sampling`.
    """

    operations: Operations
    plan_decode: Callable[..., Any]
    plan_extend: Callable[..., Any]
    plan_buffer: Callable[..., PlanBuffer]
    sampling: ModuleType


def triton_kernels(dtype: torch.dtype, device: torch.device) -> GpuKernels:
    """Triton's, with activations and matrices in ``dtype``; matrix products are torch's own.

    Importing them takes Triton, and a second.
    """
    from orchestra.kernels.activation import triton_ as activation
    from orchestra.kernels.attention import triton_ as attention
    from orchestra.kernels.norm import triton_ as norm
    from orchestra.kernels.rope_kv import triton_ as rope_kv
    from orchestra.kernels.sampling import triton_ as sampling

    return GpuKernels(
        operations=Operations(
            dtype=dtype,
            pack=Tensor.contiguous,
            linear=_linear,
            logits=_logits_unrounded if _multiplies_into_float32(dtype, device) else _logits,
            rms_norm=norm.rms_norm,
            add_rms_norm=norm.add_rms_norm,
            silu_mul=activation.silu_mul,
            gelu_tanh_mul=activation.gelu_tanh_mul,
            rope_kv=rope_kv.rope_kv,
            decode=attention.decode,
            extend=attention.extend,
        ),
        plan_decode=attention.plan_decode,
        plan_extend=attention.plan_extend,
        plan_buffer=attention.DecodePlanBuffer,
        sampling=sampling,
    )


def _linear(x: Tensor, weight: Any) -> Tensor:
    return F.linear(x, weight)


def _logits(x: Tensor, weight: Any) -> Tensor:
    return F.linear(x, weight).to(torch.float32)


def _logits_unrounded(x: Tensor, weight: Any) -> Tensor:
    """Sums are in float32 anyway; rounded to sixteen bits, many logits would be equal that are not."""
    return torch.mm(x, weight.T, out_dtype=torch.float32)


def _multiplies_into_float32(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this torch has such a product on ``device``: from 2.8 on, on NVIDIA's."""
    if dtype == torch.float32:
        return False  # all of its are
    one = torch.ones(16, 16, dtype=dtype, device=device)
    try:
        product = _logits_unrounded(one, one)
    except (NotImplementedError, RuntimeError, TypeError):
        return False
    return product.dtype == torch.float32
