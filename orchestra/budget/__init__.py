"""What an account may take, and who takes it next."""

from __future__ import annotations

from orchestra.budget.budget import Budget, limits_for
from orchestra.budget.lease import Lease
from orchestra.budget.pool import Pool

__all__ = ["Budget", "Lease", "Pool", "limits_for"]
