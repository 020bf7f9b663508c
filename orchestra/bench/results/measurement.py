"""What became of one call."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from orchestra.policies.traffic import TrafficClass

__all__ = ["Ended", "Measurement"]


class Ended(StrEnum):
    """How a call ended. ``UNFINISHED`` had no end yet when nobody waited any longer."""

    ANSWERED = "answered"
    REFUSED = "refused"
    FAILED = "failed"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One call, in seconds from the start of its load.

    Latencies count from ``intended``, when it was to be sent, and not from ``sent``, when it was: a generator or a
    target that falls behind makes calls late, and who is late waits (no coordinated omission; G. Tene, "How NOT to
    Measure Latency", 2013). ``chunks`` are the instants at which output came. ``usd`` is None where nobody knows.
    """

    traffic: TrafficClass
    intended: float
    sent: float
    end: float
    ended: Ended
    chunks: tuple[float, ...] = ()
    prompt_tokens: int = 0
    output_tokens: int = 0
    usd: float | None = None
    reason: str | None = None

    @property
    def ttft(self) -> float | None:
        """Time to first token; None where none came."""
        return self.chunks[0] - self.intended if self.chunks else None

    @property
    def tpot(self) -> float | None:
        """Mean seconds per output token after the first; None with fewer than two."""
        if self.output_tokens < 2 or not self.chunks:
            return None
        return (self.chunks[-1] - self.chunks[0]) / (self.output_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Seconds between one piece of output and the next. A piece may hold several tokens."""
        return [later - earlier for earlier, later in pairwise(self.chunks)]

    @property
    def e2e(self) -> float:
        """End to end: until the last of the answer."""
        return self.end - self.intended

    def output_within(self, start: float, end: float) -> float:
        """Return how many of its output tokens came from ``start`` to ``end``, as if each piece held as many."""
        if not self.chunks:
            return 0.0
        return self.output_tokens * sum(start <= at < end for at in self.chunks) / len(self.chunks)

    def overlap(self, start: float, end: float) -> float:
        """Return for how many of the seconds from ``start`` to ``end`` it waited or was answered."""
        return max(0.0, min(self.end, end) - max(self.intended, start))
