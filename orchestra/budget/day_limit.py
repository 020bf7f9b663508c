"""What a limit of a day leaves to bulk work that is still to come."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["DayLimit"]


@dataclass(frozen=True, slots=True)
class DayLimit:
    """A limit of any 24 hours as bulk finds it.

    ``name`` is its key in the settings (``requests_per_day``). Of ``capacity`` there is ``used`` by whoever shares
    the account, and ``reserve`` is what bulk leaves to interactive calls.
    """

    name: str
    capacity: float
    used: float = 0.0
    reserve: float = 0.0

    @property
    def metric(self) -> str:
        """What it counts: ``requests``, ``tokens``, ``input_tokens``, ``output_tokens`` or ``usd``."""
        return self.name.removesuffix("_per_day")

    @property
    def left(self) -> float:
        """What bulk may use at once."""
        return max(0.0, self.capacity - self.reserve - self.used)

    def days(self, calls: int, each: float, *, before: float = 0.0) -> float:
        """Return after how many whole days the last of ``calls`` may go, each of which takes ``each``.

        ``before`` is what others want that go first. What is used now is thought to come back in a day, since
        nobody says when it was used. Infinity where one alone is more than the limit.
        """
        if not calls or each <= 0:
            return 0.0
        if each > self.capacity:
            return math.inf
        at_once = math.floor((self.left - before) / each + 1e-9)
        if not self.used and not before:
            at_once = max(1, at_once)  # the reserve keeps nothing back that could never go
        a_day = max(1, math.floor((self.capacity - self.reserve) / each + 1e-9))
        return max(0.0, math.ceil((calls - at_once) / a_day))
