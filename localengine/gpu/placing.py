"""A model's tensors from their files straight to a device, in pieces: never two copies on the host."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from orchestra.localengine.gpu.device import Device, Event
from orchestra.localengine.models.capacity import human, weight_bytes
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.precision import Precision

__all__ = ["DevicePlacing"]

_PIECE_BYTES = 32 << 20  # of page-locked memory, of which two pieces are filled and sent in turn


class DevicePlacing:
    """Keeps weights on ``device`` in ``precision``, norms in float32. The device is active while it is used.

    Implements :class:`~orchestra.localengine.weights.files.Placing`.
    """

    def __init__(self, device: Device, precision: Precision, *, piece_bytes: int = _PIECE_BYTES) -> None:
        self._device = device
        self._precision = precision
        self._dtype: torch.dtype = getattr(torch, precision)
        self._piece_bytes = piece_bytes
        self._under_way: deque[Event] = deque()
        self._ranges: dict[str, Tensor] = {}  # the least and the largest number of each tensor, on the device

    def check_memory(self, spec: ModelSpec) -> None:
        """Raise ValueError where the weights do not fit into the device's free memory."""
        needed, (free, _) = weight_bytes(spec, self._precision), self._device.memory()
        if needed > free:
            raise ValueError(
                f"its weights take {human(needed)} of the GPU's memory and {human(free)} are free; choose a "
                "smaller model"
            )

    def place(self, name: str, tensor: Tensor) -> Tensor:
        """A copy of a float ``tensor`` on the device. It may lie in a mapped file: it is read once, in order."""
        # every vector but a bias is the weight of a norm
        dtype = torch.float32 if tensor.dim() == 1 and name.endswith(".weight") else self._dtype
        there = torch.empty(tensor.shape, dtype=dtype, device=self._device.torch_device)
        source, target = tensor.reshape(-1), there.view(-1)
        size = max(1, self._piece_bytes // source.itemsize)
        for start in range(0, len(source), size):
            part = source[start : start + size]
            while len(self._under_way) > 1:
                self._under_way.popleft().wait()
            pinned = self._device.pinned(part.nbytes).view(part.dtype)
            pinned.copy_(part)
            # rounded on the device, which takes it no time
            target[start : start + size] = pinned.to(self._device.torch_device, non_blocking=True)
            self._under_way.append(self._device.event())
        if len(source):
            self._ranges[name] = torch.stack(torch.aminmax(there)).to(torch.float32)
        return there

    def check_numbers(self) -> None:
        """Wait for all, and raise ValueError where a tensor holds a number that is not finite."""
        if not self._ranges:
            return
        finite = torch.stack(list(self._ranges.values())).isfinite().all(dim=1).cpu()
        for name, is_finite in zip(self._ranges, finite.tolist(), strict=True):
            if not is_finite:
                raise ValueError(f"tensor {name!r} holds numbers that are not finite in {self._precision}")
        self._ranges.clear()
