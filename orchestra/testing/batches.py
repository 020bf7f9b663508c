"""What the batch endpoints of all wires have in common: whose a batch is, how it goes, what its lines cost."""

from __future__ import annotations

import math
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from orchestra.testing.batch_faults import BatchFaults, Mishaps
from orchestra.testing.batch_life import BatchLife, Stage
from orchestra.testing.batch_script import BatchLimits, BatchScript
from orchestra.testing.bills import Bills
from orchestra.testing.content import Content
from orchestra.testing.encoding import compact
from orchestra.testing.file_store import FileStore
from orchestra.testing.roll import Roll
from orchestra.testing.script import Hit, Reply

__all__ = ["Batch", "BatchEndpoint", "Desk", "Outcome", "taken"]


class Outcome(NamedTuple):
    """What became of a line: ``answered``, ``failed``, ``expired`` or ``cancelled``. ``status`` and ``body``, as
    JSON, are its answer's, where it has one."""

    custom_id: str
    kind: str
    status: int = 0
    body: str = ""


@dataclass(slots=True)
class Batch:
    """A batch. ``facts`` is what only its wire wants to know; ``wrong`` are the answers of lines that cannot be
    served, by their positions. ``ending`` is where it stood in the end, and ``counts`` tell how many lines ended
    as what."""

    id: str
    account: str
    endpoint: str
    life: BatchLife
    roll: Roll
    facts: dict[str, Any]
    problems: list[dict[str, Any]] = field(default_factory=list)
    wrong: Mapping[int, Reply] = field(default_factory=dict)
    ending: Stage | None = None
    counts: Counter[str] = field(default_factory=Counter)
    polls: deque[Reply] = field(init=False)
    reads: deque[Reply] = field(init=False)
    replies: Mapping[int, Reply] = field(init=False)
    missing: frozenset[int] = field(init=False)
    doubled: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        script = self.script
        self.polls, self.reads = deque(script.on_poll), deque(script.on_results)
        named = {self._position(name): reply for name, reply in script.replies.items()}
        self.replies = {**named, **self.wrong}
        self.missing = frozenset(self._position(name) for name in script.missing)
        self.doubled = frozenset(self._position(name) for name in script.doubled)

    @property
    def script(self) -> BatchScript:
        return self.life.script

    @property
    def tokens(self) -> int:
        """The prompt tokens of all lines."""
        return sum(self.roll.prompts)

    def fates(self, stage: Stage) -> Iterator[tuple[int, str]]:
        """Yield what is told of the lines of a batch that ended there, in order: their positions, each with its
        `Outcome`'s kind. Lines that nobody asked for have positions below 0."""
        told = self._in_order(stage)
        script = self.script
        if not script.strangers and script.shuffle is None:
            return told
        mixed = [*told, *((-1 - number, "answered") for number in range(len(script.strangers)))]
        if script.shuffle is not None:
            random.Random(script.shuffle).shuffle(mixed)
        return iter(mixed)

    def failed_before(self, position: int) -> set[int]:
        """Return which lines before this position are answered with an error."""
        return {one for one, reply in self.replies.items() if 0 <= one < position and reply.status >= 400}

    def _in_order(self, stage: Stage) -> Iterator[tuple[int, str]]:
        later = {"failed": "failed", "expired": "expired", "cancelled": "cancelled"}.get(stage.status)
        failed = self.failed_before(stage.answered)
        for position in range(len(self.roll) if later else stage.answered):
            if position in self.missing:
                continue
            answered = "failed" if position in failed else "answered"
            fate = position, answered if position < stage.answered else str(later)
            yield fate
            if position in self.doubled:
                yield fate

    def _position(self, name: int | str) -> int:
        return name if isinstance(name, int) else self.roll.positions.get(name, -1)


@dataclass(slots=True)
class Desk:
    """What a provider's batch endpoints share.

    ``count`` returns the tokens of a request's prompt and of its usual answer; ``answer`` that answer, as JSON, of
    a path, a body, and the tokens of its prompt; ``serves`` whether there is such an endpoint.
    """

    count: Callable[[Mapping[str, Any]], tuple[int, int]]
    answer: Callable[[str, Mapping[str, Any], int], str]
    serves: Callable[[str], bool]
    origin: Callable[[], str]
    clock: Callable[[], float]
    script: deque[BatchScript] = field(default_factory=deque)
    default: BatchScript = field(default_factory=BatchScript)
    limits: BatchLimits = field(default_factory=BatchLimits)
    file_delay: float = 0.0
    files: FileStore = field(default_factory=FileStore)
    bills: Bills = field(default_factory=Bills)
    mishaps: Mishaps = field(default_factory=lambda: Mishaps(BatchFaults()))
    lock: threading.RLock = field(default_factory=threading.RLock)
    epoch: float = field(init=False)

    def __post_init__(self) -> None:
        self.epoch = time.time() - self.clock()

    def next_script(self) -> BatchScript:
        return self.script.popleft() if self.script else self.default

    def unix(self, instant: float | None) -> int | None:
        return None if instant is None else int(self.epoch + instant)

    def iso(self, instant: float | None) -> str | None:
        if instant is None:
            return None
        return datetime.fromtimestamp(self.epoch + instant, UTC).isoformat().replace("+00:00", "Z")


class BatchEndpoint(ABC):
    """The batches of one wire."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.created = self.lines = 0
        self._batches: dict[str, Batch] = {}
        self._open: dict[str, Batch] = {}
        self._creations: dict[str, deque[float]] = {}

    @staticmethod
    @abstractmethod
    def serves(path: str) -> bool:
        """Return whether a path is one of ours."""

    @abstractmethod
    async def answer(self, hit: Hit, body: Content, account: str) -> Reply:
        """Answer a request of ``account`` to one of our paths."""

    def _finish(self, batch: Batch, stage: Stage) -> None:  # noqa: B027 - most have nothing to do
        """Do what is to be done when a batch has ended."""

    def settle(self) -> None:
        """Bring every batch to where it stands now: what has ended is paid for, and its results exist."""
        with self.desk.lock:
            for batch in list(self._open.values()):
                self._stage(batch)

    def clear(self) -> None:
        """Forget every batch."""
        with self.desk.lock:
            self.created = self.lines = 0
            for kept in (self._batches, self._open, self._creations):
                kept.clear()

    def _end(self, batch: Batch, stage: Stage) -> None:
        batch.ending = stage
        batch.counts = Counter(kind for _, kind in batch.fates(stage))
        gone = {position for position in batch.missing if 0 <= position < stage.answered}
        self.desk.bills.add_lines(batch.roll, stage.answered, gone | batch.failed_before(stage.answered))
        self._finish(batch, stage)

    def _add(self, batch: Batch, usual: Callable[[Batch, Stage], Any]) -> Reply:
        """Keep a batch from now on. Returns what its creation is answered: ``usual`` of where it stands."""
        with self.desk.lock:
            self._batches[batch.id] = self._open[batch.id] = batch
            self.created += 1
            self.lines += len(batch.roll)
        reply = Reply(body=usual(batch, batch.life.created))
        scripted = batch.script.on_create
        return self.desk.mishaps.creation(reply) if scripted is None else taken(scripted, reply)

    def _polled(self, batch: Batch, usual: Any) -> Reply:
        """Return what a poll is answered whose usual answer is this."""
        reply = Reply(body=usual)
        return taken(batch.polls.popleft(), reply) if batch.polls else self.desk.mishaps.poll(reply)

    def _cancelled(self, batch: Batch) -> bool:
        """Cancel a batch. Returns whether that was in time."""
        now = self.desk.clock()
        if self._stage(batch).ended:
            return False
        batch.life = batch.life.cancel(now)
        return True

    def _stage(self, batch: Batch) -> Stage:
        """Return where a batch stands now. Its end happens when it is first found out."""
        stage = batch.life.stage(self.desk.clock())
        if stage.ended and batch.ending is None:
            with self.desk.lock:
                if self._open.pop(batch.id, None) is not None:
                    self._end(batch, stage)
        return stage

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
    def _page_size(told: str, most: int) -> int | None:
        """Return how many objects a list is asked for, or None where that is not from 1 to ``most``."""
        return int(told) if told.isdecimal() and 1 <= int(told) <= most else None

    def _open_of(self, account: str) -> list[Batch]:
        self.settle()
        return [batch for batch in self._open.values() if batch.account == account]

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

    def _outcomes(self, batch: Batch, kinds: Collection[str]) -> Iterator[Outcome]:
        """Yield what became of the lines that ended as one of ``kinds``."""
        assert batch.ending is not None
        read = batch.roll.reader()
        for position, kind in batch.fates(batch.ending):
            if kind in kinds:
                yield (
                    self._outcome(batch, position, kind, read) if position >= 0 else self._strange(batch, position)
                )

    def _outcome(self, batch: Batch, position: int, kind: str, read: Callable[[int], Any]) -> Outcome:
        line = read(position)
        if kind in ("expired", "cancelled"):
            return Outcome(line.custom_id, kind)
        reply = batch.replies.get(position)
        if batch.ending is not None and position >= batch.ending.answered:
            return Outcome(line.custom_id, kind, 500, compact(self._failure(batch.script)))
        if reply is not None and reply.body is not None:
            return Outcome(line.custom_id, kind, reply.status, compact(reply.body))
        body = self.desk.answer(batch.endpoint, line.payload, batch.roll.prompts[position])
        return Outcome(line.custom_id, kind, 200 if reply is None else reply.status, body)

    def _strange(self, batch: Batch, position: int) -> Outcome:
        body = self.desk.answer(batch.endpoint, {"model": batch.facts.get("model")}, 1)
        return Outcome(batch.script.strangers[-1 - position], "answered", 200, body)

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
