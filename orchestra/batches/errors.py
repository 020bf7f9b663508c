"""What can go wrong in speaking to a batch endpoint::

    ProviderError                  (`orchestra.errors`)
    ├── BatchRefused               it will not: asked again, it says the same
    │   ├── BatchNotFound          it knows no such batch or file; which may be a matter of time
    │   ├── BatchForbidden         the key has no right to this, which may hold for batches alone: a 403
    │   └── AccountRefused         it would refuse anything of this account: a wrong key, a spent quota
    └── BatchBusy                  not now: a 408, 425, 429 or 5xx
        └── BatchUnclear           which of several batches is meant will be known when they have ended

A connection that failed is a `ConnectionFailed`. Its ``sent`` is False only where nothing can have arrived: else a
batch may have been created.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestra.errors import ProviderError

__all__ = ["AccountRefused", "BatchBusy", "BatchForbidden", "BatchNotFound", "BatchRefused", "BatchUnclear"]


class BatchRefused(ProviderError):
    """The batch endpoint refused what was asked. ``code`` is its own word for why."""


class BatchNotFound(BatchRefused):
    """There is no such batch, or file: not yet, not any more, or not for this key."""


class BatchForbidden(BatchRefused):
    """The key has no right to what was asked, a 403: keys are often allowed chat and no files or batches."""


class AccountRefused(BatchRefused):
    """The provider refused the account, whatever was asked: a 401, a 402, or a quota that is spent. It says
    nothing about the batch."""


class BatchBusy(ProviderError):
    """The batch endpoint does not answer just now. ``retry_after`` is the wait that it demands: 0.0 where none."""

    retry_after: float

    def __init__(self, message: str, *, status: int, code: str | None = None, retry_after: float = 0.0) -> None:
        super().__init__(message, status=status, code=code, retry_after=retry_after)


class BatchUnclear(BatchBusy):
    """Several batches that are under way may be the one that is looked for: ``ids``."""

    def __init__(self, message: str, *, ids: Sequence[str]) -> None:
        super().__init__(message, status=409, retry_after=60.0)
        self.ids = tuple(ids)
