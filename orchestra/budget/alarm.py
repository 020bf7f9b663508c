"""Ring at an instant."""

from __future__ import annotations

import _thread
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from queue import Empty, SimpleQueue

__all__ = ["Alarm", "CallAt", "call_at"]

CallAt = Callable[[float, Callable[[], None]], None]
"""``call_at(when, ring)``: call ``ring()`` at ``when`` or a little later, from any thread. Where an earlier
instant is already set for an equal ``ring``, that one is enough."""

_LONGEST_SLEEP = 3600.0
_FEW = 64

logger = logging.getLogger(__name__)


class Alarm:
    """One thread that rings for everybody, started when it is first needed.

    Why a thread and not ``call_later`` on a waiter's loop: a pool's waiters may live on several loops, any of
    which can be busy or closed just when another's turn comes, and synchronous callers have no loop at all. A
    thread that sleeps costs nothing, wakes to a fraction of a millisecond, and owes nothing to anybody's loop.

    `set` takes no lock that its own thread could hold, so it may be called by finalizers in the midst of anything
    (``SimpleQueue.put`` is reentrant, and ``_thread`` starts threads without the locks of ``threading``).
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Forget everything; for a forked child, in which no thread of ours runs."""
        self._posts: SimpleQueue[tuple[float, Callable[[], None]]] = SimpleQueue()
        self._due: dict[Callable[[], None], float] = {}
        self._started = threading.Lock()

    def set(self, when: float, ring: Callable[[], None]) -> None:
        """Call ``ring()`` at ``when``, unless an equal one is set to ring before."""
        if self._due.get(ring, math.inf) <= when:
            return
        self._due[ring] = when
        self._posts.put((when, ring))
        if self._started.acquire(blocking=False):  # for good: the lock is a flag that only one caller can raise
            try:
                _thread.start_new_thread(self._run, (self._posts, self._due))
            except RuntimeError:  # the system has no thread to give just now: the next one that asks tries again
                self._due.clear()
                self._started.release()
                raise

    def _run(
        self, posts: SimpleQueue[tuple[float, Callable[[], None]]], due: dict[Callable[[], None], float]
    ) -> None:
        heap: list[tuple[float, int, Callable[[], None]]] = []
        serial = count()
        while True:
            sleep = min(_LONGEST_SLEEP, heap[0][0] - self._clock()) if heap else None
            try:
                when, ring = posts.get(sleep is None or sleep > 0, sleep)
                heappush(heap, (when, next(serial), ring))
                del ring
            except Empty:
                pass
            if len(heap) > _FEW + 2 * len(due):  # mostly instants, hours away, that earlier ones have replaced
                heap = [(when, next(serial), ring) for ring, when in list(due.items())]
                heapify(heap)
            while heap and heap[0][0] <= self._clock():
                when, _, ring = heappop(heap)
                if due.get(ring) == when:
                    del due[ring]
                    try:
                        ring()
                    except Exception:
                        logger.exception("an alarm's ring failed")
                del ring


_shared = Alarm()
call_at: CallAt = _shared.set
"""The process-wide alarm, by ``time.monotonic``."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.reset)
