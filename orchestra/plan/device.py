"""What computes: its memory and its speeds. A table of GPUs as their vendors publish them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestra.errors import InputError

__all__ = ["DEVICES", "Device", "find_device"]

_NVIDIA = "https://www.nvidia.com/en-us"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device, or a machine, that runs the steps of one model.

    ``memory``: bytes. ``bandwidth``: bytes a second, for weights; ``kv_bandwidth`` for keys and values, None where
    that is the same. ``flops``: operations a second in matrix products, by what matrices are kept in; a product
    and its sum are two. ``overlap``: how far a matrix product computes while it reads, from 0 (one after the
    other) to 1; measured, it is below 0 where products with few rows compute slower. ``step_seconds`` and
    ``row_seconds``: what a step takes beside reading and computing, and each of its rows.

    ``float8``: whether keys and values can be kept in it. ``source``: the vendor's page, or how it was measured.
    ``share``: of what that says, how much these speeds are.
    """

    name: str
    memory: int
    bandwidth: float
    flops: Mapping[str, float]
    source: str
    kv_bandwidth: float | None = None
    overlap: float = 1.0
    step_seconds: float = 0.0
    row_seconds: float = 0.0
    float8: bool = False
    share: float = 1.0

    def reaching(self, share: float) -> Device:
        """The same device at a ``share`` of its speeds, 0 < share <= 1. Raises InputError."""
        if not 0 < share <= 1:
            raise InputError(
                f"the share of its peak that a device reaches is above 0 and at most 1, not {share:g}"
            )
        return replace(
            self,
            bandwidth=self.bandwidth * share,
            kv_bandwidth=None if self.kv_bandwidth is None else self.kv_bandwidth * share,
            flops={dtype: rate * share for dtype, rate in self.flops.items()},
            share=self.share * share,
        )


def _gpu(name: str, gigabytes: int, gb_per_s: float, tflops: float, source: str) -> Device:
    """A GPU. ``tflops`` are of 16-bit matrices with sums in float32, without structured sparsity."""
    return Device(
        name=name,
        memory=gigabytes << 30,  # vendors say GB, and build memory in powers of two
        bandwidth=gb_per_s * 1e9,
        flops={"bfloat16": tflops * 1e12, "float16": tflops * 1e12},
        source=source,
        float8=True,
    )


DEVICES: Mapping[str, Device] = {
    "a100": replace(_gpu("A100 SXM 80 GB", 80, 2039, 312, f"{_NVIDIA}/data-center/a100/"), float8=False),
    "h100": _gpu("H100 SXM", 80, 3350, 989.4, f"{_NVIDIA}/data-center/h100/"),
    "h200": _gpu("H200 SXM", 141, 4800, 989.4, f"{_NVIDIA}/data-center/h200/"),
    "b200": _gpu("B200 SXM", 180, 8000, 2250, f"{_NVIDIA}/data-center/dgx-b200/"),
    "l4": _gpu("L4", 24, 300, 121, f"{_NVIDIA}/data-center/l4/"),
    "l40s": _gpu("L40S", 48, 864, 362, f"{_NVIDIA}/data-center/l40s/"),
    "rtx-4090": _gpu("RTX 4090", 24, 1008, 165.2, f"{_NVIDIA}/geforce/graphics-cards/40-series/rtx-4090/"),
    "rtx-5090": _gpu("RTX 5090", 32, 1792, 209.5, f"{_NVIDIA}/geforce/graphics-cards/50-series/rtx-5090/"),
    "mi300x": _gpu(
        "MI300X",
        192,
        5300,
        1307.4,
        "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html",
    ),
}
"""By the name that `orchestra plan --device` takes. What is measured there is never more than this."""


def find_device(name: str) -> Device:
    """The device of the table that is called ``name``, in any case. Raises InputError."""
    key = name.strip().lower().replace(" ", "-").replace("_", "-")
    if found := DEVICES.get(key) or DEVICES.get(f"rtx-{key.removeprefix('rtx')}"):
        return found
    close = difflib.get_close_matches(key, DEVICES, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? Else " if close else ""
    raise InputError(f"no device is called {name[:40]!r}; {hint}there are this, {', '.join(DEVICES)}")
