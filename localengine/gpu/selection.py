"""Which device an engine runs on, and in what precision: what was asked for, held against what there is."""

from __future__ import annotations

from dataclasses import dataclass

from orchestra.localengine.config import EngineConfig
from orchestra.localengine.errors import EngineError
from orchestra.localengine.precision import Precision

__all__ = ["Machine", "settle", "this_machine"]

_ON_CPU = 'or set device to "cpu"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """``gpus``: the fault of each that torch sees, None where it has none. ``triton``: whether that is there."""

    gpus: tuple[str | None, ...] = ()
    triton: bool = False


def settle(config: EngineConfig, machine: Machine) -> tuple[str, Precision]:
    """The device, ``cpu`` or ``cuda:N``, and the precision that ``config`` comes to on ``machine``.

    Raises EngineError, with the remedy, where they do not go together.
    """
    precision, needs_cpu = config.precision, _needs_cpu(config)
    if config.device == "cpu" or (config.device == "auto" and (needs_cpu or not _usable(machine))):
        if needs_gpu := _needs_gpu(config):
            setting, remedy = needs_gpu
            if config.device == "cpu":
                why = ""
            else:
                why = f", and {needs_cpu} for CPUs" if needs_cpu else f": {_fault(machine, None)}"
            raise EngineError(f"{setting} is for GPUs{why}; set it to {remedy}")
        return "cpu", "float32" if precision == "auto" else precision
    if needs_cpu:
        raise EngineError(f"{needs_cpu} is for CPUs: leave it out, {_ON_CPU}")
    index = int(config.device[len("cuda:") :]) if ":" in config.device else None
    if fault := _fault(machine, index):
        raise EngineError(f"device is {config.device!r}, and {fault}, {_ON_CPU}")
    number = _usable(machine)[0] if index is None else index
    return f"cuda:{number}", "bfloat16" if precision == "auto" else precision


def this_machine() -> Machine:
    """What torch sees here."""
    import importlib.util

    import torch

    from orchestra.kernels.launch import arch_of

    def fault_of(index: int) -> str | None:
        try:
            arch_of(torch.device("cuda", index))
        except ValueError as error:
            return str(error)
        return None

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return Machine(gpus=tuple(map(fault_of, range(count))), triton=importlib.util.find_spec("triton") is not None)


def _needs_cpu(config: EngineConfig) -> str | None:
    if config.precision == "int8":
        return 'precision "int8"'
    return "strict" if config.strict else None


def _needs_gpu(config: EngineConfig) -> tuple[str, str] | None:
    """What of it a CPU has not, and what to set it to there."""
    if config.precision in ("bfloat16", "float16"):
        return f"precision {config.precision!r}", '"auto" or "float32"'
    return (f"kv_dtype {config.kv_dtype!r}", '"auto"') if config.kv_dtype == "float8" else None


def _usable(machine: Machine) -> list[int]:
    return [i for i, fault in enumerate(machine.gpus) if fault is None] if machine.triton else []


def _fault(machine: Machine, index: int | None) -> str | None:
    """Why the GPU, or any, cannot be used, and what helps; None where it can."""
    if not machine.gpus:
        return "torch sees no GPU: install a torch that is built for yours"
    if index is not None and index >= len(machine.gpus):
        return f"there are {len(machine.gpus)} GPUs here: name another"
    if not machine.triton:
        return "its kernels need Triton: pip install 'triton>=3.9,<3.10'"
    if index is not None:
        return machine.gpus[index]
    return None if _usable(machine) else machine.gpus[0]
