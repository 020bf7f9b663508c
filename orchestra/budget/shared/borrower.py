"""The thread that exchanges with shared accounts, so that nobody's event loop has to."""

from __future__ import annotations

import _thread
import logging
import math
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Any, Literal, Protocol

from orchestra.budget.admission import Admission
from orchestra.budget.bucket import Bucket
from orchestra.budget.shared.share import Share
from orchestra.budget.shared.slice import SharedDimension, Slice
from orchestra.budget.shared.store import Store, StoreError

__all__ = ["Borrower", "Loan"]

_LINGER = 5.0
_RETRY = 0.5
_CLOSE_WITHIN = 5.0

logger = logging.getLogger(__name__)


class Inspect(Protocol):
    """Run ``read(admission, now)`` while nobody else touches the admission."""

    def __call__(self, read: Callable[[Admission, float], Any], /) -> Any: ...


class Loan:
    """What one pool has borrowed: its `Share`, and the way to its admission.

    A pool binds it once; after that `hungry` is for the pool, under its lock, and the rest for the borrower's
    thread.
    """

    dimension = SharedDimension
    """The kind of dimension that a borrowing pool's admission has."""

    def __init__(self, borrower: Borrower, account: str) -> None:
        self.account = account
        self.share = Share(borrower.holder)
        self.trouble: str | None = None
        self._borrower = borrower

    def bind(self, inspect: Inspect, look: Callable[[], None]) -> None:
        """Say how to get at the admission, and how to let it decide again."""
        self._inspect = inspect
        self._look = look
        self._borrower.enlist(self)

    def propose(self, buckets: Iterable[Bucket], reserve: Literal["auto"] | float, now: float) -> list[Slice]:
        """Return the slices to admit from instead of ``buckets``."""
        return self.share.propose(buckets, reserve, now)

    def after_decision(self, admission: Admission) -> None:
        """Wake the borrower where the admission needs it."""
        if self.share.hungry(admission):
            self.share.woken = True
            self._borrower.wake(self)

    def exchange(self, store: Store, *, leaving: bool = False) -> float:
        """Exchange once, and return when the next exchange is due."""
        share = self.share
        request = self._inspect(lambda admission, now: share.capture(admission, now, leaving=leaving))
        try:
            reply = store.exchange(self.account, request)
        except Exception as error:
            self._inspect(lambda _, now: share.undo(now, _RETRY))
            if not self.trouble:
                logger.warning("the shared budget cannot be reached, so calls wait: %s", error)
            self.trouble = str(error) or type(error).__name__
            if not isinstance(error, StoreError):
                raise
            return share.next_at
        if self.trouble:
            logger.warning("the shared budget can be reached again")
            self.trouble = None
        terms = request.terms
        self._inspect(lambda admission, now: share.apply(request, reply, admission, now))
        if reply.terms != terms and not request.assert_terms:
            logger.warning("another process has changed the limits that are shared: they are now %s", reply.terms)
        self._look()
        return share.next_at

    def explain(self, state: dict[str, Any], admission: Admission, now: float) -> dict[str, Any]:
        """Return a pool's state with what the account said of the wait: a slice knows only that it is empty."""
        if (waits_for := self.share.waits_for(admission)) is not None:
            metric, until = waits_for
            seconds = max(0.0, until - now) if until < math.inf else None
            state["head"].update(waits_for=metric, seconds=seconds)
            if metric in state["dimensions"]:
                state["dimensions"][metric]["room_in"] = seconds
        return state

    def describe(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a pool's state with the account's numbers in it.

        What this process has borrowed in advance is not used: it is there for its calls.
        """
        account: dict[str, Any] | None = None
        try:
            account = self._borrower.store.look(self.account)
        except StoreError as error:
            self.trouble = str(error)
        for metric, numbers in (account or {}).get("dimensions", {}).items():
            slice = self.share.slices.get(metric)
            ahead = 0.0 if slice is None or slice.capacity == math.inf else max(0.0, slice.stock)
            numbers.update(used=max(0.0, numbers["used"] - ahead), available=numbers["available"] + ahead)
            state["dimensions"].setdefault(metric, {}).update(numbers)
        shared = {
            "processes": 0 if account is None else account["processes"],
            "slice": {
                metric: slice.stock for metric, slice in self.share.slices.items() if slice.capacity < math.inf
            },
            "trouble": self.trouble,
        }
        return {**state, "shared": shared}


class Borrower:
    """Exchanges for all the pools of a process, in one thread, which ends when nothing has been held for a while.

    `wake` takes no lock that its own thread could hold, so it may be called in the midst of anything.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._loans: weakref.WeakSet[Loan] = weakref.WeakSet()
        self._begin()
        _borrowers.add(self)

    def _begin(self) -> None:
        self.holder = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._posts: SimpleQueue[Loan | threading.Event] = SimpleQueue()
        self._running = threading.Lock()

    def enlist(self, loan: Loan) -> None:
        self._loans.add(loan)

    def wake(self, loan: Loan) -> None:
        """Exchange for ``loan`` as soon as may be."""
        self._post(loan)

    def close(self) -> None:
        """Give back all that is not in use, and close the store. What is used afterwards is borrowed anew."""
        done = threading.Event()
        self._post(done)
        done.wait(_CLOSE_WITHIN)

    def forget(self) -> None:
        """In a forked child: begin anew, with nothing."""
        self.store.abandon()
        self._begin()
        for loan in self._loans:
            loan.share.forget(self.holder)

    def _post(self, post: Loan | threading.Event) -> None:
        self._posts.put(post)
        if self._running.acquire(blocking=False):  # whoever raises the flag starts the thread, which lowers it
            _thread.start_new_thread(self._run, (self._posts, self._running))

    def _run(self, posts: SimpleQueue[Loan | threading.Event], running: threading.Lock) -> None:
        due: dict[Loan, float] = {}
        while True:
            now = time.monotonic()
            soonest = min(due.values(), default=now + _LINGER)
            try:
                post = posts.get(timeout=max(0.0, soonest - now))
            except Empty:
                if not due:
                    break
            else:
                if isinstance(post, Loan):
                    due[post] = min(due.get(post, math.inf), post.share.earliest)
                else:
                    self._leave(due, post)
                    continue
                del post
            now = time.monotonic()
            for loan in [loan for loan, when in due.items() if when <= now]:
                due[loan] = self._exchange(loan)
                if due[loan] == math.inf:
                    del due[loan]
        running.release()
        if not posts.empty() and running.acquire(blocking=False):  # posted while the flag was still up
            self._run(posts, running)

    def _exchange(self, loan: Loan, *, leaving: bool = False) -> float:
        try:
            return loan.exchange(self.store, leaving=leaving)
        except Exception:
            logger.exception("an exchange with the shared budget failed")
            return time.monotonic() + _RETRY

    def _leave(self, due: dict[Loan, float], done: threading.Event) -> None:
        try:
            for loan in [*due]:
                self._exchange(loan, leaving=True)
                if loan.share.next_at == math.inf:
                    del due[loan]
            self.store.close()
        finally:
            done.set()


_borrowers: weakref.WeakSet[Borrower] = weakref.WeakSet()


def _forget_all() -> None:
    for borrower in _borrowers:
        borrower.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
