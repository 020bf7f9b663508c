"""Percentiles that are values which were measured: by nearest rank, for what is decided and told by them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeVar

__all__ = ["nearest_rank"]

_Number = TypeVar("_Number", int, float)
_ROUNDING = 1e-9


def nearest_rank(values: Iterable[_Number], share: float) -> _Number:
    """Return the smallest of the values that at least a ``share`` (0 to 1) of them do not exceed.

    Raises ValueError where there is none.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("there is no percentile of nothing")
    return ordered[max(0, math.ceil(share * len(ordered) - _ROUNDING) - 1)]
