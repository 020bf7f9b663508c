"""The operations that a forward pass is made of, as one device has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from orchestra.kernels import activation, attention, linear, norm, rope_kv
from orchestra.localengine.models.row_stable import Matrix, in_small_pieces, packing_stably
from orchestra.localengine.precision import Precision

__all__ = ["Operations", "cpu_operations"]


class _AddRmsNorm(Protocol):
    def __call__(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor: ...


class _RopeKv(Protocol):
    def __call__(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        slots: Tensor,
        pool: Tensor,
        *,
        qk_norm: Tensor | None = None,
        eps: float = 0.0,
    ) -> Tensor: ...


class _Attend(Protocol):
    def __call__(
        self, q: Tensor, pool: Tensor, plan: Any, scale: float, *, softcap: float | None = None
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """What :class:`~orchestra.localengine.models.transformer.Transformer` computes with.

    ``dtype`` is that of matrices, biases and activations; norms' weights, the residual and logits are float32.
    ``pack`` prepares a matrix, once, for ``linear``, and for ``logits``, which is a product with a result in
    float32. The others are those of `orchestra.kernels`, by their names there.
    """

    dtype: torch.dtype
    pack: Callable[[Tensor], Matrix]
    linear: Callable[[Tensor, Matrix], Tensor]
    logits: Callable[[Tensor, Matrix], Tensor]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: _AddRmsNorm
    silu_mul: Callable[[Tensor], Tensor]
    gelu_tanh_mul: Callable[[Tensor], Tensor]
    rope_kv: _RopeKv
    decode: _Attend
    extend: _Attend


def cpu_operations(precision: Precision = "float32", *, strict: bool = False) -> Operations:
    """Those of a CPU, in float32; with int8 for all matrix products.

    With ``strict`` a token's results are the same to the last bit in any company, if it is a row of its own.
    """
    pack: Callable[[Tensor], Tensor | linear.Int8Matrix] = linear.pack_int8 if precision == "int8" else linear.pack
    silu_mul, gelu_tanh_mul = activation.silu_mul, activation.gelu_tanh_mul
    return Operations(
        dtype=torch.float32,
        pack=packing_stably(pack) if strict else pack,
        linear=linear.linear,
        logits=linear.linear,
        rms_norm=norm.rms_norm,
        add_rms_norm=norm.add_rms_norm,
        silu_mul=in_small_pieces(silu_mul) if strict else silu_mul,
        gelu_tanh_mul=in_small_pieces(gelu_tanh_mul) if strict else gelu_tanh_mul,
        rope_kv=rope_kv.rope_kv,
        decode=attention.decode,
        extend=attention.extend,
    )
