"""How far a job is, and how fast."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from orchestra.durations import format_duration

__all__ = ["Progress", "RateMeter"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a job stands, by its ledger.

    ``whole`` is False while its lines are still coming in, and ``total`` counts those that are in. ``rate`` is in
    lines per second over the last half minute, and ``seconds_left`` what that rate promises; both are None where
    they are not known, as for a job that this process does not run. ``waiting`` says why nothing is sent just
    now, and until when, where faults that are not the lines' own have come.
    """

    total: int
    done: int
    failed: int
    input_tokens: int
    output_tokens: int
    whole: bool
    rate: float | None = None
    seconds_left: float | None = None
    waiting: str | None = None

    @property
    def pending(self) -> int:
        return self.total - self.done - self.failed

    @property
    def ended(self) -> bool:
        """Whether every line has an end."""
        return self.whole and not self.pending

    def __str__(self) -> str:
        if not self.whole and not self.total:
            return "reading the requests"
        text = f"{self.done + self.failed} of {self.total} lines{'' if self.whole else ' read so far'}"
        if self.failed:
            text += f", {self.failed} failed"
        if self.rate is not None:
            text += f", {self.rate:.1f} lines/s"
        if self.seconds_left is not None and self.pending:
            text += f", about {format_duration(self.seconds_left)} left"
        return text


class RateMeter:
    """The rate of events over the last ``window`` seconds. Pure: the caller brings the clock."""

    def __init__(self, started: float, *, window: float = 30.0) -> None:
        self._window = window
        self._marks: deque[tuple[float, int]] = deque([(started, 0)])

    def add(self, now: float, count: int) -> None:
        """Count ``count`` more events."""
        last, total = self._marks[-1]
        # marks closer than this would only fill memory
        if len(self._marks) > 1 and now - last < self._window / 100:
            self._marks[-1] = (last, total + count)
        else:
            self._marks.append((now, total + count))
        self._forget(now)

    def rate(self, now: float) -> float | None:
        """Return events per second, or None where there was none yet."""
        self._forget(now)
        began, before = self._marks[0]
        total = self._marks[-1][1]
        return (total - before) / (now - began) if total > before and now > began else None

    def _forget(self, now: float) -> None:
        while len(self._marks) > 2 and self._marks[1][0] <= now - self._window:
            self._marks.popleft()
