"""What the Triton kernels of attention are told about scores and shapes, on the host."""

from __future__ import annotations

import math

__all__ = ["padded", "score_factors"]

_LOG2_E = math.log2(math.e)
_FEWEST_ROWS = 16  # of a matrix that a tensor core takes


def score_factors(scale: float, softcap: float | None) -> tuple[float, float]:
    """Return ``(inner, outer)``, by which a score becomes a power of two.

    Without a soft-cap that is ``inner * score``. With one it is ``outer * tanh(scale * score / softcap)``, which a
    kernel computes as ``outer - 2 * outer / (exp2(inner * score) + 1)``.
    """
    if softcap is None:
        return scale * _LOG2_E, 0.0
    return 2.0 * scale * _LOG2_E / softcap, softcap * _LOG2_E


def padded(size: int) -> int:
    """Return the next power of two that tensor cores take: 16 or more."""
    return max(_FEWEST_ROWS, 1 << (size - 1).bit_length())
