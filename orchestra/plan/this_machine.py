"""This machine's CPU as a device: measured, by the engine's own operations."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from orchestra.errors import InputError
from orchestra.extras import install
from orchestra.plan.device import Device

if TYPE_CHECKING:
    from orchestra.localengine.models.spec import ModelSpec
    from orchestra.localengine.precision import Precision

__all__ = ["measure_this_machine", "note_on_load"]

_BUSY = 0.25
"""The share of the cores, kept busy by others, from which on a measurement tells of something else."""


def note_on_load(load: float | None = None, cores: int | None = None) -> str | None:
    """Return a warning where others compute beside a measurement; None where they do not, or nobody knows.

    ``load`` is that of the last minute, of which `os.getloadavg` tells, and ``cores`` how many there are.
    """
    if load is None:
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    cores = cores or os.cpu_count() or 1
    if load < _BUSY * cores:
        return None
    return (
        f"others compute here: a load of {load:.1f} on {cores} cores in the last minute. What is measured is what "
        "they leave: repeat it on a quiet machine"
    )


def measure_this_machine(spec: ModelSpec, precision: Precision) -> Device:
    """Measure for some seconds how fast models like ``spec`` are here. Loads torch; without it, InputError."""
    from orchestra.localengine.models.capacity import available_memory
    from orchestra.localengine.service.loading import prepare_torch

    memory = available_memory()  # before anything is measured
    prepare_torch()
    try:
        from orchestra.kernels.linear import int8_fault
        from orchestra.localengine.quality.speeds import measure_speeds
    except ModuleNotFoundError as error:
        remedy = f"{install('local')}; or name a device"
        raise InputError(f"measuring this machine needs {error.name}: {remedy}") from None
    if precision == "int8" and (fault := int8_fault()):
        raise InputError(fault)
    speeds = measure_speeds(spec, precision)
    return Device(
        name="this machine",
        memory=memory,
        bandwidth=speeds.bandwidth,
        flops={precision: speeds.flops},
        source=f"with {speeds.threads} threads of torch, random weights and the engine's own operations",
        kv_bandwidth=speeds.kv_bandwidth,
        overlap=speeds.overlap,
        step_seconds=speeds.step_seconds,
        row_seconds=speeds.row_seconds,
    )
