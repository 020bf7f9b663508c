"""How the two traffic classes share a limit: what bulk leaves alone, and what bulk is owed."""

from __future__ import annotations

import math
from typing import Literal

__all__ = ["BulkMinShare", "Reserve"]

_START = 0.15
_MOST = 0.5
_MARGIN = 1.25
_HALF_LIFE = 600.0
_SLACK_SECONDS = 1e-6


class Reserve:
    """The share of a limit's capacity that bulk leaves to interactive calls, as a standing headroom.

    ``"auto"`` starts at 0.15 and follows the deepest recent interactive burst with a quarter to spare: it grows
    at once, halves in ten quiet minutes, and stays between ``least`` and 0.5. A number is a fixed share.

    A limit that refills loses nothing by a standing headroom: bulk still gets the whole refill while interactive
    is quiet. Slots left free are work not done, so there ``least`` should be 0.

    ``level`` is the `share` that an earlier one had come to, which this one goes on from.
    """

    __slots__ = ("_at", "_least", "_level", "_most")

    def __init__(
        self,
        setting: Literal["auto"] | float = "auto",
        *,
        least: float = _START,
        level: float | None = None,
        now: float = 0.0,
    ) -> None:
        if setting == "auto":
            self._level = _START if level is None else level
            self._least, self._most = min(least, _START), _MOST
        elif isinstance(setting, int | float) and not isinstance(setting, bool) and 0 <= setting < 1:
            self._level = self._least = self._most = float(setting)
        else:
            raise ValueError(
                f'the interactive reserve must be "auto" or a share from 0 to below 1, not {setting!r}'
            )
        self._at = now

    def share(self, now: float) -> float:
        """Return the share of the capacity that bulk must leave at ``now``."""
        if self._level <= self._least:
            return self._least
        decayed: float = self._level * 0.5 ** (max(0.0, now - self._at) / _HALF_LIFE)
        return max(self._least, decayed)

    def observe(self, burst: float, now: float) -> None:
        """Note that interactive calls have drawn ``burst`` of the capacity faster than it refilled."""
        wanted = burst * _MARGIN
        if wanted > self._least and (wanted := min(self._most, wanted)) > self.share(now):
            self._level, self._at = wanted, now


class BulkMinShare:
    """What bulk is owed under endless interactive load, in seconds of refill.

    A call's cost is the refill that it takes, in seconds; bulk earns ``share`` seconds a second. While bulk gets
    that much anyhow it saves up nothing. Once it is owed its next call, that call precedes interactive ones, and
    what it costs beyond the savings is a debt.
    """

    __slots__ = ("_at", "_saved", "share")

    def __init__(self, share: float, *, now: float = 0.0) -> None:
        if isinstance(share, bool) or not 0 <= share < 1:
            raise ValueError(f"the bulk share must be a number from 0 to below 1, not {share!r}")
        self.share = share
        self._saved = 0.0
        self._at = now

    def __bool__(self) -> bool:
        return self.share > 0

    def time_until(self, cost: float, now: float) -> float:
        """Return in how many seconds bulk will be owed a call of that cost, if it gets nothing until then.

        At most one second's earnings are saved up: a dearer call is owed then, and goes into debt.
        """
        self._earn(now)
        if not self.share:
            return math.inf
        wait = (min(cost, self.share) - self._saved) / self.share
        return wait if wait > _SLACK_SECONDS else 0.0

    def spend(self, cost: float, now: float, *, owed: bool) -> None:
        """Note that a bulk call went: because it was ``owed``, or because there was room anyhow."""
        self._earn(now)
        left = self._saved - cost
        self._saved = left if owed else max(left, min(self._saved, 0.0))

    def _earn(self, now: float) -> None:
        self._saved = min(self.share, self._saved + self.share * max(0.0, now - self._at))
        self._at = max(now, self._at)
