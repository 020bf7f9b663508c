"""What the steps of our engine cost, and what that promises for a workload."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["StepTable"]


class StepTable:
    """Measured seconds of a step by its decode rows and its prompt tokens; between those, straight lines."""

    def __init__(self, measured: Iterable[Sequence[float]]) -> None:
        steps = sorted((int(rows), int(tokens), seconds) for rows, tokens, seconds in measured)
        self.decode = [(rows, took) for rows, tokens, took in steps if not tokens]
        self.prefill = [(tokens, took) for rows, tokens, took in steps if not rows]
        self.mixed = [step for step in steps if step[0] and step[1]]

    @property
    def riding(self) -> float:
        """Seconds that one decode row adds to a step that computes a prompt anyway, as a mean over the table."""
        alone = dict(self.prefill)
        added = [(took - alone[tokens]) / rows for rows, tokens, took in self.mixed]
        return max(0.0, sum(added) / len(added))

    def seconds(self, decode_rows: int, prefill_tokens: int) -> float:
        """Return how long a step of that load takes by the table."""
        if not prefill_tokens:
            return _between(self.decode, decode_rows)
        return _between(self.prefill, prefill_tokens) + self.riding * decode_rows

    def promise(self, prompts: Sequence[int], outputs: Sequence[int]) -> float:
        """Return the seconds for a workload that computes all prompts first, packed, and then decodes.

        Each prompt draws its first token, each decode step one for every request that is not at its end. That is
        the least time without decode rows that ride along, and without any cost of scheduling.
        """
        tokens, took = self.prefill[-1]
        decoding = (sum(output > step for output in outputs) for step in range(1, max(outputs)))
        return sum(prompts) * took / tokens + sum(_between(self.decode, rows) for rows in decoding)

    def as_told(self) -> Mapping[str, Any]:
        """Return the table as plain data, in milliseconds."""
        return {
            "decode_ms": {rows: round(1000 * took, 1) for rows, took in self.decode},
            "prefill_ms": {tokens: round(1000 * took, 1) for tokens, took in self.prefill},
            "mixed_ms": {f"{rows}+{tokens}": round(1000 * took, 1) for rows, tokens, took in self.mixed},
        }


def _between(points: Sequence[tuple[int, float]], at: float) -> float:
    """Return the height at ``at`` of the line through the points; the outer pieces go on beyond the ends.

    Below the first point it is that point's height: a step has a fixed cost.
    """
    if at <= points[0][0]:
        return points[0][1]
    stop = min(max(bisect_left([x for x, _ in points], at), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[stop - 1], points[stop]
    return y0 + (y1 - y0) * (at - x0) / (x1 - x0)
