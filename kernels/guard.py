"""Triton launches on the current CUDA device, which need not be the one that holds the tensors."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor

__all__ = ["on_device_of"]


def on_device_of(tensor: Tensor) -> AbstractContextManager[None]:
    """Make the device of ``tensor`` the current one within; for a tensor on the CPU that changes nothing."""
    guard: AbstractContextManager[None] = torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]
    return guard
