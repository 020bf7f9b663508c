"""What the rest needs to know about a provider's batch endpoint. One subclass a form, without I/O or state.

A batch's way: its lines are written as the provider wants them and uploaded, where it takes files; the batch is
created, polled until it has ended, and its results are read, by `custom_id`, whatever the end was called.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from orchestra.call import Headers
from orchestra.providers.base import Endpoint, Provider

__all__ = [
    "DAY",
    "Ask",
    "BatchForm",
    "BatchLine",
    "BatchOrder",
    "BatchState",
    "BatchTraits",
    "LineResult",
    "ResultReader",
]

DAY = 86_400.0
_KEY = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class BatchTraits:
    """What a provider's batches can do: the table that the router reads. Times are in seconds.

    ``price_factor`` is what a token costs of its ordinary price. ``windows`` are those that can be asked for, the
    default first; ``hard_expiry``: after so long, or its window where that is longer, it has ended, whatever
    happens (None: nobody says so). ``keeps_finished``: what was answered before it expired or was cancelled is
    told, and paid. ``cancelling`` is how long a cancelled batch takes to end at most. ``carrier`` is where our key
    for a batch travels, by which one is found again whose creation we did not live to record. Where that is its
    uploaded ``file``, it is found by the id of that, which is recorded before the batch is created; where only the
    ``custom_id`` of its lines can carry it, by its results. With ``none`` it is not found: it is created again,
    and both may be paid.

    ``creations`` is how many are handed in at once, ``looks_per_second`` how often the open ones are looked at,
    all together, and ``max_open`` how many may be open for that to be often enough (None: any number).
    """

    endpoints: frozenset[Endpoint]
    max_requests: int
    max_bytes: int
    price_factor: float = 0.5
    windows: tuple[float, ...] = (DAY,)
    hard_expiry: float | None = DAY
    keeps_finished: bool = True
    cancelling: float = 600.0
    carrier: Literal["metadata", "name", "file", "custom_id", "none"] = "metadata"
    idempotent_create: bool = False
    readable_while_running: bool = False
    creations: int = 2
    looks_per_second: float = 4.0
    max_open: int | None = None
    custom_id: re.Pattern[str] = field(default=re.compile(r"[a-zA-Z0-9_-]{1,64}"))


class BatchLine(NamedTuple):
    """One request. ``body`` is compact JSON as the endpoint takes it, with its model where that is in the body."""

    custom_id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """What a batch is to be: one endpoint, one model, one set of headers.

    ``key`` is ours, and unique: letters, digits, ``_`` and ``-``. ``path`` is the endpoint as calls name it below
    a base URL with its root, like ``/v1/chat/completions``. ``headers`` are those of the calls that the provider
    reads (an API version).
    """

    key: str
    path: str
    model: str
    window: float = DAY
    headers: Headers = ()

    def __post_init__(self) -> None:
        if not _KEY.fullmatch(self.key):
            raise ValueError(f"{self.key!r} is no key for a batch")


class Ask(NamedTuple):
    """A request to the batch API. ``path`` is below the account's base URL, with its query."""

    method: str
    path: str
    body: bytes | AsyncIterator[bytes] = b""
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class BatchState:
    """A batch as the provider tells of it.

    ``status`` is its own word. ``ended`` says that nothing more will happen to its lines; a status that we do not
    know has not ended. ``failed`` is the code and message of a batch that was refused as a whole, and
    ``queue_full`` says that this was only for want of room in the provider's queue. ``key`` is ours, as the
    provider tells it; ``input_file`` is what the batch was made of. ``files`` are where its results are, in the
    provider's names. ``created`` and ``expires`` are unix times. ``total`` and ``finished`` count lines where the
    provider does; they are for show, and decide nothing.
    """

    id: str
    status: str
    ended: bool = False
    failed: tuple[str, str] | None = None
    queue_full: bool = False
    key: str | None = None
    input_file: str | None = None
    files: tuple[str, ...] = ()
    created: float | None = None
    expires: float | None = None
    total: int | None = None
    finished: int | None = None


@dataclass(frozen=True, slots=True)
class LineResult:
    """What became of one line.

    - ``answered``: with ``status`` and ``body``, the answer as compact JSON.
    - ``refused``: for what it asks; the same request would be refused again. ``status`` and ``body`` are the
      refusal's where it has any.
    - ``unserved``: it expired, was cancelled, or met a fault of the provider's (a 5xx, a 429). It may be sent
      again.
    """

    custom_id: str
    kind: Literal["answered", "refused", "unserved"]
    status: int | None = None
    body: bytes | None = field(default=None, repr=False)
    request_id: str | None = None
    code: str = ""
    message: str = ""

    @property
    def size(self) -> int:
        """About how much of it is held, in bytes."""
        words = (self.custom_id, self.request_id or "", self.code, self.message)
        return len(self.body or b"") + sum(map(len, words))


class ResultReader(Protocol):
    """Reads results as they come, piece by piece. What is no result is counted in ``unreadable``."""

    unreadable: int

    def feed(self, data: bytes) -> list[LineResult]: ...

    def finish(self) -> list[LineResult]: ...


class BatchForm(ABC):
    """How one provider's batch endpoint is spoken to."""

    traits: ClassVar[BatchTraits]
    dialect: ClassVar[Provider]
    """The provider's wire, for where its endpoints are and what its errors mean."""
    takes_files: ClassVar[bool] = True
    """Whether lines are uploaded as a file before the batch is created; else they are part of its creation."""
    via: ClassVar[str] = "batch"
    """What the ledger calls this way of answering lines."""
    label: ClassVar[str] = "batch"
    """What reports call it, and the settings its price, where an account has several."""
    is_call: ClassVar[bool] = False
    """Whether the creation of one is an ordinary call, of one line, that counts against the ordinary limits; else
    its input takes room in a queue of batches."""

    def takes(self, payload: Mapping[str, Any]) -> bool:
        """Return whether a request can ride at all: batches know no streams."""
        return not payload.get("stream")

    def is_unknown(self, message: str) -> bool:
        """Return whether a creation was refused with ``message`` because it is not to be had here, whatever the
        line."""
        return False

    @abstractmethod
    def line(self, order: BatchOrder, line: BatchLine) -> bytes:
        """Return one line of the file, or of the creation's list, with its newline."""

    def upload(self, order: BatchOrder, content: AsyncIterator[bytes], size: int) -> Ask:
        """Return the request that uploads a file of ``size`` bytes. Only where `takes_files`."""
        raise TypeError(f"{type(self).__name__} takes no files")

    def read_upload(self, body: bytes) -> str:
        """Return the id of the uploaded file. Raises FormatError where there is none. Only where `takes_files`."""
        raise TypeError(f"{type(self).__name__} takes no files")

    @abstractmethod
    def create(self, order: BatchOrder, content: str | AsyncIterator[bytes], size: int = 0) -> Ask:
        """Return the request that creates the batch: of a file's id, or of the lines themselves, as `line` wrote
        them, whole lines a piece, with or without the newline at its end. ``size`` counts all newlines."""

    @abstractmethod
    def poll(self, batch_id: str) -> Ask: ...

    @abstractmethod
    def cancel(self, batch_id: str) -> Ask: ...

    @abstractmethod
    def list(self, cursor: str | None) -> Ask:
        """Return the request for a page of the account's batches, the newest first."""

    @abstractmethod
    def read(self, body: bytes) -> BatchState:
        """Read the answer to `create` or `poll`. Raises FormatError where it is no batch."""

    @abstractmethod
    def read_list(self, body: bytes, cursor: str | None) -> tuple[Sequence[BatchState], str | None]:
        """Read the page of batches that ``cursor`` asked for: those on it, and the cursor of the next page, or
        None after the last. Raises FormatError where it is no list."""

    @abstractmethod
    def results(self, state: BatchState) -> Sequence[Ask]:
        """Return the requests whose answers hold the results of a batch that has ended, whatever its end."""

    @abstractmethod
    def reader(self, ask: Ask) -> ResultReader:
        """Return a reader for the answer to ``ask``, one of these requests."""

    def delete_file(self, file_id: str) -> Ask | None:
        """Return the request that removes an uploaded file that no batch reads."""
        return None

    def endings(self) -> Mapping[str, bool]:
        """Return the statuses that are known, and whether each is an end."""
        return {}
