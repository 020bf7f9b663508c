"""Where bulk lines go: into a batch, at half the price and whenever the provider gets to it, or out at once.

A line with a deadline has time to give away. Given a whole batch window, it goes to a batch even while the
synchronous way is idle. Given less, it goes there only if a batch is seen to be back in good time, and if the
synchronous way could still answer it otherwise: a line in a batch is **insured** by the synchronous time that is
kept for it at the end (`escalation` says when that has come). What can be insured is limited, so a job may be
split: what is above goes out synchronously meanwhile.

A line without a deadline is sent synchronously: nobody said that its answer may come tomorrow.

All times are seconds on the caller's clock. Instants may be on any one clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestra.policies.rank import nearest_rank

__all__ = ["BatchOutlet", "Choice", "Durations", "SyncPace", "choose"]

DAY = 86_400.0

DURATION_MARGIN = 1.25
"""A batch counts as back in time with a quarter to spare over the p90. One in ten takes longer than that, and how
batches went lately is a guess at how they go now; the insurance covers the rest, at the whole price."""
_STAYING_MARGIN = 1.0
"""Where lines went to a batch last time they go on doing so up to here: a p90 that moves a little turns nobody."""
SYNC_MARGIN = 1.5
"""The synchronous way gets half as much time again as its pace asks for: interactive calls come between, some are
tried twice, and what is late here has nowhere else to go."""
_GRACE = 0.05
"""A window counts as given while no more than this share of it is gone: a day that was promised is not a whole day
any more once lines were read, checked and grouped."""
_WORTH = 0.1
"""A batch of less than this share of what waits is not worth its own upload and its polls."""
_UNMEASURED = 1.0
"""Lines a second where nothing is known: eight at a time, each some ten seconds. It is known soon after."""
_KEPT = 50
_PERCENTILE = 0.9


@dataclass(frozen=True, slots=True)
class BatchOutlet:
    """A route's batch endpoint, as the choice sees it.

    ``name`` is that of the route, ``price_factor`` what a token costs there of its ordinary price. ``windows`` are
    those that can be asked for. ``hard_expiry``: after so long a batch has ended, whatever happens; None where
    nobody says so. ``keeps_finished``: what was answered before it was cancelled or expired can be read.
    ``cancelling`` is how long a cancelled batch takes to end at most. ``observed`` is the p90 of how long batches
    took, from the first line's arrival to the results read; ``expected`` what the settings say until some were
    seen. ``room`` is how many more lines it takes just now; None where any number.
    """

    name: str
    price_factor: float = 0.5
    windows: tuple[float, ...] = (DAY,)
    hard_expiry: float | None = DAY
    keeps_finished: bool = True
    cancelling: float = 600.0
    observed: float | None = None
    expected: float | None = None
    room: int | None = None

    @property
    def duration(self) -> float | None:
        """How long a batch is thought to take; None where nobody has an idea."""
        return self.expected if self.observed is None else self.observed

    @property
    def settling(self) -> float:
        """The seconds to leave for a cancelled batch to end: none where nothing of it could be read anyhow."""
        return self.cancelling if self.keeps_finished else 0.0


@dataclass(frozen=True, slots=True)
class SyncPace:
    """How fast the synchronous way answers bulk lines.

    ``lines_per_second`` is what bulk gets, measured, or what the configured limits leave it; None is unknown, and
    a slow pace is assumed. ``answer_seconds`` is how long a slow line takes from its sending to its answer.
    """

    lines_per_second: float | None = None
    answer_seconds: float = 10.0

    @property
    def rate(self) -> float:
        return _UNMEASURED if self.lines_per_second is None else self.lines_per_second

    def seconds(self, lines: int) -> float:
        """Return how long so many lines take, with the margin; infinity where bulk gets nothing."""
        if lines <= 0:
            return 0.0
        return SYNC_MARGIN * (self.answer_seconds + lines / self.rate) if self.rate > 0 else math.inf

    def lines_in(self, seconds: float) -> int:
        """Return how many lines can be answered in that time, with the margin."""
        return max(0, math.floor((seconds / SYNC_MARGIN - self.answer_seconds) * self.rate))


@dataclass(frozen=True, slots=True)
class Choice:
    """``lines`` of those that wait go into a batch of ``outlet`` with that ``window``; the rest go synchronously.

    ``outlet`` is None where all do. ``why`` says it in a few words, for reports.
    """

    why: str
    outlet: BatchOutlet | None = None
    lines: int = 0
    window: float = DAY


def choose(
    deadline: float | None,
    now: float,
    batches: Sequence[BatchOutlet],
    pace: SyncPace,
    lines_waiting: int,
    *,
    riding: int = 0,
    last: Choice | None = None,
) -> Choice:
    """Decide where lines that wait for the same ``deadline`` go.

    ``batches`` are the outlets open to them, in order of preference. ``riding`` counts the lines in open batches
    that the synchronous way may still have to answer by about the same deadline. ``last`` is the choice before
    for such lines: it holds until the numbers clearly say otherwise.

    - No deadline: synchronously.
    - Time for an outlet's window (its shortest): into the batch, all of them.
    - Less: as many as are back in time by what was observed, or else expected, with the margin, and can be
      insured: after cancelling the batch and waiting for that to settle, the synchronous way still answers them.
    - More than the synchronous way could answer by the deadline if it did nothing else: what is above goes to a
      batch that is thought to be back in time, uninsured, where one that is given up keeps what it finished.

    Of several outlets the one that saves most, which is the cheapest where all take as much; then the first.
    """
    if deadline is None:
        return Choice("no deadline: nobody gave time away")
    left = deadline - now
    if left <= 0 or lines_waiting <= 0:
        return Choice("no time left" if left <= 0 else "nothing waits")
    best = Choice("no batch would be back in time")
    for outlet in batches:
        stays = last is not None and last.outlet is not None and last.outlet.name == outlet.name
        lines, why = _share(outlet, left, pace, lines_waiting, riding, stays)
        lines = lines if outlet.room is None else min(lines, outlet.room)
        if lines and (best.outlet is None or _saved(lines, outlet) > _saved(best.lines, best.outlet)):
            best = Choice(why, outlet, lines, _window(outlet))
    return best


class Durations:
    """How long an outlet's batches took lately: the last fifty."""

    __slots__ = ("_seen",)

    def __init__(self, seen: Iterable[float] = ()) -> None:
        self._seen: deque[float] = deque(seen, maxlen=_KEPT)

    def observe(self, seconds: float) -> None:
        """Count a batch that ended after so long with its lines answered. One that was given up tells nothing."""
        self._seen.append(seconds)

    def p90(self, open_for: Iterable[float] = ()) -> float | None:
        """Return the time in which nine of ten were back; None while none was.

        ``open_for`` are the ages of the batches that are open. One that is older than nine of ten lived counts as
        if it ended now: where all are stuck, this is how it shows before they end.
        """
        if not self._seen:
            return None
        usual = nearest_rank(self._seen, _PERCENTILE)
        return nearest_rank([*self._seen, *(age for age in open_for if age > usual)], _PERCENTILE)


def _share(
    outlet: BatchOutlet, left: float, pace: SyncPace, waiting: int, riding: int, stays: bool
) -> tuple[int, str]:
    """Return how many lines the outlet gets, and why."""
    duration = outlet.duration
    if left >= min(outlet.windows) * (1 - _GRACE) and (duration is None or duration <= left):
        return waiting, "there is time for its window"
    if duration is None:
        return 0, ""
    margin = _STAYING_MARGIN if stays else DURATION_MARGIN
    insurable = pace.lines_in(left - margin * duration - outlet.settling) - riding
    lines = min(waiting, max(0, insurable))
    why = "batches are seen to be back in time" if outlet.observed is not None else "batches are expected in time"
    if outlet.keeps_finished and duration <= left:
        beyond = waiting - pace.lines_in(left)
        if beyond > lines:
            return beyond, "more lines than can be answered synchronously in time"
    return (lines, why) if lines >= _WORTH * waiting else (0, "")


def _window(outlet: BatchOutlet) -> float:
    """Return the window to ask for: the shortest in which batches are seen to end.

    A window is when a batch expires, so it should not be shorter than that. All cost the same, so a longer one
    only allows the provider to take longer.
    """
    wanted = DURATION_MARGIN * (outlet.duration or 0.0)
    windows = sorted(outlet.windows)
    return next((window for window in windows if window >= wanted), windows[-1])


def _saved(lines: int, outlet: BatchOutlet) -> float:
    return lines * (1 - outlet.price_factor)
