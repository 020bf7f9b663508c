"""One dimension of a pool: its bucket, and what of it bulk must leave."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Literal

from orchestra.budget.bucket import Bucket
from orchestra.call import Charge
from orchestra.policies.reserve import Reserve

__all__ = ["Dimension"]


class Dimension:
    """A `Bucket` together with the `Reserve` that interactive calls need of it.

    The headroom that they need is how deep they alone draw the bucket, from the moment they ask: of a limit that
    refills, what they asked for less what has refilled meanwhile; of slots, how many they have and want.
    """

    __slots__ = ("_asked_at", "_depth", "amount", "bucket", "for_bulk", "metric", "name", "reserve", "spent")

    def __init__(
        self,
        bucket: Bucket,
        reserve: Literal["auto"] | float,
        now: float,
        *,
        depth: float = 0.0,
        level: float | None = None,
        name: str | None = None,
        for_bulk: bool = False,
    ) -> None:
        """``name`` tells it from others of its metric; ``for_bulk``: it holds back bulk only.

        ``depth`` and ``level`` are what an earlier one's `depth` and ``reserve.share`` had come to.
        """
        self.metric = bucket.metric
        self.name = name or bucket.metric
        self.for_bulk = for_bulk
        self.bucket = bucket
        self.amount: Callable[[Charge], float]
        self.spent: Callable[[Charge], float]
        if self.metric == "concurrency":
            self.reserve = Reserve(reserve, least=0.0, level=level, now=now)
            self.amount, self.spent = _one_slot, _no_slot
        else:
            self.reserve = Reserve(reserve, level=level, now=now)
            self.amount = self.spent = attrgetter(self.metric)
        self._depth = depth
        self._asked_at = now

    def floor(self, now: float) -> float:
        """Return what bulk must leave: a share of what refills, whole slots of a concurrency limit."""
        capacity = self.bucket.capacity
        if self.bucket.rate:
            return self.reserve.share(now) * capacity
        if self.metric == "concurrency" and capacity < math.inf:
            return float(math.floor(self.reserve.share(now) * capacity + 1e-9))
        return 0.0

    def ask(self, charge: Charge, busy: int, now: float) -> None:
        """Note that an interactive call wants ``charge``, as the ``busy``-th that waits or is under way."""
        self.draw(self.amount(charge) if self.bucket.rate else busy, now)

    def draw(self, amount: float, now: float) -> None:
        """Note that interactive calls want ``amount`` more of what refills, or so many slots in all."""
        capacity = self.bucket.capacity
        if self.bucket.rate:
            depth = self.depth(now) + amount
            self._depth = depth if depth < capacity else capacity  # an outage is not remembered for its length
            self._asked_at = now
            amount = self._depth
        self.reserve.observe(amount / capacity, now)

    def depth(self, now: float) -> float:
        """Return how deep interactive calls alone would have drawn by ``now`` what refills."""
        depth = self._depth - (now - self._asked_at) * self.bucket.rate
        return depth if depth > 0 else 0.0


def _one_slot(_: Charge) -> float:
    return 1.0


def _no_slot(_: Charge) -> float:
    return 0.0
