"""One dimension of a pool: its bucket, and what of it bulk must leave."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Literal

from orchestra.budget.bucket import Bucket, Metric
from orchestra.call import Charge
from orchestra.policies.reserve import Reserve

__all__ = ["Dimension"]


class Dimension:
    """A `Bucket` together with the `Reserve` that interactive calls need of it.

    The headroom that they need is how deep they alone draw the bucket, from the moment they ask: of a limit that
    refills, what they asked for less what has refilled meanwhile; of slots, how many they have and want.
    """

    __slots__ = ("_asked_at", "_depth", "amount", "bucket", "for_bulk", "metric", "name", "reserve")

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
        self.name = name or bucket.name
        self.for_bulk = for_bulk
        self.bucket = bucket
        self.amount = _AMOUNTS[self.metric]
        if self.metric == "concurrency":
            self.reserve = Reserve(reserve, least=0.0, level=level, now=now)
        else:
            self.reserve = Reserve(reserve, level=level, now=now)
        self._depth = depth
        self._asked_at = now

    def change(self, bucket: Bucket, now: float) -> None:
        """Take on the limit of ``bucket``. What is used stays used, calls under way stay so."""
        mine = self.bucket
        if bucket.window == mine.window:
            mine.resize(bucket.capacity, bucket.rate, now)
        else:
            used = mine.used(now) - mine.reserved
            bucket.reserve(mine.reserved, now)
            bucket.settle(0.0, max(0.0, used), now)
            self.bucket = bucket

    def settle(self, charge: Charge, spent: Charge, now: float) -> None:
        """End what a call had reserved, of which ``spent`` stays used. Of a stock all comes back."""
        reserved = self.amount(charge)
        if not self.bucket.rate:
            self.bucket.settle(reserved, 0.0, now)
        else:
            self.bucket.settle(reserved, reserved if spent is charge else self.amount(spent), now)

    def floor(self, now: float, untried: bool = False) -> float:
        """Return what bulk must leave: a share of what refills, whole slots of a concurrency limit.

        ``untried``: no call has told yet how tokens are counted. Until then bulk leaves half of them.
        """
        capacity = self.bucket.capacity
        if self.bucket.rate:
            share = self.reserve.share(now)
            if untried and share < 0.5 and self.metric != "requests" and not self.bucket.window:
                share = 0.5
            return share * capacity
        if self.metric == "concurrency" and capacity < math.inf:
            return float(math.floor(self.reserve.share(now) * capacity + 1e-9))
        return 0.0

    def ask(self, charge: Charge, busy: int, now: float) -> None:
        """Note that an interactive call wants ``charge``, as the ``busy``-th that waits or is under way."""
        self.draw(self.amount(charge) if self.bucket.rate else busy, now)

    def draw(self, amount: float, now: float) -> None:
        """Note that interactive calls want ``amount`` more of what refills, or so many slots in all."""
        capacity, rate = self.bucket.capacity, self.bucket.rate
        if rate:
            depth = self._depth - (now - self._asked_at) * rate
            amount += depth if depth > 0 else 0.0
            if amount > capacity:
                amount = capacity  # an outage is not remembered for its length
            self._depth, self._asked_at = amount, now
        self.reserve.observe(amount / capacity, now)

    def depth(self, now: float) -> float:
        """Return how deep interactive calls alone would have drawn by ``now`` what refills."""
        depth = self._depth - (now - self._asked_at) * self.bucket.rate
        return depth if depth > 0 else 0.0


def _one_slot(_: Charge) -> float:
    return 1.0


def _usd(charge: Charge) -> float:
    return math.inf if charge.usd is None else charge.usd  # a price that nobody knows fits no limit


_AMOUNTS: dict[Metric, Callable[[Charge], float]] = {
    "requests": attrgetter("requests"),
    "tokens": attrgetter("tokens"),
    "input_tokens": attrgetter("input_tokens"),
    "output_tokens": attrgetter("output_tokens"),
    "usd": _usd,
    "concurrency": _one_slot,
}
"""What a charge takes, by metric."""
