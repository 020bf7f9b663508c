"""This machine's CPU as a device: measured, by the engine's own operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestra.errors import InputError
from orchestra.plan.device import Device

if TYPE_CHECKING:
    from orchestra.localengine.models.spec import ModelSpec
    from orchestra.localengine.precision import Precision

__all__ = ["measure_this_machine"]


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
        raise InputError(
            f'measuring this machine needs {error.name}: pip install "orchestra-llm[local]", or name a device'
        ) from None
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
