"""What one process holds of one limit of a shared account."""

from __future__ import annotations

import math
from typing import Literal

from orchestra.budget.bucket import Bucket, Metric
from orchestra.budget.dimension import Dimension
from orchestra.call import Charge

__all__ = ["SharedDimension", "Slice"]

_SLACK = 1e-9


class Slice(Bucket):
    """A bucket that holds what was borrowed, and refills only by borrowing.

    ``capacity`` and ``rate`` are the whole account's. ``held`` is what the account believes this process to hold;
    ``spent`` and ``refunded`` are what it has not been told yet. ``kept_back`` is what bulk must leave here, for
    interactive calls of this process; infinity stops bulk. Below ``low`` it is time to borrow. From
    ``valid_until`` on the account may have given it all to others: nothing is there then.
    """

    __slots__ = ("asked", "held", "kept_back", "low", "refunded", "spent", "taken", "valid_until")

    def __init__(self, metric: Metric, *, capacity: float, rate: float = 0.0, now: float = 0.0) -> None:
        super().__init__(metric, capacity=capacity, rate=rate, now=now)
        self.asked = 0.0
        self.taken = 0.0
        self.reserved = 0.0
        self.empty()

    def empty(self) -> None:
        """Hold nothing, and have nothing to tell."""
        self.held = self.spent = self.refunded = self.kept_back = 0.0
        self.low = self.valid_until = -math.inf

    @property
    def stock(self) -> float:
        """What is left of the slice; below zero in debt."""
        return self.held - (self.spent if self.rate else self.reserved)

    def used(self, now: float) -> float:
        """Return what the account does not know yet to be spent, or how many slots are in use."""
        return self.spent if self.rate else self.reserved

    def available(self, now: float) -> float:
        return self.stock if now < self.valid_until else min(0.0, self.stock)

    def time_until(self, amount: float, floor: float, now: float) -> float:
        """Return zero where ``amount`` is there above ``floor``, else infinity: only borrowing can help."""
        if amount <= 0:
            return 0.0
        stock = self.held - (self.spent if self.rate else self.reserved)
        return 0.0 if amount + floor <= stock + _SLACK and now < self.valid_until else math.inf

    def least_wait(self, amount: float, now: float) -> float:
        """Return infinity where ``amount`` can never be had. Else nobody here knows: zero."""
        return math.inf if amount > self.capacity and not self.rate else 0.0

    def reserve(self, amount: float, now: float) -> None:
        self.reserved += amount
        self.taken += amount
        if self.rate:
            self.spent += amount

    def settle(self, reserved: float, spent: float, now: float) -> None:
        self.reserved -= reserved
        if self.rate:
            if spent > reserved:
                self.spent += spent - reserved
            else:
                self.refunded += reserved - spent


class SharedDimension(Dimension):
    """A dimension whose interactive reserve is the account's: here, bulk leaves what the slice keeps back."""

    __slots__ = ()
    bucket: Slice

    def __init__(self, bucket: Bucket, reserve: Literal["auto"] | float, now: float) -> None:
        if not isinstance(bucket, Slice):
            raise TypeError("a shared dimension is one of slices")
        super().__init__(bucket, reserve, now)

    def floor(self, now: float) -> float:
        return self.bucket.kept_back

    def ask(self, charge: Charge, busy: int, now: float) -> None:
        self.bucket.asked += self.amount(charge)
