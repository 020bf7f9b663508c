"""A priority queue whose entries can be taken out anywhere."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

__all__ = ["Entry", "Heap"]

T = TypeVar("T")

Entry = list[Any]
"""A place in a `Heap`, as `Heap.push` returned it: key, serial number, item."""

_GONE = object()
_FEW = 8


class Heap(Generic[T]):
    """Smallest key first, equal keys in the order they came. Push, pop and discard are O(log n), amortised.

    Entries that come in order, as they mostly do, form a run that needs no sifting: O(1). The others go to a heap
    beside it.

    A discarded entry lets go of its item at once; its husk is cleared away when it surfaces, or when husks are
    clearly in the majority, so memory follows the number of live items.
    """

    __slots__ = ("_heap", "_live", "_run", "_serial")

    def __init__(self) -> None:
        self._run: deque[Entry] = deque()
        self._heap: list[Entry] = []
        self._live = 0
        self._serial = 0

    def __len__(self) -> int:
        return self._live

    def push(self, key: float, item: T) -> Entry:
        """Add ``item``; the entry returned is what `discard` takes."""
        self._serial += 1
        self._live += 1
        entry: Entry = [key, self._serial, item]
        if not self._run or key >= self._run[-1][0]:
            self._run.append(entry)
        else:
            heappush(self._heap, entry)
        return entry

    def first(self) -> T | None:
        """Return the item with the smallest key, or None where there is none."""
        entry = self._first()
        return entry[2] if entry is not None else None

    def pop(self) -> T:
        """Take the item with the smallest key. Raises IndexError where there is none."""
        entry = self._first()
        if entry is None:
            raise IndexError("pop from an empty heap")
        item: T = entry[2]
        self.discard(entry)
        return item

    def discard(self, entry: Entry) -> bool:
        """Take an entry out. Returns False where it had already gone."""
        if entry[2] is _GONE:
            return False
        entry[2] = _GONE
        self._live -= 1
        if len(self._run) + len(self._heap) > 2 * self._live + _FEW:
            self._run = deque(entry for entry in self._run if entry[2] is not _GONE)
            self._heap = [entry for entry in self._heap if entry[2] is not _GONE]
            heapify(self._heap)
        return True

    def _first(self) -> Entry | None:
        run, heap = self._run, self._heap
        while run and run[0][2] is _GONE:
            run.popleft()
        while heap and heap[0][2] is _GONE:
            heappop(heap)
        if heap and (not run or heap[0] < run[0]):
            return heap[0]
        return run[0] if run else None
