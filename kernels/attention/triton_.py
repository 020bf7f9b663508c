"""Paged attention in Triton: both operations, with the names and meaning that they have on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from orchestra.kernels.aot import AotCase
from orchestra.kernels.attention import triton_decode, triton_extend
from orchestra.kernels.attention.triton_decode import DecodePlan, DecodePlanBuffer, decode, plan_decode
from orchestra.kernels.attention.triton_extend import ExtendPlan, extend, plan_extend

__all__ = [
    "DecodePlan",
    "DecodePlanBuffer",
    "ExtendPlan",
    "aot_cases",
    "decode",
    "extend",
    "plan_decode",
    "plan_extend",
]


def aot_cases() -> Iterator[AotCase]:
    """Yield the cases of both."""
    return chain(triton_decode.aot_cases(), triton_extend.aot_cases())
