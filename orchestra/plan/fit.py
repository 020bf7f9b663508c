"""How many requests fit on a device, by the engine's own arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestra.errors import InputError
from orchestra.plan.device import DEVICES, Device

if TYPE_CHECKING:
    from orchestra.localengine.models.capacity import Capacity, KvDtype
    from orchestra.localengine.models.spec import ModelSpec
    from orchestra.localengine.precision import Precision

__all__ = ["cpu_capacity", "gpu_capacity"]

_FLOAT32_BYTES = 4
_LOGITS = 3  # of the largest step, held at once when they are scored; the engine measures what it really is
_GRAPHS = 13  # decode steps that the engine records, at most, and the rows of the largest
_GRAPH_ROWS = 256


def cpu_capacity(
    spec: ModelSpec, device: Device, precision: Precision, *, block_size: int, kv_bytes: int | None = None
) -> Capacity:
    """What the engine holds on a CPU with ``device.memory`` bytes free. Raises InputError where nothing fits."""
    from orchestra.localengine.models.capacity import human, plan_capacity, weight_bytes

    weights = weight_bytes(spec, precision)
    if (needed := weights + (kv_bytes or 0)) > device.memory:
        cache = "" if kv_bytes is None else f", with a KV cache of {human(kv_bytes)} {human(needed)}"
        raise InputError(
            f"it does not fit: its weights take {human(weights)}{cache}, and {human(device.memory)} are free"
        )
    try:
        return plan_capacity(
            spec,
            block_size=block_size,
            kv_bytes=kv_bytes,
            free_bytes=device.memory - weights,
            precision=precision,
        )
    except ValueError as error:
        raise InputError(f"it does not fit: {error}") from None


def gpu_capacity(
    spec: ModelSpec,
    device: Device,
    precision: Precision,
    *,
    block_size: int,
    step_tokens: int,
    kv_dtype: KvDtype | None = None,
    kv_bytes: int | None = None,
) -> Capacity:
    """What the engine holds on a GPU that is free, for steps of up to ``step_tokens`` tokens.

    The memory that such a step takes is measured by the engine when it starts; here it is estimated from the
    logits, which are most of it. Raises InputError where nothing fits.
    """
    from orchestra.localengine.gpu.sizing import DeviceMemory
    from orchestra.localengine.models.capacity import Capacity, kv_bytes_per_token, weight_bytes

    logits = spec.vocab_size * _FLOAT32_BYTES
    weights = weight_bytes(spec, precision)
    token_bytes = kv_bytes_per_token(spec, precision, kv_dtype)
    memory = DeviceMemory(
        free=device.memory - weights,
        total=device.memory,
        step_peak=step_tokens * logits * _LOGITS,
        decode_peak=min(step_tokens, _GRAPH_ROWS) * logits,
        graphs=_GRAPHS,
    )
    try:
        blocks = memory.blocks(token_bytes * block_size, kv_bytes)
    except ValueError as error:
        raise InputError(_too_large(weights, device, str(error) if memory.kv_bytes > 0 else None)) from None
    return Capacity(
        weight_bytes=weights,
        kv_bytes_per_token=token_bytes,
        block_size=block_size,
        num_blocks=blocks,
        max_position=spec.max_position,
        windowed_layers=len(spec.sliding_layers),
    )


def _too_large(weights: int, device: Device, why: str | None) -> str:
    from orchestra.localengine.models.capacity import human

    if why is not None:
        return f"it does not fit on {device.name}: {why}"
    larger = [name for name, other in DEVICES.items() if other.memory * 0.8 > weights]
    remedy = (
        f"of the devices in the table {', '.join(larger)} hold it" if larger else "no device in the table holds it"
    )
    return f"its weights take {human(weights)}, too much for {device.name} with {human(device.memory)}: {remedy}"
