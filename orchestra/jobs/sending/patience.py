"""How long a job bears faults that are not its lines' own. Pure: the caller brings the clock."""

from __future__ import annotations

__all__ = ["Patience"]


class Patience:
    """After a fault the job pauses and then tries one line; a success ends the pause.

    Each pause is twice the last, from ``first_pause`` to ``longest_pause``, and at least what the provider asked
    for. Faults of calls that were sent before a pause began do not lengthen it. Where there was no success for
    ``limit``, or the pause would pass it, patience has run out. All times are in seconds.
    """

    def __init__(self, *, limit: float = 300.0, first_pause: float = 1.0, longest_pause: float = 30.0) -> None:
        self._limit = limit
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._since: float | None = None
        self._pause = 0.0
        self._until = 0.0

    @property
    def limit(self) -> float:
        """How long to go without a success, in seconds."""
        return self._limit

    @property
    def trying(self) -> bool:
        """Whether the last thing heard was a fault, so that one line is enough to try."""
        return self._since is not None

    def pause(self, now: float) -> float:
        """Return how long to send nothing."""
        return max(0.0, self._until - now) if self.trying else 0.0

    def fault(self, now: float, retry_after: float = 0.0) -> bool:
        """Hear of a fault. Returns whether there is patience left."""
        if self._since is None:
            self._since, self._pause = now, 0.0
        if now >= self._until or self._pause == 0.0:
            self._pause = min(max(self._first_pause, 2 * self._pause), self._longest_pause)
            self._until = now + self._pause
        self._until = max(self._until, now + retry_after)
        return self._until - self._since <= self._limit

    def success(self) -> None:
        """Hear of an answer."""
        self._since = None
        self._until = 0.0
