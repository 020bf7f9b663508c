"""A GPU by torch's CUDA interface, which is ROCm's too."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["CudaDevice"]

# One capture at a time in a process, and no memory is given back during one: other engines may be on the same GPU.
_capturing = threading.RLock()
_TOO_LITTLE = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED")


class _CudaEvent:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(stream)

    def wait(self) -> None:
        self._event.synchronize()  # without the interpreter's lock


class CudaDevice:
    """Implements :class:`~orchestra.localengine.gpu.device.Device` on a stream of its own.

    So it is in no order with what the application launches on the same GPU.
    """

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        # what is there already, weights perhaps, may still be under way
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    @property
    def torch_device(self) -> torch.device:
        return self._device

    @contextmanager
    def active(self) -> Iterator[None]:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream), torch.inference_mode():
            yield

    def pinned(self, size: int) -> Tensor:
        # torch keeps page-locked memory for the next one, and gives it out only when the copies from it are done
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def event(self) -> _CudaEvent:
        return _CudaEvent(self._stream)

    def synchronize(self) -> None:
        self._stream.synchronize()

    def graph_pool(self) -> object:
        return torch.cuda.graph_pool_handle()

    def capture(self, compute: Callable[[], None], pool: object) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        # what other threads of the application do with the GPU meanwhile does not break a thread's own capture
        alone = torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local")  # type: ignore[arg-type]
        with _capturing, _no_collection(), alone:
            compute()
        return graph.replay

    def memory(self) -> tuple[int, int]:
        free, total = torch.cuda.mem_get_info(self._device)
        return free, total

    def peak(self, compute: Callable[[], None]) -> int:
        self.synchronize()
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        compute()
        self.synchronize()
        return torch.cuda.max_memory_allocated(self._device) - before

    def release_cache(self) -> None:
        with _capturing:
            self.synchronize()
            torch.cuda.empty_cache()

    def is_out_of_memory(self, error: BaseException) -> bool:
        # what failed for want of memory may have failed once more on its way out, as the end of a capture does
        told: BaseException | None = error
        while told is not None:
            if _says_so(told):
                return True
            told = told.__context__
        return False


def _says_so(error: BaseException) -> bool:
    # cuBLAS, Triton and the allocator of page-locked memory have their own ways to say so
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _TOO_LITTLE)
    )


@contextmanager
def _no_collection() -> Iterator[None]:
    """Within, no page-locked memory is found to be garbage: what tells when it is free would go into the graph.

    torch records an event for that on the streams that the memory was used on, and to ask for it later fails
    where such a stream was being captured.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
