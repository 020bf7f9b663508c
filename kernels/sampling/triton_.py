"""Sampling on a GPU, with the signatures of the other forms.

A seed gives the same text as on a CPU wherever the floats agree: the noise has the same integers, and filters keep
the same values. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestra.kernels.aot import AotCase
from orchestra.kernels.sampling import triton_draw, triton_filter, triton_noise, triton_process
from orchestra.kernels.sampling.triton_draw import greedy, log_probabilities, sample
from orchestra.kernels.sampling.triton_filter import keep_mask
from orchestra.kernels.sampling.triton_noise import exponential_noise
from orchestra.kernels.sampling.triton_process import add_bias, forbid, penalize, rank_tokens

__all__ = [
    "add_bias",
    "aot_cases",
    "exponential_noise",
    "forbid",
    "greedy",
    "keep_mask",
    "log_probabilities",
    "penalize",
    "rank_tokens",
    "sample",
]


def aot_cases() -> Iterator[AotCase]:
    """Yield the cases of all of them."""
    for module in (triton_noise, triton_filter, triton_draw, triton_process):
        yield from module.aot_cases()
