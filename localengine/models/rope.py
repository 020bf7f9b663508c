"""How long contexts stretch a rotary embedding: by what each pair's frequency is divided.

Each function returns ``head_dim / 2`` factors for :class:`~orchestra.localengine.models.spec.Rope`.
"""

from __future__ import annotations

import math

__all__ = ["linear_factors", "llama3_factors", "yarn_factors", "yarn_magnitude"]


def linear_factors(head_dim: int, factor: float) -> tuple[float, ...]:
    """Position interpolation (Chen et al., 2023, arXiv 2306.15595): all pairs alike."""
    return (factor,) * (head_dim // 2)


def llama3_factors(
    head_dim: int, theta: float, *, factor: float, low: float, high: float, original: int
) -> tuple[float, ...]:
    """Llama 3.1's (arXiv 2407.21783): pairs by how often they turn within the ``original`` context.

    Below ``low`` turns by the whole factor, above ``high`` not at all, and blended between.
    """
    factors = []
    for i in range(head_dim // 2):
        turns = original * theta ** (-2 * i / head_dim) / (2 * math.pi)
        if turns < low:
            kept = 0.0
        elif turns > high:
            kept = 1.0
        else:
            kept = (turns - low) / (high - low)
        factors.append(1 / ((1 - kept) / factor + kept))
    return tuple(factors)


def yarn_factors(
    head_dim: int,
    theta: float,
    *,
    factor: float,
    original: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> tuple[float, ...]:
    """YaRN (Peng et al., 2023, arXiv 2309.00071): a ramp from pairs that turn often to those that turn seldom.

    A pair that turns more than ``beta_fast`` times within the ``original`` context keeps its frequency; one that
    turns less than ``beta_slow`` times has it divided by ``factor``. With ``truncate`` the ends of the ramp are
    whole pairs.
    """

    def pair(turns: float) -> float:
        """Which pair, as a fraction, turns so often."""
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(beta_fast), pair(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = (min(1.0, max(0.0, (i - low) / (high - low))) for i in range(head_dim // 2))
    return tuple(1 / (stretched / factor + 1 - stretched) for stretched in ramp)


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """What YaRN multiplies sine and cosine by, so that attention stays as sharp over a longer context."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
