"""The types in which launches are tuned, and how far a result may be from the reference in float64."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from orchestra.kernels.kv_pool import FLOAT8

__all__ = ["FLOAT_TYPES", "KEY_TYPES", "TOLERANCES"]

FLOAT_TYPES: Mapping[str, torch.dtype] = {
    "cuda": torch.bfloat16,
    "cpu": torch.float16,  # the interpreter has no arithmetic of bfloat16
}
KEY_TYPES: Mapping[int, torch.dtype] = {1: FLOAT8, 4: torch.float32}  # by their bytes
TOLERANCES: Mapping[torch.dtype, float] = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 1.6e-2}
