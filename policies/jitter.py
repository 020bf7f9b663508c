"""How waits are spread, so that callers who failed together do not come back together.

Source: M. Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).
"""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["full_jitter"]


def full_jitter(base: float, cap: float, attempts: int, rand: Callable[[], float]) -> float:
    """Return a random share of a ceiling: ``base`` seconds after the first try, then doubling to ``cap``."""
    return rand() * min(cap, math.ldexp(base, min(attempts - 1, 60)))
