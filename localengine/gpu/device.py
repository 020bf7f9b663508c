"""What the runner asks of a device beside arithmetic: order, recorded launches, page-locked and free memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Device", "Event"]


class Event(Protocol):
    """A point in the order of a device's work."""

    def wait(self) -> None:
        """Return when the device has come to it. Others may run meanwhile."""
        ...


class Device(Protocol):
    """One device, whose work is done in the order in which it is given.

    All but ``torch_device``, `memory` and `is_out_of_memory` is for use inside `active`, by one thread at a time.
    """

    @property
    def torch_device(self) -> torch.device:
        """Where its tensors are."""
        ...

    def active(self) -> AbstractContextManager[None]:
        """Within it what is launched goes to this device, in order, and no gradients are kept."""
        ...

    def pinned(self, size: int) -> Tensor:
        """``size`` bytes on the host, uint8, which the device copies from and to while the host goes on.

        What was started with it keeps it: it may be dropped at once.
        """
        ...

    def event(self) -> Event:
        """The point after all that was given so far."""
        ...

    def synchronize(self) -> None:
        """Return when all that was given is done."""
        ...

    def graph_pool(self) -> object:
        """Memory that several captures share, of which one is replayed at a time."""
        ...

    def capture(self, compute: Callable[[], None], pool: object) -> Callable[[], None]:
        """Record what ``compute`` launches, without doing it. The result launches it all again, by one call.

        That reads and writes the very memory that was there at the capture. ``compute`` has run before, as what
        it compiles cannot be recorded.
        """
        ...

    def memory(self) -> tuple[int, int]:
        """Bytes that are free, for this process and others, and bytes in all."""
        ...

    def peak(self, compute: Callable[[], None]) -> int:
        """Bytes that ``compute`` has allocated at most, beside what was allocated before."""
        ...

    def release_cache(self) -> None:
        """Give what was freed, and is kept for the next allocation, back to the device."""
        ...

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether ``error`` says that the device has too little memory left."""
        ...
