"""RMSNorm on a GPU: a program a row, which stays in registers between the sum and the product."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from orchestra.kernels.aot import MODELS, AotCase, launches
from orchestra.kernels.guard import on_device_of
from orchestra.kernels.launch import arch_of, launch_config

__all__ = ["add_rms_norm", "aot_cases", "rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Each row of ``x`` [rows, hidden] over its root mean square, times ``weight`` [hidden].

    The result has the type of ``x``; between, all is float32. Rows may lie apart, the elements of one may not.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, None, weight, out, eps)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add ``x`` to ``residual`` in place, and return the sum normalised, of the type of ``x``.

    What is normalised is the sum as it is stored, so that it does not matter whether the two steps are fused.
    """
    if x.shape != residual.shape:
        raise ValueError(f"x has shape {list(x.shape)}, and the residual {list(residual.shape)}")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, residual, weight, out, eps)
    return out


def _launch(x: Tensor, residual: Tensor | None, weight: Tensor, out: Tensor, eps: float) -> None:
    rows, hidden = x.shape
    if x.stride(1) != 1 or (residual is not None and residual.stride(1) != 1):
        raise ValueError("the elements of a row must lie side by side")
    if not rows:
        return
    config = launch_config("norm", arch_of(x.device), hidden=hidden)
    with on_device_of(x):
        _rms_norm_kernel[(rows,)](
            x,
            residual,
            weight,
            out,
            x.stride(0),
            0 if residual is None else residual.stride(0),
            eps,
            HIDDEN=hidden,
            BLOCK=triton.next_power_of_2(hidden),
            **config.options,
        )


@triton.jit
def _rms_norm_kernel(
    x,  # [rows, HIDDEN]
    residual,  # [rows, HIDDEN], or None
    weight,  # [HIDDEN]
    out,  # [rows, HIDDEN], without gaps
    x_stride,
    residual_stride,
    eps,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # a row times a stride may pass 2**31
    columns = tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if residual is not None:
        at = residual + row * residual_stride + columns
        total = tl.load(at, mask=inside, other=0.0).to(tl.float32) + values
        total = total.to(residual.dtype.element_ty)
        tl.store(at, total, mask=inside)
        values = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / HIDDEN + eps)
    scaled = values * scale * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * HIDDEN + columns, scaled.to(out.dtype.element_ty), mask=inside)


def aot_cases() -> Iterator[AotCase]:
    """Yield both norms for each model's width, with residual and weight in float32, as the engine has them."""
    for hidden in sorted({model.hidden for model in MODELS}):
        for dtype in ("bf16", "fp32") if hidden == 576 else ("bf16",):
            for adds in (False, True):
                for config, absent in launches("norm", hidden=hidden):
                    yield AotCase(
                        name=f"{'add_rms_norm' if adds else 'rms_norm'} hidden={hidden} {dtype}",
                        kernel=_rms_norm_kernel,
                        signature={
                            "x": f"*{dtype}",
                            "residual": "*fp32" if adds else "constexpr",
                            "weight": "*fp32",
                            "out": f"*{dtype}",
                            "x_stride": "i32",
                            "residual_stride": "i32",
                            "eps": "fp32",
                            "HIDDEN": "constexpr",
                            "BLOCK": "constexpr",
                        },
                        constexprs={
                            **({} if adds else {"residual": None}),
                            "HIDDEN": hidden,
                            "BLOCK": triton.next_power_of_2(hidden),
                        },
                        aligned=frozenset({"x", "weight", "out", "x_stride", "residual_stride"})
                        | ({"residual"} if adds else set()),
                        num_warps=config.num_warps,
                        num_stages=config.num_stages,
                        asked=frozenset({"16-byte loads", "16-byte stores"}),
                        absent=absent,
                        quick=adds and hidden == 576 and dtype == "bf16",
                    )
