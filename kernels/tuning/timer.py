"""How long an operation takes on a GPU that has none of its operands in its cache."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Protocol

import torch

__all__ = ["GraphTimer", "Timer"]

_L2_BYTES = 64 << 20  # where the device does not say
_REPETITIONS = 20
_WARM_UPS = 3  # the first compiles
_RISING = 0.1  # seconds: an idle GPU's clock takes as long to rise
_HELD_UP = 1_000_000  # cycles, about half a millisecond: a graph is launched in less


class Timer(Protocol):
    """What tells how long a call takes."""

    def seconds(self, call: Callable[[], object]) -> float:
        """The median over some repetitions."""
        ...


class GraphTimer:
    """Replays a CUDA graph of the call, so that no launch waits for the host, and flushes the L2 cache each time.

    It flushes by reading: what was written would have to leave the cache at the expense of the call. Then the
    device is kept busy while the host queues the replay, so that what is measured never waits.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        l2 = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or _L2_BYTES
        self._flushing = torch.zeros(4 * l2 // 8, dtype=torch.int64, device=device)

    def seconds(self, call: Callable[[], object]) -> float:
        """The median of 20 replays, each between two events."""
        # inference_mode as in the engine, whose capture may come before or after in this process
        with torch.cuda.device(self._device), torch.inference_mode():
            aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(_WARM_UPS):
                    call()
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            risen = time.perf_counter() + _RISING
            while time.perf_counter() < risen:
                self._flushing.max()
                graph.replay()
                torch.cuda.synchronize()
            spans = []
            for _ in range(_REPETITIONS):
                begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                self._flushing.max()
                torch.cuda._sleep(_HELD_UP)  # type: ignore[no-untyped-call]
                begin.record()
                graph.replay()
                end.record()
                spans.append((begin, end))
            torch.cuda.synchronize()
            took = [float(begin.elapsed_time(end)) / 1000 for begin, end in spans]
            graph.reset()
        return statistics.median(took)
