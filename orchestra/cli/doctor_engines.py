"""Whether the engines of the settings would start: the file of the model, the device, the KV cache."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestra.cli.finding import Finding

if TYPE_CHECKING:
    from orchestra.config import Config, LocalConfig
    from orchestra.localengine import EngineConfig
    from orchestra.localengine.models.spec import ModelSpec

__all__ = ["check_engines"]


def check_engines(config: Config) -> Iterator[Finding]:
    """Yield what is amiss with each ``[local.NAME]`` whose model is there. Only headers of files are read."""
    from orchestra.errors import LocalEngineError
    from orchestra.local_route.route import engine_config
    from orchestra.localengine.errors import EngineError, ModelFileError
    from orchestra.localengine.weights.opening import read_spec
    from orchestra.localengine.weights.registry import resolve

    if importlib.util.find_spec("torch") is None:
        return  # told among the packages
    for name, local in config.local.items():
        place = f"[local.{name}]"
        try:
            path = resolve(local.weights)
        except ModelFileError:
            continue  # told among the models
        try:
            spec = read_spec(path)
        except ModelFileError as error:
            yield Finding(f"engine {name}", "fail", str(error), f"name another file as weights in {place}")
            continue
        except ImportError:
            return  # a package that reads models is missing: told among the packages
        try:
            settled = _settle(spec, local, engine_config(local, config.traffic))
        except (LocalEngineError, EngineError, ValueError) as error:
            yield Finding(f"engine {name}", "fail", str(error), f"change that in {place}")
        else:
            yield Finding(f"engine {name}", "ok", settled)


def _settle(spec: ModelSpec, local: LocalConfig, engine: EngineConfig) -> str:
    """Return where an engine would run. Raises EngineError, or ValueError, where it could not."""
    import torch

    from orchestra.localengine.gpu.selection import settle, this_machine
    from orchestra.localengine.models.capacity import human, kv_bytes_per_token, plan_capacity, weight_bytes

    device, precision = settle(engine, this_machine())
    if local.kv_bytes is not None:
        if device == "cpu":
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            plan_capacity(spec, block_size=engine.block_size, kv_bytes=local.kv_bytes, precision=precision)
        else:
            memory = torch.cuda.get_device_properties(torch.device(device)).total_memory
            kept = None if engine.kv_dtype == "auto" else engine.kv_dtype
            if local.kv_bytes < kv_bytes_per_token(spec, precision, kept) * engine.block_size:
                raise ValueError(f"a KV cache of {human(local.kv_bytes)} holds no block: raise kv_bytes")
        weights = weight_bytes(spec, precision)
        if weights + local.kv_bytes > memory:
            raise ValueError(
                f"weights of {human(weights)} and a KV cache of {human(local.kv_bytes)} are more than the memory, "
                f"{human(memory)}: lower kv_bytes"
            )
    return f"{device}, {precision}"
