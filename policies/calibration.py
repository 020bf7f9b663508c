"""How far an estimate is off, learned from what was counted in the end."""

from __future__ import annotations

__all__ = ["Calibration"]

_FORGETTING = 0.02
"""The weight that the past loses with each count: the last fifty or so tell."""
_DOUBT = 10.0
"""Units of an exact estimate that the first counts are set against, so that a tiny one tells little; of tokens."""
_MOST = 4.0


class Calibration:
    """The factor by which to raise estimates, from 1 to 4.

    Estimates are never lowered: one that is too high is put right when its call ends, and costs some room until
    then; one that is too low is a refusal.
    """

    __slots__ = ("_counted", "_estimated", "factor")

    def __init__(self, doubt: float = _DOUBT) -> None:
        self.factor = 1.0
        self._estimated = self._counted = doubt

    def observe(self, estimated: float, counted: float) -> None:
        """Learn that a call which was estimated so was counted so. Both in the same unit, above zero."""
        self._estimated += estimated - _FORGETTING * self._estimated
        self._counted += counted - _FORGETTING * self._counted
        self.factor = min(_MOST, max(1.0, self._counted / self._estimated))
