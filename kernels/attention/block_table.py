"""What a sequence's blocks may be given as."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

__all__ = ["BlockTable"]

BlockTable = Sequence[int] | NDArray[numpy.int32]
"""Block ids in the order of positions. As ``array("i")`` or int32 in numpy they are copied as they are; in a list,
each is an object of Python's, and planning takes some four times as long."""
