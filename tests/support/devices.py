"""Where tests run a model: on the CPU, on a stand-in for a GPU, or on a GPU. `pytest --device` says which.

``lab`` is the GPU's runner over `gpu_lab.FakeDevice`, whose kernels are plain functions; ``cuda`` is the same
runner with Triton's kernels on a real device. Both compute in float32, so that what is true of the CPU is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from unittest.mock import patch

if TYPE_CHECKING:
    from torch import Tensor

    from orchestra.localengine import EngineConfig
    from orchestra.localengine.execution.runner import Runner
    from orchestra.localengine.gpu.runner import GpuRunner
    from orchestra.localengine.models.spec import ModelSpec
    from orchestra.localengine.precision import Precision

Where = Literal["cpu", "lab", "cuda"]
_now: list[Where] = ["cpu"]  # the last one counts


def device_now() -> Where:
    """Where a model runs at present."""
    return _now[-1]


@contextmanager
def running_on(device: Where) -> Iterator[None]:
    """Within, models run on ``device``."""
    _now.append(device)
    try:
        yield
    finally:
        _now.pop()


def model_runner(
    spec: ModelSpec,
    weights: dict[str, Tensor],
    *,
    num_blocks: int,
    block_size: int,
    step_tokens: int = 512,
    max_num_seqs: int = 8,
    threads: int | None = None,
    precision: Precision = "float32",
    strict: bool = False,
) -> Runner | GpuRunner:
    """A runner of a model on the device of the hour. It takes ``weights`` over, which are on the host."""
    if device_now() == "cpu":
        from orchestra.localengine.execution.runner import Runner

        return Runner(
            spec,
            weights,
            num_blocks=num_blocks,
            block_size=block_size,
            threads=threads,
            precision=precision,
            strict=strict,
        )
    from orchestra.localengine.gpu import runner as gpu_runner

    assert precision == "float32", "int8 is for CPUs: the test is cpu_only"
    assert not strict, "strict is for CPUs: the test is cpu_only"
    own, given = _parts()
    there = {name: own(weights.pop(name)) for name in list(weights)}
    with patch.object(gpu_runner, "warm_up", lambda *args, **kwargs: None):  # which has tests of its own
        return gpu_runner.GpuRunner(
            spec,
            there,
            block_size=block_size,
            step_tokens=step_tokens,
            max_num_seqs=max_num_seqs,
            num_blocks=num_blocks,
            **given,
        )


def contents(runner: Any) -> list[Tensor]:
    """What is in the KV pool of each layer, on the host."""
    if hasattr(runner, "_pools"):
        return list(runner._pools)
    with runner._device.active():
        return [layer.cpu() for layer in runner._pool.layers]


def poison(runner: Any, blocks: Iterable[int] | None = None) -> None:
    """Fill ``blocks`` of the KV pool with NaN, or all of them."""
    if hasattr(runner, "_pools"):
        runner._pools[:, slice(None) if blocks is None else list(blocks)] = float("nan")
        return
    with runner._device.active():
        for layer in runner._pool.layers:
            for block in range(len(layer)) if blocks is None else blocks:
                layer[block].fill_(float("nan"))


def begins_by(runner: Any) -> str:
    """The method by which an engine has ``runner`` begin a step."""
    return "submit" if hasattr(runner, "submit") else "run"


def here(config: EngineConfig) -> EngineConfig:
    """``config`` for an engine on the device of the hour, in float32."""
    return replace(config, device="cpu" if device_now() == "cpu" else "cuda", precision="float32")


@contextmanager
def a_gpu_is_found() -> Iterator[None]:
    """Within, models of files are opened on the device of the hour, too, with settings that are from `here`."""
    if device_now() != "lab":
        yield
        return
    from orchestra.localengine.gpu import loading, runner, selection

    _, given = _parts()
    machine = selection.Machine(gpus=(None,), triton=True)
    with (
        patch.object(selection, "this_machine", lambda: machine),
        patch.object(loading, "load_on_gpu", partial(loading.load_on_gpu, **given)),
        patch.object(runner, "warm_up", lambda *args, **kwargs: None),
    ):
        yield


def _parts() -> tuple[Any, dict[str, Any]]:
    """How a tensor gets to the device, and the runner's arguments for it."""
    if device_now() == "cuda":
        return lambda tensor: tensor.to("cuda"), {}
    from gpu_lab import FakeDevice, OnDevice, fake_kernels

    device = FakeDevice()
    return lambda tensor: OnDevice(tensor.clone()), {"device": device, "kernels": fake_kernels(device)}
