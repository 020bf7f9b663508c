"""What an account may take, and who takes it next."""

from __future__ import annotations

from orchestra.budget.budget import Budget
from orchestra.budget.day_limit import DayLimit
from orchestra.budget.lease import Lease
from orchestra.budget.limits import limits_for
from orchestra.budget.pool import Pool
from orchestra.budget.prices import CostRange, batch_factor, cost, estimate, price_for

__all__ = [
    "Budget",
    "CostRange",
    "DayLimit",
    "Lease",
    "Pool",
    "batch_factor",
    "cost",
    "estimate",
    "limits_for",
    "price_for",
]
