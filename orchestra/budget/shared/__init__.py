"""One budget for several processes: each spends from slices that it has borrowed from the common account."""

from __future__ import annotations

from orchestra.budget.shared.borrower import Borrower, Loan
from orchestra.budget.shared.slice import SharedDimension
from orchestra.budget.shared.sqlite import SqliteStore
from orchestra.budget.shared.store import Store, StoreError

__all__ = ["Borrower", "Loan", "SharedDimension", "SqliteStore", "Store", "StoreError"]
