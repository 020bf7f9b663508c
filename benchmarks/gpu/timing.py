"""How long operations take on a device: captured into a CUDA graph and replayed, between two events.

Within a graph nothing waits for the host, as in a decode step of the engine. Memory that an operation reads is to
be out of the L2 cache: `cold_copies` says how many copies of its operands take turns for that. So each use flushes
the cache for the next, nothing else runs in between, and nothing has to be taken off the result.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

__all__ = ["GraphTimer", "HostTimer", "Timer", "cold_copies"]

_WARM_UP = 0.05  # seconds: an idle GPU's clock takes as long to rise
_REPLAYS = (5, 25)  # least and most
_SECONDS = 0.3  # of replays, once there are the least
_COPIES = 512
_L2_BYTES = 64 << 20  # where the device does not say
_HELD_UP = 2_000_000  # cycles, about a millisecond: a graph is launched in less


class Timer(Protocol):
    """Measures operations, as they are on one kind of device."""

    def per_call(self, calls: Sequence[Callable[[], object]]) -> float:
        """Seconds of one of ``calls``, which follow one another: the median over repetitions of all."""
        ...


class GraphTimer:
    """Of a CUDA GPU."""

    @torch.inference_mode()  # as the engine does: what its captures make, one outside that mode could not change
    def per_call(self, calls: Sequence[Callable[[], object]]) -> float:
        """See `Timer`. The device is kept busy while the host launches, so that no launch is part of the time."""
        current, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            for call in calls:  # compiles, and makes what libraries make at their first call
                call()
        current.wait_stream(aside)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        try:
            return self._replayed(graph) / len(calls)
        finally:
            torch.cuda.synchronize()
            graph.reset()

    def _replayed(self, graph: torch.cuda.CUDAGraph) -> float:
        warm = time.perf_counter() + _WARM_UP
        while True:
            graph.replay()
            torch.cuda.synchronize()
            if time.perf_counter() > warm:
                break
        least, most = _REPLAYS
        took: list[float] = []
        stop = time.perf_counter() + _SECONDS
        while len(took) < least or (len(took) < most and time.perf_counter() < stop):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(_HELD_UP)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            took.append(begin.elapsed_time(end) / 1000)
        return statistics.median(took)


class HostTimer:
    """Of a CPU, for rehearsals: each call once."""

    def per_call(self, calls: Sequence[Callable[[], object]]) -> float:
        began = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - began) / len(calls)


def cold_copies(size: int, device: torch.device) -> int:
    """How many copies of ``size`` bytes take turns: four times the L2 cache lies between two uses of one."""
    if device.type != "cuda":
        return 2
    cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or _L2_BYTES
    return 1 if size >= 4 * cache else min(_COPIES, -(-4 * cache // size) + 1)
