"""Gated activations on a GPU: one pass, which reads gate and up side by side."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from orchestra.kernels.aot import MODELS, AotCase, launches
from orchestra.kernels.guard import on_device_of
from orchestra.kernels.launch import arch_of, launch_config

__all__ = ["aot_cases", "gelu_tanh_mul", "silu_mul"]


def silu_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` for ``gate_up`` [rows, 2 * width], the gate in the first half: [rows, width].

    The result has the type of ``gate_up``; between, all is float32. Rows may lie apart, their elements may not.
    """
    return _launch(gate_up, gelu=False)


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """``gelu(gate) * up`` likewise, with the tanh form of GELU (Hendrycks and Gimpel, 2016, arXiv 1606.08415)."""
    return _launch(gate_up, gelu=True)


def _launch(gate_up: Tensor, *, gelu: bool) -> Tensor:
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    if gate_up.stride(1) != 1:
        raise ValueError("the elements of a row must lie side by side")
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        config = launch_config("activation", arch_of(gate_up.device), width=width)
        with on_device_of(gate_up):
            _gated_kernel[(rows, triton.cdiv(width, config.blocks["BLOCK"]))](
                gate_up, out, gate_up.stride(0), WIDTH=width, GELU=gelu, **config.blocks, **config.options
            )
    return out


@triton.jit
def _gated_kernel(
    gate_up,  # [rows, 2 * WIDTH]
    out,  # [rows, WIDTH], without gaps
    stride,  # of gate_up's rows
    WIDTH: tl.constexpr,
    GELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # a row times a stride may pass 2**31
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    at = gate_up + row * stride + columns
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + WIDTH, mask=inside, other=0.0).to(tl.float32)
    # (1 + tanh(u)) / 2 is sigmoid(2 u), and the number is 2 sqrt(2 / pi)
    inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate) if GELU else gate
    # where exp overflows, the sigmoid is 0, as it should be
    activated = gate * tl.sigmoid(inner) * up
    tl.store(out + row * WIDTH + columns, activated.to(out.dtype.element_ty), mask=inside)


def aot_cases() -> Iterator[AotCase]:
    """Yield SwiGLU for each model's width, and GeGLU for one."""
    for width in sorted({model.mlp for model in MODELS}):
        for dtype in ("bf16", "fp32") if width == 1536 else ("bf16",):
            for gelu in (False, True) if width == 1536 else (False,):
                for config, absent in launches("activation", width=width):
                    yield AotCase(
                        name=f"{'gelu_tanh_mul' if gelu else 'silu_mul'} width={width} {dtype}",
                        kernel=_gated_kernel,
                        signature={
                            "gate_up": f"*{dtype}",
                            "out": f"*{dtype}",
                            "stride": "i32",
                            "WIDTH": "constexpr",
                            "GELU": "constexpr",
                            "BLOCK": "constexpr",
                        },
                        constexprs={"WIDTH": width, "GELU": gelu, **config.blocks},
                        aligned=frozenset({"gate_up", "out", "stride"}),
                        num_warps=config.num_warps,
                        num_stages=config.num_stages,
                        asked=frozenset({"16-byte loads", "16-byte stores"}),
                        absent=absent,
                        quick=width == 1536 and dtype == "bf16" and not gelu,
                    )
