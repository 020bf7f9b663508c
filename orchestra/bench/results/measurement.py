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
    Measure Latency", 2013). ``chunks`` are the instants at which output came. Of
    ``prompt_tokens`` the target had ``cached_tokens`` already; of ``output_tokens`` it showed all but
    ``hidden_tokens``, of a reasoning that it keeps to itself. ``usd`` is None where nobody knows.
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
    cached_tokens: int = 0
    hidden_tokens: int = 0

    @property
    def ttft(self) -> float | None:
        """Time to first token; None where none came."""
        return self.chunks[0] - self.intended if self.chunks else None

    @property
    def tpot(self) -> float | None:
        """Mean seconds per output token that was shown after the first piece, as if each piece held as many.

        None where that is not known: with fewer than two tokens or pieces.
        """
        pieces = len(self.chunks)
        if self.shown_tokens < 2 or pieces < 2:
            return None
        return (self.chunks[-1] - self.chunks[0]) / (self.shown_tokens * (pieces - 1) / pieces)

    @property
    def shown_tokens(self) -> int:
        return max(0, self.output_tokens - self.hidden_tokens)

    @property
    def came_at_once(self) -> bool:
        """Whether several tokens came as one piece, as through a proxy that buffers: their TPOT is not known."""
        return len(self.chunks) == 1 and self.shown_tokens > 1

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
