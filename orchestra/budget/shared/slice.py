"""What one process holds of one limit of a shared account."""

from __future__ import annotations

import math
from typing import Literal

from orchestra.budget.bucket import Bucket, Metric
from orchestra.budget.dimension import Dimension
from orchestra.budget.window import HOUR
from orchestra.call import Charge

__all__ = ["SharedDimension", "Slice"]

_SLACK = 1e-9


class Slice(Bucket):
    """A bucket that holds what was borrowed, and refills only by borrowing.

    ``capacity``, ``rate`` and ``window`` are the whole account's. ``held`` is what the account believes this
    process to hold; ``spent`` and ``refunded`` are what it has not been told yet. ``kept_back`` is what bulk must
    leave here, for interactive calls of this process; infinity stops bulk. Below ``low`` it is time to borrow.
    From ``valid_until`` on the account may have given it all to others: nothing is there then.

    Of what refills, a call spends its reservation when it goes, and what it did not need is refunded. Of a stock
    and of a day it pins its reservation, which goes on being held, until it is over: what leaves a hard window
    must not begin to age before it is known. ``written_off`` is what was pinned when the account took it for
    spent. ``barred`` is an instant before which the account cannot let so much go.
    """

    __slots__ = (
        "asked",
        "barred",
        "hard",
        "held",
        "kept_back",
        "low",
        "pinned",
        "refunded",
        "spent",
        "taken",
        "valid_until",
        "window",
        "written_off",
    )

    def __init__(
        self,
        metric: Metric,
        *,
        capacity: float,
        rate: float = 0.0,
        window: float = 0.0,
        now: float = 0.0,
        name: str | None = None,
    ) -> None:
        super().__init__(metric, capacity=capacity, rate=rate, now=now, name=name)
        self.window = window
        self.hard = window >= HOUR
        self.asked = 0.0
        self.taken = 0.0
        self.reserved = 0.0
        self.pinned = self.written_off = 0.0
        self.empty()

    def empty(self) -> None:
        """Hold nothing, and have nothing to tell."""
        self.held = self.spent = self.refunded = self.kept_back = 0.0
        self.low = self.valid_until = -math.inf
        self.barred: tuple[float, float] = (-math.inf, math.inf)

    @property
    def pins(self) -> bool:
        """Whether what is reserved goes on being held."""
        return not self.rate or self.hard

    @property
    def stock(self) -> float:
        """What is left of the slice; below zero in debt."""
        return self.held - self.spent - self.pinned

    def used(self, now: float) -> float:
        """Return what the account does not know yet to be spent, and what calls under way hold."""
        return self.spent + self.pinned

    def reshape(self, capacity: float, rate: float, window: float, now: float) -> None:
        """Change the account's limit. What is held, and what calls under way hold, stays."""
        pinned_before = self.pins
        self.resize(capacity, rate, now)
        self.window, self.hard = window, window >= HOUR
        if pinned_before and not self.pins:
            self.spent += self.pinned
            self.pinned = 0.0

    def write_off(self) -> None:
        """The account took all that was held here for spent."""
        self.written_off += self.pinned
        self.pinned = 0.0

    def available(self, now: float) -> float:
        return self.stock if now < self.valid_until else min(0.0, self.stock)

    def time_until(self, amount: float, floor: float, now: float) -> float:
        """Return zero where ``amount`` is there above ``floor``, else infinity: only borrowing can help."""
        if amount <= 0:
            return 0.0
        stock = self.held - self.spent - self.pinned
        return 0.0 if amount + floor <= stock + _SLACK and now < self.valid_until else math.inf

    def least_wait(self, amount: float, now: float) -> float:
        """Return infinity where ``amount`` can never be had, and what the account has told. Else nobody knows."""
        if amount > self.capacity and (self.hard or not self.rate):
            return math.inf
        until, barred = self.barred
        return max(0.0, until - now) if amount >= barred else 0.0

    def is_known(self, now: float) -> bool:
        """Return whether the account has answered lately. Else nobody knows what it has left."""
        return now < self.valid_until

    def used_up_for(self, amount: float, now: float) -> float:
        """As a bucket's. That nothing is left here says nothing about the account: others may hold it."""
        return self.least_wait(amount, now) if self.hard else 0.0

    def reserve(self, amount: float, now: float) -> None:
        self.reserved += amount
        self.taken += amount
        if self.pins:
            self.pinned += amount
        else:
            self.spent += amount

    def settle(self, reserved: float, spent: float, now: float) -> None:
        self.reserved -= reserved
        if self.pins:
            known = min(reserved, self.written_off)
            self.written_off -= known
            self.pinned = max(0.0, self.pinned - (reserved - known))
            if self.rate:
                self.spent += max(0.0, spent - known)
        elif spent > reserved:
            self.spent += spent - reserved
        else:
            self.refunded += reserved - spent

    def give_back(self, amount: float, now: float) -> None:
        self.refunded += amount


class SharedDimension(Dimension):
    """A dimension whose interactive reserve is the account's: here, bulk leaves what the slice keeps back."""

    __slots__ = ()
    bucket: Slice

    def __init__(self, bucket: Bucket, reserve: Literal["auto"] | float, now: float) -> None:
        if not isinstance(bucket, Slice):
            raise TypeError("a shared dimension is one of slices")
        super().__init__(bucket, reserve, now)

    def change(self, bucket: Bucket, now: float) -> None:
        if not isinstance(bucket, Slice):
            raise TypeError("a shared dimension is one of slices")
        self.bucket = bucket

    def floor(self, now: float, untried: bool = False) -> float:
        return self.bucket.kept_back

    def ask(self, charge: Charge, busy: int, now: float) -> None:
        self.bucket.asked += self.amount(charge)
