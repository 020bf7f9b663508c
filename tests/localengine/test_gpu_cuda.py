"""What of CUDA's ways can be seen without a GPU: its errors, and that nothing disturbs a capture."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from orchestra.localengine.gpu import cuda
from orchestra.localengine.gpu.cuda import CudaDevice


@pytest.fixture
def device() -> CudaDevice:
    made = object.__new__(CudaDevice)
    made._stream = cast(Any, SimpleNamespace(synchronize=lambda: None))
    return made


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    ],
)
def test_too_little_memory_has_many_names(device: CudaDevice, error: Exception) -> None:
    assert device.is_out_of_memory(error)
    end = RuntimeError("CUDA error: operation failed due to a previous error during capture")
    end.__context__ = error  # as it has where leaving a capture fails, too
    assert device.is_out_of_memory(end)
    assert not device.is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not device.is_out_of_memory(ValueError("out of memory"))


def others_must_wait() -> bool:
    """Whether another thread can neither capture nor give memory back now."""
    got: list[bool] = []

    def tries() -> None:
        got.append(cuda._capturing.acquire(blocking=False))
        if got[0]:
            cuda._capturing.release()

    thread = threading.Thread(target=tries)
    thread.start()
    thread.join()
    return not got[0]


def test_nothing_is_freed_during_a_capture(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool, bool]] = []

    def see(what: str) -> None:
        seen.append((what, others_must_wait(), gc.isenabled()))

    @contextmanager
    def graph(*args: Any, **kwargs: Any) -> Iterator[None]:
        see("begin")
        yield
        see("end")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: see("replay")))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: see("release"))
    replay = device.capture(lambda: see("compute"), None)
    replay()
    device.release_cache()
    assert seen == [
        ("begin", True, False),
        ("compute", True, False),
        ("end", True, False),
        ("replay", False, True),
        ("release", True, True),
    ]

    def fails() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        device.capture(fails, None)
    assert gc.isenabled()
    assert not others_must_wait()
