"""What a `ScriptedProvider` was paid for: whether anything was paid twice is what a test wants to know."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from orchestra.testing.encoding import canonical

if TYPE_CHECKING:
    from orchestra.testing.roll import Roll

__all__ = ["Bill", "Bills", "ask_hash", "request_key"]

# how an answer is wanted, or at which price: not what is asked
_MANNER = frozenset(
    {"stream", "stream_options", "service_tier", "serviceTier", "background", "background_options", "store"}
)


@dataclass(frozen=True, slots=True)
class Bill:
    """How often something was answered and paid: at the full price, and at those of batches and of the
    background."""

    sync: int = 0
    batch: int = 0
    background: int = 0

    @property
    def total(self) -> int:
        return self.sync + self.batch + self.background


@dataclass(frozen=True, slots=True)
class _Run:
    """The answered lines of a batch: the first ``until``, but for a few."""

    roll: Roll
    until: int
    unpaid: Collection[int]

    @property
    def count(self) -> int:
        return self.until - len(self.unpaid)

    def positions(self) -> Iterator[int]:
        return (position for position in range(self.until) if position not in self.unpaid)

    def paid(self, hashes: array[int]) -> Iterable[int]:
        if not self.unpaid:
            return hashes[: self.until]
        return (hashes[position] for position in self.positions())


class Bills:
    """Every answer that a provider was paid for. Errors cost nothing, nor do lines of a batch without an answer.

    Requests are told apart by what they ask (`request_key`); the lines of batches by their custom ids as well.
    Of a line no more is kept than the hashes of the two, in its batch: a million take few megabytes.
    """

    def __init__(self) -> None:
        self._calls: dict[int, tuple[str, Bill]] = {}
        self._runs: list[_Run] = []
        self._all = Bill()

    def add_call(self, payload: Mapping[str, Any], price: Literal["sync", "background"] = "sync") -> None:
        """Note an answer at the full price, or at that of the background."""
        asked = ask_hash(payload)
        key, bill = self._calls.get(asked) or (request_key(payload), Bill())
        self._calls[asked] = key, _one_more(bill, price)
        self._all = _one_more(self._all, price)

    def add_lines(self, roll: Roll, until: int, unpaid: Collection[int]) -> None:
        """Note the answered lines of a batch: the first ``until``, without those in ``unpaid``."""
        run = _Run(roll, until, unpaid)
        self._runs.append(run)
        self._all = replace(self._all, batch=self._all.batch + run.count)

    @property
    def all(self) -> Bill:
        """All answers."""
        return self._all

    def of(self, payload: Mapping[str, Any]) -> Bill:
        """Return how often the request was answered whose body this is."""
        asked = ask_hash(payload)
        _, bill = self._calls.get(asked, ("", Bill()))
        return replace(bill, batch=self._count(asked, lambda roll: roll.asks))

    def of_id(self, custom_id: str) -> int:
        """Return how often a line of this custom id was answered in batches."""
        return self._count(hash(custom_id), lambda roll: roll.ids)

    def ids_paid_twice(self) -> dict[str, int]:
        """Return the custom ids of batches that were answered more than once, and how often."""
        found: dict[int, tuple[str, int]] = {}
        for run, position, hashed in self._lines_of(self._repeated(lambda roll: roll.ids), lambda roll: roll.ids):
            name, count = found.get(hashed) or (run.roll.line(position).custom_id, 0)
            found[hashed] = name, count + 1
        return dict(found.values())

    def requests_paid_twice(self) -> dict[str, Bill]:
        """Return the requests that were answered more than once, at whatever price, by their `request_key`."""
        found = {asked: told for asked, told in self._calls.items() if told[1].total > 1}
        repeated = self._repeated(lambda roll: roll.asks, self._calls)
        for run, position, asked in self._lines_of(repeated, lambda roll: roll.asks):
            told = found.get(asked) or self._calls.get(asked)
            key, bill = told or (request_key(run.roll.line(position).payload), Bill())
            found[asked] = key, replace(bill, batch=bill.batch + 1)
        return dict(found.values())

    def _count(self, wanted: int, hashes: Callable[[Roll], array[int]]) -> int:
        return sum(1 for run in self._runs for hashed in run.paid(hashes(run.roll)) if hashed == wanted)

    def _repeated(self, hashes: Callable[[Roll], array[int]], known: Iterable[int] = ()) -> set[int]:
        """Return the hashes of lines that there are more of than one, those in ``known`` counted in."""
        every = array("q", known)
        for run in self._runs:
            every.extend(run.paid(hashes(run.roll)))
        return {one for one, other in pairwise(sorted(every)) if one == other}

    def _lines_of(self, wanted: set[int], hashes: Callable[[Roll], array[int]]) -> Iterator[tuple[_Run, int, int]]:
        """Yield every paid line whose hash is wanted: its run, its position and that hash."""
        for run in self._runs if wanted else ():
            told = hashes(run.roll)
            for position in run.positions():
                if told[position] in wanted:
                    yield run, position, told[position]


def ask_hash(payload: Mapping[str, Any]) -> int:
    """Return 64 bits that tell requests apart by what they ask, within this process."""
    return hash(canonical(_asked(payload)))


def request_key(payload: Mapping[str, Any]) -> str:
    """Return a short hash of what a request asks: its body without ``stream``, ``service_tier`` and whatever else
    says only how its answer is wanted."""
    return hashlib.sha256(canonical(_asked(payload)).encode()).hexdigest()[:24]


def _asked(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    if _MANNER.isdisjoint(payload):
        return payload
    return {name: value for name, value in payload.items() if name not in _MANNER}


def _one_more(bill: Bill, price: Literal["sync", "background"]) -> Bill:
    if price == "sync":
        return replace(bill, sync=bill.sync + 1)
    return replace(bill, background=bill.background + 1)
