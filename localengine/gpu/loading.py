"""A model from its files onto a GPU, ready to run steps."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from orchestra.kernels.kv_pool import FLOAT8, check_float8
from orchestra.localengine.config import EngineConfig
from orchestra.localengine.errors import EngineError
from orchestra.localengine.gpu.cuda import CudaDevice
from orchestra.localengine.gpu.device import Device
from orchestra.localengine.gpu.kernels import GpuKernels
from orchestra.localengine.gpu.placing import DevicePlacing
from orchestra.localengine.gpu.runner import GpuRunner
from orchestra.localengine.models.capacity import Capacity, weight_bytes
from orchestra.localengine.precision import Precision
from orchestra.localengine.settled_config import SettledConfig
from orchestra.localengine.weights.files import ModelFiles
from orchestra.localengine.weights.opening import load_model, read_spec

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
) -> tuple[ModelFiles, GpuRunner, SettledConfig]:
    """Read the model at ``path`` straight to the GPU ``where``, and give its KV pool what is left there.

    Returns what ``config`` came to there, too, and tells how much memory there is, as the CPU's loading does.
    ``device`` and ``kernels`` are the GPU's unless given. Raises ModelFileError, and EngineError where the GPU's
    memory is too small, or it cannot keep keys and values in float8.
    """
    device = device or CudaDevice(where)
    kv_dtype = FLOAT8 if config.kv_dtype == "float8" else None
    if kv_dtype is not None:
        try:
            check_float8(device.torch_device)
        except ValueError as error:
            raise EngineError(f'{error}: set kv_dtype to "auto"') from error
    spec = read_spec(path)
    free, total = device.memory()
    settled = SettledConfig.on_gpu(
        config, free=free - weight_bytes(spec, precision), total=total, vocab_size=spec.vocab_size
    )
    try:
        with device.active():
            files = load_model(path, DevicePlacing(device, precision))
        loaded = sum(tensor.nbytes for tensor in files.weights.values())
        runner = GpuRunner(
            files.spec,
            files.weights,
            block_size=settled.block_size,
            step_tokens=settled.step_tokens,
            max_num_seqs=settled.max_num_seqs,
            kv_bytes=settled.kv_bytes,
            kv_dtype=kv_dtype,
            device=device,
            kernels=kernels,
        )
    except ValueError as error:
        raise EngineError(str(error)) from error
    except RuntimeError as error:
        if not device.is_out_of_memory(error):
            raise
        raise EngineError(
            f"the GPU's memory is too small for {path.name} and a step of {settled.step_tokens} tokens: choose a "
            "smaller model, or lower step_tokens"
        ) from error
    memory = runner.memory
    capacity = Capacity(
        weight_bytes=loaded,
        kv_bytes_per_token=runner.kv_bytes_per_block // runner.block_size,
        block_size=runner.block_size,
        num_blocks=runner.num_blocks,
        max_position=spec.max_position,
        windowed_layers=len(spec.sliding_layers),
    )
    told = f"{capacity.describe()} {memory.describe()}" if memory is not None else capacity.describe()
    told += f" Steps have up to {settled.max_num_seqs:,} requests and {settled.step_tokens:,} tokens."
    _log.info("%s on %s in %s: %s", files.name, where, precision, told)
    return files, runner, settled
