"""A model from its files onto a GPU, ready to run steps."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from orchestra.localengine.config import EngineConfig
from orchestra.localengine.errors import EngineError
from orchestra.localengine.gpu.cuda import CudaDevice
from orchestra.localengine.gpu.device import Device
from orchestra.localengine.gpu.kernels import GpuKernels
from orchestra.localengine.gpu.placing import DevicePlacing
from orchestra.localengine.gpu.runner import GpuRunner
from orchestra.localengine.models.capacity import Capacity
from orchestra.localengine.precision import Precision
from orchestra.localengine.weights.files import ModelFiles
from orchestra.localengine.weights.opening import load_model

__all__ = ["load_on_gpu"]

_log = logging.getLogger(__name__)


def load_on_gpu(
    path: Path,
    where: torch.device,
    config: EngineConfig,
    precision: Precision,
    *,
    device: Device | None = None,
    kernels: GpuKernels | None = None,
) -> tuple[ModelFiles, GpuRunner]:
    """Read the model at ``path`` straight to the GPU ``where``, and give its KV pool what is left there.

    Tells how much that is, as the CPU's loading does. ``device`` and ``kernels`` are the GPU's unless given.
    Raises ModelFileError, and EngineError where the GPU's memory is too small.
    """
    device = device or CudaDevice(where)
    try:
        with device.active():
            files = load_model(path, DevicePlacing(device, precision))
        weight_bytes = sum(tensor.nbytes for tensor in files.weights.values())
        runner = GpuRunner(
            files.spec,
            files.weights,
            block_size=config.block_size,
            step_tokens=config.step_tokens,
            max_num_seqs=config.max_num_seqs,
            kv_bytes=config.kv_bytes,
            device=device,
            kernels=kernels,
        )
    except ValueError as error:
        raise EngineError(str(error)) from error
    except RuntimeError as error:
        if not device.is_out_of_memory(error):
            raise
        raise EngineError(
            f"the GPU's memory is too small for {path.name} and a step of {config.step_tokens} tokens: choose a "
            "smaller model, or lower step_tokens"
        ) from error
    spec, memory = files.spec, runner.memory
    capacity = Capacity(
        weight_bytes=weight_bytes,
        kv_bytes_per_token=runner.kv_bytes_per_block // runner.block_size,
        block_size=runner.block_size,
        num_blocks=runner.num_blocks,
        max_position=spec.max_position,
        windowed_layers=len(spec.sliding_layers),
    )
    told = f"{capacity.describe()} {memory.describe()}" if memory is not None else capacity.describe()
    _log.info("%s on %s in %s: %s", files.name, where, precision, told)
    return files, runner
