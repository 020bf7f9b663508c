"""All pools of a process."""

from __future__ import annotations

import asyncio
import json
import os
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orchestra.budget.alarm import Alarm, CallAt, call_at
from orchestra.budget.day_limit import DayLimit
from orchestra.budget.limits import batch_limits, days_of, matches, online_limits
from orchestra.budget.pool import Pool
from orchestra.config import BudgetConfig, LimitsConfig, TrafficConfig
from orchestra.policies.reserve import Reserve

if TYPE_CHECKING:
    from orchestra.budget.shared import Borrower, Loan

__all__ = ["Budget"]

_Account = tuple[str, str, tuple[str, ...] | str, str]
_ONLINE, _BATCH = "online", "batch"

_SWEEP_FROM = 256
_STALE_AFTER = 600.0


class Budget:
    """One pool per account and limit group, made when first asked for.

    Thread-safe, and bound to no loop. Where a caller brings its own keys there may be any number of accounts:
    pools that have been idle and unasked for ten minutes are forgotten as the number grows.
    """

    def __init__(
        self,
        traffic: TrafficConfig | None = None,
        *,
        backend: BudgetConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        call_at: CallAt | None = None,
    ) -> None:
        """``backend`` says who shares the pools.

        ``call_at`` rings at instants of ``clock``; by default an `Alarm` in real time does.

        Raises ConfigError where the backend cannot be used; ValueError where it has not this clock.
        """
        self._traffic = traffic if traffic is not None else TrafficConfig()
        self._clock = clock
        self._call_at = call_at if call_at is not None else _call_at_of(clock)
        self._pools: dict[_Account, Pool] = {}
        self._asked: dict[_Account, float] = {}
        self._sweep_at = _SWEEP_FROM
        self._borrower: Borrower | None = None
        if backend is not None and (path := backend.sqlite_path) is not None:
            if clock is not time.monotonic:
                raise ValueError("a budget that processes share runs by time.monotonic, the clock that they share")
            from orchestra.budget.shared import (
                Borrower,
                SqliteStore,
            )  # a program that shares nothing loads none of it

            self._borrower = Borrower(SqliteStore(path))
            weakref.finalize(self, self._borrower.close)
        _budgets.add(self)

    def pool(self, provider: str, key_fingerprint: str, limits: LimitsConfig | None, model: str | None) -> Pool:
        """Return the pool that meters ``model`` for that key at that provider.

        All models that match ``limits`` share one; asked for with changed limits, it takes them on. A model that
        no limit is known for has a pool of its own, which lets everybody in and counts.
        """
        return self._pool(provider, key_fingerprint, limits, model, _ONLINE)

    def batch_pool(
        self, provider: str, key_fingerprint: str, limits: LimitsConfig | None, model: str | None
    ) -> Pool:
        """Return the pool of the batches that are open: ``enqueued_batch_tokens``, and nothing else.

        A batch is charged with its input as ``tokens``, and holds them until its lease ends; then all come back,
        however it ended. Grouped as `pool` groups calls, and apart from it: neither takes from the other.
        """
        return self._pool(provider, key_fingerprint, limits, model, _BATCH)

    def day_limits(
        self, provider: str, key_fingerprint: str, limits: LimitsConfig | None, model: str | None
    ) -> list[DayLimit]:
        """Return what the limits of a day leave to bulk. It blocks for a moment where processes share them."""
        if limits is None or not (days := days_of(limits)):
            return []
        known = self.pool(provider, key_fingerprint, limits, model).snapshot()["dimensions"]
        least = Reserve(self._traffic.interactive_reserve).share(self._clock())  # before an account was ever used
        found = []
        for name, capacity in days.items():
            numbers = known.get(name, {})
            reserve = max(least * capacity, numbers.get("interactive_reserve", 0.0))
            found.append(DayLimit(name, capacity, used=numbers.get("used", 0.0), reserve=reserve))
        return found

    def _pool(
        self, provider: str, key_fingerprint: str, limits: LimitsConfig | None, model: str | None, kind: str
    ) -> Pool:
        limited = limits is not None and matches(limits, model)
        group = limits.models if limits and limited else model or ""
        account: _Account = (provider, key_fingerprint, group, kind)
        self._asked[account] = self._clock()
        pool = self._pools.get(account)
        if pool is None:
            self._sweep()
            fresh = Pool(
                limits if limited else None,
                self._traffic,
                limits_of=online_limits if kind == _ONLINE else batch_limits,
                loan=self._loan(account) if limited else None,
                clock=self._clock,
                call_at=self._call_at,
            )
            pool = self._pools.setdefault(account, fresh)  # two threads may come at once: the first one's counts
        if limited:
            pool.set_limits(limits)
        return pool

    def snapshot(self) -> list[dict[str, Any]]:
        """Return every pool's state, with its account, as plain dicts."""
        return [
            {
                "provider": provider,
                "key": key_fingerprint,
                "models": list(models) if isinstance(models, tuple) else [models],
                "kind": kind,
                **pool.snapshot(),
            }
            for (provider, key_fingerprint, models, kind), pool in list(self._pools.items())
        ]

    def close(self) -> None:
        """Give back at once what is borrowed and not in use. It takes some milliseconds, and may be called again.

        What is used afterwards is borrowed anew. A process that ends closes by itself.
        """
        if self._borrower is not None:
            self._borrower.close()

    async def aclose(self) -> None:
        """As `close`, without blocking the loop."""
        if self._borrower is not None:
            await asyncio.to_thread(self._borrower.close)

    def _loan(self, account: _Account) -> Loan | None:
        """Return what makes a pool borrow, where processes share the budget.

        They share a pool where they call the provider alike, use the same key, and name the same models.
        """
        if self._borrower is None:
            return None
        from orchestra.budget.shared import Loan

        return Loan(self._borrower, json.dumps(account[:-1] if account[-1] == _ONLINE else account))

    def forget(self) -> None:
        """Forget every pool: what is under way in them belongs to somebody else now, and will not end here."""
        self._pools = {}
        self._asked = {}
        self._sweep_at = _SWEEP_FROM

    def _sweep(self) -> None:
        if len(self._pools) < self._sweep_at:
            return
        stale = self._clock() - _STALE_AFTER
        for account, pool in list(self._pools.items()):
            if self._asked.get(account, stale) < stale and pool.is_idle():
                self._pools.pop(account, None)
                self._asked.pop(account, None)
        self._sweep_at = max(_SWEEP_FROM, 2 * len(self._pools))


def _call_at_of(clock: Callable[[], float]) -> CallAt:
    return call_at if clock is time.monotonic else Alarm(clock).set


_budgets: weakref.WeakSet[Budget] = weakref.WeakSet()


def _forget_all() -> None:
    for budget in list(_budgets):
        budget.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)  # the calls under way are the parent's
