"""Jobs of awaited calls that nobody named: how they are called, and what earlier programs have left of them."""

from __future__ import annotations

import secrets
import time

from orchestra.errors import JobLocked
from orchestra.jobs.ledger.lock import JobLock
from orchestra.jobs.ledger.store import JobStore

__all__ = ["drop", "fresh_name", "leftovers"]

_PREFIX = "awaited-"
_DIGITS = "[0-9]"
_PATTERN = f"{_PREFIX}{_DIGITS * 8}-{_DIGITS * 6}-{'[0-9a-f]' * 6}"


def fresh_name() -> str:
    """Return a name that no job has."""
    return time.strftime(f"{_PREFIX}%Y%m%d-%H%M%S-") + secrets.token_hex(3)


def leftovers(store: JobStore) -> dict[int, str]:
    """Return the names of the jobs, by their ids, in which somebody may find what he asks again. Blocks.

    Those that hold nothing of use are dropped, but for those whose programs still run.
    """
    left: dict[int, str] = {}
    for job, name, is_wanted in store.awaited.jobs_like(_PATTERN):
        if is_wanted:
            left[job] = name
            continue
        try:
            lock = JobLock(store.path, name)
        except JobLocked:
            continue
        try:
            drop(store, job)
        finally:
            lock.release()
    return left


def drop(store: JobStore, job: int) -> None:
    """Forget the job if all that it answered was handed over. Blocks; whoever calls holds its lock."""
    store.awaited.clear(job)
    if not store.awaited.has_unhanded(job) and not store.batches.unfinished(job):
        store.discard(job)
