"""The creation of a batch that is an ordinary call: what it holds of the account's limits, and what they learn."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from orchestra.budget import Lease, Pool
from orchestra.call import Charge, Headers
from orchestra.errors import ConnectionFailed
from orchestra.providers import Provider

__all__ = ["Creation"]


class Creation:
    """A creation that was admitted: a context manager for the one time that it is on the wire.

    How long the answer will be is known much later. So what was estimated counts in full, as it does at the
    provider. ``wall`` is unix time.
    """

    def __init__(self, pool: Pool, lease: Lease, provider: Provider, wall: Callable[[], float]) -> None:
        self._pool = pool
        self._lease = lease
        self._provider = provider
        self._wall = wall

    def heard(self, status: int, headers: Headers, body: bytes) -> None:
        """Learn from the answer. ``body`` is that of an error."""
        now = self._wall()
        told = self._provider.limits(headers, now)
        if 200 <= status < 300:
            self._pool.observe(self._lease, told)
            return
        # what a provider refuses counts as a request, and uses no tokens
        self._lease.settle(Charge(requests=self._lease.charge.requests, usd=0.0))
        fault = self._provider.fault(status, headers, body, now)
        if fault.throttled:
            self._pool.throttled(self._lease, told, pause=fault.pause)
        else:
            self._pool.observe(self._lease, told, ok=False)

    def __enter__(self) -> Creation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, ConnectionFailed) and not error.sent:
            self._lease.refund()
        else:
            self._lease.keep()
