"""What the numbers of a model's matrices are kept in."""

from __future__ import annotations

from typing import Literal, get_args

__all__ = ["PRECISIONS", "Precision"]

Precision = Literal["float32", "int8"]
"""``float32`` is exact. ``int8`` takes a quarter to a half of the memory and is quicker, but the answers are not
the model's own: `orchestra model info NAME --precision int8 --measure` tells how far they are from them."""

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
