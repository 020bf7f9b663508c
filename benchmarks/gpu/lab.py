"""What a section works with: the device, its ceilings, models' shapes, and how much time is left."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from gpu.figures import Figure, told
from gpu.harness import Job
from gpu.models import MODELS, tiny
from gpu.timing import GraphTimer, HostTimer, Timer
from orchestra.kernels.kv_pool import KvLayout
from orchestra.localengine.models.spec import ModelSpec

__all__ = ["Lab"]


class Lab:
    """``rehearsal``: on a CPU, where Triton interprets kernels. Sections then take tiny shapes, and no figure is a
    measurement.

    ``learn`` is told of ceilings that were measured here.
    """

    def __init__(self, job: Job, learn: Callable[[dict[str, float]], None]) -> None:
        self.rehearsal = job.rehearsal
        self.device = torch.device("cpu" if job.rehearsal else "cuda")
        self.dtype = torch.bfloat16
        self.timer: Timer = HostTimer() if job.rehearsal else GraphTimer()
        self._until = job.until
        self._known = dict(job.known)
        self._learn = learn
        torch.manual_seed(0)

    @property
    def time_left(self) -> float:
        """Seconds within which a section is to end."""
        return self._until - time.time()

    @property
    def free_bytes(self) -> int:
        """Memory of the device that is free, or kept by torch for reuse."""
        if self.device.type != "cuda":
            return 1 << 40  # a rehearsal wants little
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self.device)[0])

    def model(self, name: str) -> ModelSpec:
        """A model's shape; in a rehearsal a tiny one like it."""
        return tiny(MODELS[name]) if self.rehearsal else MODELS[name]

    def random(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normal numbers on the device, in its type."""
        return torch.empty(shape, dtype=self.dtype, device=self.device).normal_(0.0, scale)

    def attempts(self, work: Iterable[tuple[str, Callable[[], Iterable[Figure]]]]) -> Iterator[Figure]:
        """Yield the figures of each piece of ``work``, a name and what measures it.

        One that fails is a figure that says so, and the next has its turn. Where the time is over, none begins.
        """
        for what, measure in work:
            if self.time_left <= 0:
                yield Figure(what=what, note="left out: no time was left")
                continue
            try:
                yield from measure()
            except Exception as error:  # whatever it is, the next has its turn
                yield Figure(what=what, error=told(error))
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def needs(self, what: str, size: int) -> Figure | None:
        """A figure that says so where the device has less than ``size`` bytes free."""
        free = self.free_bytes
        if free >= size:
            return None
        return Figure(what=what, note=f"left out: wants {size / 1e9:.0f} GB, and {free / 1e9:.0f} GB are free")

    def lacks(self, what: str, dtype: torch.dtype) -> Figure | None:
        """A figure that says so where the device cannot compute with keys and values kept in ``dtype``."""
        try:
            KvLayout(kv_heads=1, head_dim=16, block_size=16, dtype=dtype).allocate(1, 1, self.device)
        except ValueError as error:
            return Figure(what=what, note=f"left out: {error}")
        return None

    @property
    def copy_rate(self) -> float:
        """Bytes a second that a large copy within the device reads and writes, both counted."""
        return self._ceiling("copy", self._measure_copy)

    @property
    def matmul_rate(self) -> float:
        """Floating-point operations a second of a large product of matrices, in the device's type."""
        return self._ceiling("matmul", self._measure_matmul)

    def measure_ceilings(self) -> None:
        """Measure both now, where no earlier section has: before memory is taken and steps are recorded."""
        self._ceiling("copy", self._measure_copy)
        self._ceiling("matmul", self._measure_matmul)

    def _ceiling(self, name: str, measure: Callable[[], float]) -> float:
        if name not in self._known:
            self._known[name] = measure()
            self._learn({name: self._known[name]})
        return self._known[name]

    def _measure_copy(self) -> float:
        size = 1 << 16 if self.rehearsal else min(2 << 30, self.free_bytes // 4) // 256 * 256
        source = torch.randint(0, 1 << 31, (size // 4,), dtype=torch.int32, device=self.device)
        target = torch.empty_like(source)
        # the driver's copy, and a kernel that reads and writes as much: whichever is quicker is what can be done
        ways: tuple[Callable[[], object], ...] = (
            lambda: target.copy_(source),
            lambda: torch.bitwise_not(source, out=target),
        )
        return 2 * source.nbytes / min(self.timer.per_call([way] * 4) for way in ways)

    def _measure_matmul(self) -> float:
        side = 64 if self.rehearsal else 8192
        a, b = self.random(side, side), self.random(side, side)  # zeros would be quicker
        out = torch.empty_like(a)
        return 2 * side**3 / self.timer.per_call([lambda: torch.mm(a, b, out=out)] * 4)

    def machine(self) -> dict[str, Any]:
        """Return what the figures were measured on."""
        told_of: dict[str, Any] = {
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": version("triton"),  # unasked: an import decides whether it interprets
        }
        if self.device.type == "cuda":
            its = torch.cuda.get_device_properties(self.device)
            told_of |= {
                "gpu": its.name,
                "capability": f"{its.major}.{its.minor}",
                "multiprocessors": its.multi_processor_count,
                "memory_gb": round(its.total_memory / 1e9, 1),
                "cuda": torch.version.cuda,
            }
        else:
            told_of["gpu"] = "none: a rehearsal on a CPU"
        return told_of
