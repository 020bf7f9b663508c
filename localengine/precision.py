"""What the numbers of a model's matrices are kept in."""

from __future__ import annotations

from typing import Literal, get_args

__all__ = ["PRECISIONS", "Precision", "PrecisionSetting"]

Precision = Literal["float32", "int8", "bfloat16", "float16"]
"""``float32`` is exact. ``int8``, on a CPU, takes a quarter to a half of the memory and is quicker, but the
answers are not the model's own: `orchestra model info NAME --precision int8 --measure` tells how far they are.
``bfloat16`` and ``float16``, on a GPU, are what models are published in, and take half the memory."""

PrecisionSetting = Precision | Literal["auto"]
"""``auto`` is float32 on a CPU and bfloat16 on a GPU."""

PRECISIONS: tuple[PrecisionSetting, ...] = ("auto", *get_args(Precision))
