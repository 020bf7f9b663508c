"""Where shared accounts are kept."""

from __future__ import annotations

from typing import Any, Protocol

from orchestra.budget.shared.account import Reply, Request
from orchestra.errors import OrchestraError

__all__ = ["Store", "StoreError"]


class StoreError(OrchestraError):
    """The store cannot serve just now. The message names the place and the remedy."""


class Store(Protocol):
    """Keeps accounts by name, and makes each exchange one atomic step: read, `Account.exchange`, write.

    Its instants must be those of the clock of every pool that it serves. Methods may block for a short time, and
    be called from any thread.
    """

    def exchange(self, account: str, request: Request) -> Reply:
        """Let a process exchange with an account, which is made where it is missing. Raises StoreError."""

    def look(self, account: str) -> dict[str, Any] | None:
        """Return an account's numbers as a plain dict; None where there is no such account. Raises StoreError."""

    def close(self) -> None:
        """Let go of file or connection; the next exchange opens it again."""

    def abandon(self) -> None:
        """Forget file or connection untouched: it belongs to the process that this one was forked from."""
