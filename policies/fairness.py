"""Fair order among jobs that wait for the same scarce thing.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): each job has a tag, the virtual time at which its
next request starts; the smallest tag goes next, and going moves the tag on by the request's cost. Jobs that wait
thus get equal shares of cost, whatever their numbers and sizes; a weight is a divisor of the cost. The tag does
not depend on the size of the request that waits, so no job's large ones are overtaken for ever by another's.

Inside a job the cheap ones may go first: more of them are answered with what there is, and on average each waits
less (the shortest job first). A dear one lets pass only what comes within a bounded time after it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from orchestra.policies.heap import Entry, Heap

__all__ = ["FairQueue", "Place"]

T = TypeVar("T")

_YIELDED = 100.0
"""Seconds for which a request lets cheaper ones of its job pass, for each second of cost."""
_IDLE_JOBS = 1024
"""How many idle jobs' tags are remembered. One that is forgotten gains at most the cost of one request."""


class Place(Generic[T]):
    """Where an item waits, as `FairQueue.push` returned it."""

    __slots__ = ("_entry", "_lane", "cost", "item", "job")

    def __init__(self, item: T, job: _Job[T], cost: float, lane: Heap[Place[T]], key: float) -> None:
        self.item = item
        self.job = job
        self.cost = cost
        self._lane = lane
        self._entry = lane.push(key, self)

    def leave(self) -> bool:
        return self._lane.discard(self._entry)


class _Job(Generic[T]):
    """A job with its tag, its waiting requests, and its entry in the order while it has any."""

    __slots__ = ("entry", "name", "tag", "waiting")

    def __init__(self, name: Hashable, tag: float) -> None:
        self.name = name
        self.tag = tag
        self.waiting: Heap[Place[T]] = Heap()
        self.entry: Entry | None = None


class FairQueue(Generic[T]):
    """Items that wait, fairly ordered. Push, pop and remove are O(log n).

    Between jobs: by start tag. Inside a job: the earliest of an item's expiry and its arrival + ``lateness``, so
    that it is first come, first served where nothing expires soon, and an urgent item overtakes another by at
    most ``lateness`` seconds. An item lets those pass that cost less and come up to ``yields`` seconds later, the
    longer the more it costs. Items pushed to the front precede all others, in their own order.
    """

    __slots__ = ("_front", "_idle", "_jobs", "_lateness", "_length", "_order", "_virtual", "_yields")

    def __init__(self, *, lateness: float, yields: float = 0.0) -> None:
        for name, seconds in (("lateness", lateness), ("yields", yields)):
            if not seconds >= 0:
                raise ValueError(f"{name} must be a number of seconds, zero or above, not {seconds!r}")
        self._lateness = lateness
        self._yields = yields
        self._front: Heap[Place[T]] = Heap()
        self._jobs: dict[Hashable, _Job[T]] = {}
        self._order: Heap[_Job[T]] = Heap()
        self._idle: OrderedDict[Hashable, None] = OrderedDict()
        self._virtual = 0.0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(
        self,
        item: T,
        *,
        job: Hashable,
        cost: float,
        now: float,
        expires_at: float = math.inf,
        front: bool = False,
    ) -> Place[T]:
        """Add ``item``. ``cost`` (above zero) is what its going takes, in seconds of what the items wait for."""
        if not 0 < cost < math.inf:
            raise ValueError(f"cost must be a number above zero, not {cost!r}")
        self._length += 1
        its = self._jobs.get(job)
        if its is None:
            its = self._jobs[job] = _Job(job, self._virtual)
        else:
            self._idle.pop(job, None)
        if front:
            return Place(item, its, cost, self._front, 0.0)
        latest = now + self._lateness + min(self._yields, _YIELDED * cost)
        place = Place(item, its, cost, its.waiting, min(expires_at, latest))
        if its.entry is None:
            its.tag = max(its.tag, self._virtual)
            its.entry = self._order.push(its.tag, its)
        return place

    def peek(self) -> T | None:
        """Return the item whose turn it is, or None where none waits."""
        if self._front:
            place = self._front.first()
        else:
            job = self._order.first()
            place = job.waiting.first() if job is not None else None
        return place.item if place is not None else None

    def pop(self) -> T:
        """Take the item whose turn it is. Raises IndexError where none waits."""
        if self._front:
            place = self._front.pop()
            job = place.job
        else:
            job = self._order.pop()
            place = job.waiting.pop()
            self._virtual = job.tag
        self._length -= 1
        job.tag = max(self._virtual, job.tag) + place.cost
        self._file(job)
        return place.item

    def remove(self, place: Place[T]) -> bool:
        """Take an item out of its turn, at no cost to its job. Returns False where it had already gone."""
        if not place.leave():
            return False
        self._length -= 1
        if not place.job.waiting:
            self._file(place.job)
        return True

    def _file(self, job: _Job[T]) -> None:
        """Give a job whose tag or waiting items changed its new place: in the order, or among the idle."""
        if job.entry is not None:
            self._order.discard(job.entry)
            job.entry = None
        if job.waiting:
            job.entry = self._order.push(job.tag, job)
        else:
            self._idle[job.name] = None
            self._idle.move_to_end(job.name)
            if len(self._idle) > _IDLE_JOBS:
                self._jobs.pop(self._idle.popitem(last=False)[0], None)
