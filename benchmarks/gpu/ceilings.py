"""What the device can do, of which other figures are shares: how fast it copies and multiplies matrices."""

from __future__ import annotations

from collections.abc import Iterator

from gpu.figures import Figure
from gpu.lab import Lab

__all__ = ["run"]


def run(lab: Lab) -> Iterator[Figure]:
    """Measure both ceilings."""
    yield Figure(what="copy within the device, read and write", value=lab.copy_rate / 1e9, unit="GB/s")
    yield Figure(what="product of bf16 matrices, 8192 x 8192 x 8192", value=lab.matmul_rate / 1e12, unit="TFLOP/s")
