"""What the batch endpoints of both wires have in common: whose a batch is, how it goes, what its lines cost."""

from __future__ import annotations

import math
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from orchestra.testing.batch_life import BatchLife, Stage
from orchestra.testing.batch_script import BatchLimits, BatchScript
from orchestra.testing.bills import Bills
from orchestra.testing.script import Hit, Reply

__all__ = ["Batch", "BatchEndpoint", "Desk", "Line", "Outcome", "taken"]


class Line(NamedTuple):
    """One request of a batch."""

    custom_id: str
    payload: Mapping[str, Any]


class Outcome(NamedTuple):
    """What became of a line: ``answered``, ``expired`` or ``cancelled``. ``status`` and ``body`` are its answer's;
    0 and None where it has none."""

    custom_id: str
    kind: str
    status: int = 0
    body: Any = None


@dataclass(slots=True)
class Batch:
    """A batch, whose lines are read again when they are needed. ``facts`` is what only its wire wants to know."""

    id: str
    account: str
    endpoint: str
    life: BatchLife
    lines: Callable[[], Iterable[Line]]
    facts: Mapping[str, Any]
    tokens: int = 0
    problems: list[dict[str, Any]] = field(default_factory=list)
    settled: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    polls: deque[Reply] = field(init=False)
    reads: deque[Reply] = field(init=False)

    def __post_init__(self) -> None:
        self.polls, self.reads = deque(self.script.on_poll), deque(self.script.on_results)

    @property
    def script(self) -> BatchScript:
        return self.life.script


@dataclass(slots=True)
class Desk:
    """What a provider's batch endpoints share. ``answer`` is the usual answer of an endpoint to a body."""

    answer: Callable[[str, Mapping[str, Any]], Any]
    origin: Callable[[], str]
    clock: Callable[[], float]
    script: deque[BatchScript] = field(default_factory=deque)
    default: BatchScript = field(default_factory=BatchScript)
    limits: BatchLimits = field(default_factory=BatchLimits)
    file_delay: float = 0.0
    bills: Bills = field(default_factory=Bills)
    lock: threading.RLock = field(default_factory=threading.RLock)
    epoch: float = field(init=False)

    def __post_init__(self) -> None:
        self.epoch = time.time() - self.clock()


class BatchEndpoint(ABC):
    """The batches of one wire."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._batches: dict[str, Batch] = {}
        self._creations: dict[str, deque[float]] = {}

    @abstractmethod
    def answer(self, hit: Hit, account: str) -> Reply:
        """Answer a request of ``account`` to one of our paths."""

    @abstractmethod
    def _finish(self, batch: Batch, stage: Stage, outcomes: Iterable[Outcome]) -> Mapping[str, int]:
        """Write the results of a batch that has ended. Return the counts that are told of it."""

    def settle(self) -> None:
        """Bring every batch to where it stands now: what has ended is paid for, and its results exist."""
        now = self.desk.clock()
        for batch in self._batches.values():
            if not batch.settled and (stage := batch.life.stage(now)).ended:
                batch.settled = True
                batch.counts = self._finish(batch, stage, self._outcomes(batch, stage))

    def _next_script(self) -> BatchScript:
        return self.desk.script.popleft() if self.desk.script else self.desk.default

    def _add(self, batch: Batch) -> None:
        self._batches[batch.id] = batch

    def _find(self, batch_id: str, account: str) -> Batch | None:
        """Return the batch, or None where this account sees none of that id."""
        batch = self._batches.get(batch_id)
        return batch if batch is not None and self._seen(batch, account) else None

    def _seen_by(self, account: str) -> list[Batch]:
        """Return all that this account sees, the newest first."""
        return [batch for batch in reversed(self._batches.values()) if self._seen(batch, account)]

    def _seen(self, batch: Batch, account: str) -> bool:
        age = self.desk.clock() - batch.life.created_at
        return batch.account == account and age < batch.script.vanishes_after

    @staticmethod
    def _page_size(hit: Hit, most: int) -> int | None:
        """Return how many objects a list is asked for, or None where that is not from 1 to ``most``."""
        told = hit.query.get("limit", "20")
        return int(told) if told.isdecimal() and 1 <= int(told) <= most else None

    def _open(self, account: str) -> list[Batch]:
        now = self.desk.clock()
        mine = (batch for batch in self._batches.values() if batch.account == account)
        return [batch for batch in mine if not batch.life.stage(now).ended]

    def _creation_wait(self, account: str) -> float:
        """Count one creation. Returns the seconds until it is allowed: 0 where it is, and only then it counts."""
        limit = self.desk.limits.creations_per_hour
        now = self.desk.clock()
        made = self._creations.setdefault(account, deque())
        while made and made[0] <= now - 3600:
            made.popleft()
        if limit is not None and len(made) >= limit:
            return made[0] + 3600 - now if made else math.inf
        made.append(now)
        return 0.0

    def _outcomes(self, batch: Batch, stage: Stage) -> Iterable[Outcome]:
        script = batch.script
        if not script.strangers and script.shuffle is None:
            return self._in_order(batch, stage)
        mixed = list(self._in_order(batch, stage))
        for name in script.strangers:
            body = self.desk.answer(batch.endpoint, {"model": batch.facts.get("model")})
            mixed.append(Outcome(name, "answered", 200, body))
        if script.shuffle is not None:
            random.Random(script.shuffle).shuffle(mixed)
        return mixed

    def _in_order(self, batch: Batch, stage: Stage) -> Iterator[Outcome]:
        script = batch.script
        for index, line in enumerate(batch.lines()):
            if index in script.missing or line.custom_id in script.missing:
                continue
            if index < stage.answered:
                outcome = self._answered(batch, index, line)
            elif stage.status == "failed":
                outcome = Outcome(line.custom_id, "answered", 500, self._failure(script))
            elif stage.status in ("expired", "cancelled"):
                outcome = Outcome(line.custom_id, stage.status)
            else:
                return
            yield outcome
            if index in script.doubled or line.custom_id in script.doubled:
                yield outcome

    def _answered(self, batch: Batch, index: int, line: Line) -> Outcome:
        reply = self._reply_to(batch, index, line)
        body = self.desk.answer(batch.endpoint, line.payload) if reply.body is None else reply.body
        if reply.status < 400:
            self.desk.bills.add_line(line.custom_id, line.payload)
        return Outcome(line.custom_id, "answered", reply.status, body)

    def _reply_to(self, batch: Batch, index: int, line: Line) -> Reply:
        replies = batch.script.replies
        return replies.get(line.custom_id) or replies.get(index) or Reply()

    @staticmethod
    def _failure(script: BatchScript) -> Any:
        return {"error": {"message": script.message, "type": "server_error", "param": None, "code": script.code}}


def taken(scripted: Reply | None, usual: Reply) -> Reply:
    """Return what is answered where ``scripted`` stands in the script: itself, or the usual in its manner."""
    if scripted is None:
        return usual
    if scripted.status != 200 or scripted.body is not None:
        return scripted
    headers = {**usual.headers, **scripted.headers}
    return replace(usual, headers=headers, delay=scripted.delay, drop=scripted.drop, cut_after=scripted.cut_after)
