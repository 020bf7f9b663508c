"""Deals a job's lines out: each goes by itself, or rides in a batch."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from orchestra.batches import BatchRoute
from orchestra.jobs.ledger.line import Line
from orchestra.jobs.ledger.record import BatchRecord, Dealt, JobRecord
from orchestra.jobs.ledger.store import JobStore
from orchestra.policies.batch_rhythm import Grouping

__all__ = ["Dealer", "Dealing", "Ride", "Way"]

_PAGE_LINES = 1000
_PAGE_BYTES = 4 << 20
_AROUND = 250
"""Bytes that a line may grow by: its id, its endpoint, and a longer name of its model."""
_BYTES_PER_TOKEN = 4
_SHARE_OF_QUEUE = 0.5
"""What of an account's queue a batch takes at most, so that one can be handed in while another is worked on."""
_PERIODS = 3
"""Lines ride together whose times up to their deadlines differ by a quarter at most: so many steps a doubling."""


class Ride(NamedTuple):
    """Where a line rides to, in a batch that is to end within ``window`` seconds, to be back by ``deadline``."""

    route: BatchRoute
    window: float
    deadline: float


class Way(enum.Enum):
    """What a line does that rides nowhere: it goes by itself, or it is decided about later."""

    ALONE = enum.auto()
    LATER = enum.auto()


Choose = Callable[[Line, Mapping[str, Any]], Ride | Way]
"""Says where a line rides to, by its payload."""


class Dealing(NamedTuple):
    """What became of a page, which ended with line number ``last``: batches that are full, and whether lines were
    let go by themselves."""

    last: int
    sealed: list[BatchRecord]
    alone: bool


class _Filling:
    """A batch that is being filled: what is in the ledger, and what is about to be."""

    def __init__(self, record: BatchRecord, grouping: Grouping) -> None:
        self.record = record
        self.grouping = grouping
        self.all_tokens = 0
        self.usd = 0.0
        self.written()

    def add(self, number: int, size: int, tokens: int, usd: float, now: float) -> None:
        self.grouping.add(now, size)
        self.numbers.append(number)
        self.bytes += size
        self.tokens += tokens
        self.all_tokens += tokens
        self.usd += usd

    def written(self) -> None:
        """Note that all is in the ledger."""
        self.numbers: list[int] = []
        self.bytes = self.tokens = 0


class Dealer:
    """Deals the lines of one job. All methods block, and are called by one thread at a time.

    ``wall`` is unix time.
    """

    def __init__(self, store: JobStore, job: JobRecord, *, choose: Choose, wall: Callable[[], float]) -> None:
        self._store = store
        self._job = job
        self._choose = choose
        self._wall = wall
        self._fillings: dict[tuple[object, ...], _Filling] = {}

    def deal(self, after: int) -> Dealing | None:
        """Deal a page of lines after number ``after`` that nobody has decided about. None where there are none."""
        lines = self._store.pending(self._job.id, after, outlet=None, max_lines=_PAGE_LINES, max_bytes=_PAGE_BYTES)
        if not lines:
            return None
        alone: list[int] = []
        sealed: list[BatchRecord] = []
        for line in lines:
            payload = json.loads(line.body)
            way = self._choose(line, payload)
            size = len(line.body) + _AROUND
            if way is Way.LATER:
                continue
            if isinstance(way, Way):
                alone.append(line.number)
                continue
            queue = way.route.queue
            # most accounts count none, and then the size is as good an estimate as any, and comes for nothing
            tokens = len(line.body) // _BYTES_PER_TOKEN if math.isinf(queue) else way.route.tokens_of(payload)
            # a price that nobody knows is a matter of handing it in
            usd = (way.route.expected_usd(payload) or 0.0) if way.route.is_capped else 0.0
            if size > way.route.max_bytes or tokens > queue or usd > way.route.cap:
                alone.append(line.number)
            elif (full := self._put(line, way, size, tokens, usd)) is not None:
                sealed.append(full)
        self._write(alone)
        return Dealing(lines[-1].number, sealed, bool(alone))

    def seal(self, *, due_by: float | None = None) -> list[BatchRecord]:
        """Close the batches that have been filled long enough by ``due_by``, or all, and return them."""
        due = [
            key for key, filling in self._fillings.items() if due_by is None or filling.grouping.due_at() <= due_by
        ]
        return [self._seal(key) for key in due]

    @property
    def riding(self) -> int:
        """How many lines are in batches that are being filled."""
        return sum(filling.grouping.count for filling in self._fillings.values())

    def due_at(self) -> float | None:
        """Return when the next batch is to be closed; None where none is being filled."""
        return min((filling.grouping.due_at() for filling in self._fillings.values()), default=None)

    def _put(self, line: Line, ride: Ride, size: int, tokens: int, usd: float) -> BatchRecord | None:
        """Put a line into the batch of its kind. Returns the one that had no room for it."""
        route = ride.route
        key = (*route.group, _period(ride.deadline, self._wall()))
        sealed = None
        filling = self._fillings.get(key)
        if filling is not None and not _has_room(filling, route, size, tokens, usd):
            sealed = self._seal(key)
            filling = None
        if filling is None:
            filling = self._fillings[key] = self._open(route, ride.window)
        filling.add(line.number, size, tokens, usd, self._wall())
        return sealed

    def _open(self, route: BatchRoute, window: float) -> _Filling:
        record = self._store.batches.open(
            self._job.id,
            provider=route.account.name,
            account=route.fingerprint,
            origin=route.account.place,
            route=route.name,
            model=route.model,
            path=route.path,
            headers=route.headers,
            window=window,
            now=self._wall(),
        )
        config = route.config
        grouping = Grouping(
            window=config.window_seconds,
            window_max=config.window_max_seconds,
            max_requests=route.max_requests,
            max_bytes=route.max_bytes,
        )
        return _Filling(record, grouping)

    def _seal(self, key: tuple[object, ...]) -> BatchRecord:
        self._write([])
        filling = self._fillings.pop(key)
        return self._store.batches.seal(filling.record.id)

    def _write(self, alone: list[int]) -> None:
        """Record who goes where."""
        dealt = {
            filling.record.id: Dealt(filling.numbers, filling.bytes, filling.tokens)
            for filling in self._fillings.values()
            if filling.numbers
        }
        if alone:
            dealt[0] = Dealt(alone)
        if dealt:
            self._store.batches.deal(self._job.id, dealt)
        for filling in self._fillings.values():
            filling.written()


def _has_room(filling: _Filling, route: BatchRoute, size: int, tokens: int, usd: float) -> bool:
    return (
        filling.grouping.fits(size)
        and filling.all_tokens + tokens <= _SHARE_OF_QUEUE * route.queue
        and filling.usd + usd <= route.cap_share
    )


def _period(deadline: float, now: float) -> int:
    """Return the same for deadlines that are about as far away: their lines may leave a batch together."""
    return round(_PERIODS * math.log2(max(1.0, deadline - now)))
