"""Batches at the providers: who speaks to their endpoints, and what may ride in them."""

from __future__ import annotations

from orchestra.batches.client import BatchClient, Lines
from orchestra.batches.desk import BatchDesk
from orchestra.batches.errors import (
    AccountRefused,
    BatchBusy,
    BatchForbidden,
    BatchNotFound,
    BatchRefused,
    BatchUnclear,
)
from orchestra.batches.route import BatchRoute

__all__ = [
    "AccountRefused",
    "BatchBusy",
    "BatchClient",
    "BatchDesk",
    "BatchForbidden",
    "BatchNotFound",
    "BatchRefused",
    "BatchRoute",
    "BatchUnclear",
    "Lines",
]
