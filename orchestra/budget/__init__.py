"""What an account may take, and who takes it next."""

from __future__ import annotations

from orchestra.budget.budget import Budget
from orchestra.budget.lease import Lease
from orchestra.budget.limits import cost, limits_for, price_for
from orchestra.budget.pool import Pool

__all__ = ["Budget", "Lease", "Pool", "cost", "limits_for", "price_for"]
