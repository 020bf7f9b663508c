"""From arrays on the host to tensors on the device and back, in one copy that nothing waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from orchestra.localengine.gpu.device import Device

__all__ = ["bring_back", "send", "upload"]

_ALIGNMENT = 16  # bytes: kernels that load so many at once compile for pointers that are multiples of it
_TYPES = {numpy.dtype(numpy.int64): torch.int64, numpy.dtype(numpy.int32): torch.int32}
_TYPES[numpy.dtype(numpy.float32)] = torch.float32


def send(device: Device, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Copies of ``arrays`` (int64, int32 or float32) on the device, by their names, in one transfer."""
    places = {}
    size = 0
    for name, array in arrays.items():
        places[name] = size
        size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    pinned = device.pinned(size)
    host = pinned.numpy()
    for name, array in arrays.items():
        own = numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)
        host[places[name] : places[name] + own.size] = own
    there = pinned.to(device.torch_device, non_blocking=True)
    return {
        name: there[places[name] : places[name] + array.nbytes].view(_TYPES[array.dtype]).view(array.shape)
        for name, array in arrays.items()
    }


def upload(device: Device, tensor: Tensor) -> Tensor:
    """A copy of a ``tensor`` on the host, on the device."""
    pinned = device.pinned(tensor.nbytes).view(tensor.dtype).view(tensor.shape)
    return pinned.copy_(tensor).to(device.torch_device, non_blocking=True)


def bring_back(device: Device, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Page-locked memory on the host, into which ``tensors`` are copied: it holds them from the next event on."""
    places = [device.pinned(tensor.nbytes).view(tensor.dtype).view(tensor.shape) for tensor in tensors]
    for place, tensor in zip(places, tensors, strict=True):
        place.copy_(tensor, non_blocking=True)
    return places
