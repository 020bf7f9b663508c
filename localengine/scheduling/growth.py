"""How far running sequences will still grow, so that admission leaves them the blocks for it.

Reserving every request's ``max_tokens`` never displaces anybody, and leaves most of the pool unused where outputs
end early; reserving nothing displaces again and again. So the length of outputs is learned, by class, as the share
of ``max_tokens`` that they came to, and admission asks for the most blocks that the running ones will hold at once
if they end as expected (the two ideas are tokasaurus' stopping predictor and its simulated block use).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from orchestra.localengine.scheduling.sequence import Sequence
from orchestra.policies.traffic import TrafficClass

__all__ = ["GrowthModel", "peak_blocks"]

_WEIGHT = 0.1  # of the latest output: some twenty are remembered


class GrowthModel:
    """How long outputs of each class turn out. Knows nothing at first, and expects nothing then."""

    def __init__(self) -> None:
        self._mean: dict[TrafficClass, float] = {}
        self._square: dict[TrafficClass, float] = {}

    def observe(self, seq: Sequence) -> None:
        """Learn from a sequence that has ended by itself."""
        share = min(1.0, seq.num_output / seq.max_tokens)
        for moments, value in ((self._mean, share), (self._square, share * share)):
            known = moments.get(seq.traffic, value)
            moments[seq.traffic] = known + _WEIGHT * (value - known)

    def remaining(self, seq: Sequence) -> int:
        """Tokens that ``seq`` is still expected to draw: those of a long output, one deviation above the mean.

        1 where it is longer than that already, or nothing is known.
        """
        mean = self._mean.get(seq.traffic)
        if mean is None:
            return 1
        deviation = math.sqrt(max(0.0, self._square[seq.traffic] - mean * mean))
        expected = math.ceil(min(1.0, mean + deviation) * seq.max_tokens)
        return max(1, expected - seq.num_output)


def peak_blocks(growing: Iterable[tuple[int, int]], block_size: int) -> int:
    """The most blocks that sequences hold at once, given the length of each and the tokens that it has to go.

    Each draws one token a step, and gives its blocks back when it ends. Never below what they hold at first, or
    above what they would hold if all came to their ends together; else above the truth by less than a block each.
    """
    by_end = sorted(growing, key=lambda one: one[1], reverse=True)
    peak = sum(-(-length // block_size) for length, _ in by_end)
    most = sum(-(-(length + left) // block_size) for length, left in by_end)
    total = 0
    for count, (length, left) in enumerate(by_end, 1):  # the instant at which the count-th longest ends
        total += length
        peak = max(peak, (total + count * left + count * (block_size - 1)) // block_size)
    return min(peak, most)
