"""What the ledger says of a job and of a line, as plain values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from orchestra.call import Headers

__all__ = [
    "AwaitedLine",
    "BatchRecord",
    "BatchStage",
    "Dealt",
    "End",
    "JobKind",
    "JobRecord",
    "JobState",
    "LineError",
    "OutletTally",
    "Result",
    "Tally",
]

JobState = Literal["loading", "open", "ended"]
"""``loading``: its lines are still being added; ``open``: all are in; ``ended``: all have an end."""

JobKind = Literal["submitted", "awaited"]
"""``submitted``: its lines are its input; ``awaited``: they are the calls that a program waits for."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job. ``created`` and ``deadline`` are unix times.

    ``source`` identifies the file that it was read from, where there was one. ``stopped`` says why it stands
    still, where it was stopped by something other than a person. ``tag`` is random, and names the job in what
    providers are told.
    """

    id: int
    name: str
    created: float
    model: str | None
    deadline: float | None
    source: bytes | None
    state: JobState
    stopped: str | None
    tag: str
    kind: JobKind


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of a job's lines, and what they used so far.

    ``whole`` says that the last line is in. Until then ``total`` counts those that are, or those that there are
    going to be where that is known.

    ``usd`` is what is known of the cost; ``unpriced`` counts answered lines of whose cost nothing is known.
    """

    total: int
    done: int
    failed: int
    input_tokens: int
    output_tokens: int
    whole: bool
    usd: float
    unpriced: int

    @property
    def ended(self) -> int:
        return self.done + self.failed

    @property
    def pending(self) -> int:
        return self.total - self.ended


class LineError(NamedTuple):
    """Why a line failed: a word for programs and a sentence for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class End:
    """How a line ended: answered where ``error`` is None, failed otherwise.

    ``response`` is the answer's body as compact JSON. A failed line has one too where the provider gave it.
    ``via`` is the way that it went (``sync``, ``batch``, ``background``, ``local``), or None where it went none.
    ``usd`` is what it cost, or None where nobody knows.
    """

    number: int
    error: LineError | None = None
    status_code: int | None = None
    request_id: str | None = None
    response: bytes | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    route: str | None = None
    via: str | None = "sync"
    usd: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A line that has ended, as the ledger keeps it.

    ``number`` is the line's place in the input, from 1. ``ended`` counts the job's ended lines in the order in
    which they did. ``error_code`` is None where the line was answered. ``via`` and ``usd`` are as in `End`.
    """

    number: int
    custom_id: str
    status_code: int | None
    request_id: str | None
    response: bytes | None
    error_code: str | None
    error_message: str | None
    input_tokens: int
    output_tokens: int
    route: str | None
    attempts: int
    ended: int
    via: str | None
    usd: float | None

    @property
    def ok(self) -> bool:
        """Whether the line was answered."""
        return self.error_code is None

    @property
    def error(self) -> LineError | None:
        """Why the line failed, or None where it was answered."""
        return None if self.error_code is None else LineError(self.error_code, self.error_message or "")

    @property
    def body(self) -> Any:
        """The answer's body as parsed JSON, or None where there is none."""
        return None if self.response is None else json.loads(self.response)


@dataclass(frozen=True, slots=True)
class OutletTally:
    """What one way of answering did for a job. ``route`` is None where the lines got no further than to us."""

    route: str | None
    via: str
    lines: int
    failed: int
    input_tokens: int
    output_tokens: int
    usd: float
    unpriced: int


BatchStage = Literal["open", "sealed", "uploaded", "creating", "submitted", "ended", "abandoned"]
"""How far a batch is.

- ``open``: lines may still be dealt to it; ``sealed``: no more are.
- ``uploaded``: the provider has its file.
- ``creating``: the provider was, or is about to be, asked to create it; nobody recorded what came of it.
- ``submitted``: the provider has it; ``ended``: it is over, and its results are in the ledger.
- ``abandoned``: we wait for it no longer.
"""


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch of lines of a job. Times are unix times; ``window`` is in seconds.

    ``key`` is ours, random and unique, by which the batch is found at the provider; ``batch_id`` and ``file_id``
    are the provider's own names. ``provider`` is the configured name, ``account`` the fingerprint of the key and
    ``origin`` the base URL, None where nobody noted it. ``model`` is as the provider calls it. ``status`` and
    ``finished`` are what the provider said last. ``lines``, ``bytes`` and ``tokens`` count what was dealt to it;
    of its lines ``riding`` still ride in it without an end, and ``released`` left it without one. ``note`` says
    why it was abandoned.
    """

    id: int
    job: int
    key: str
    provider: str
    account: str
    route: str
    model: str
    path: str
    headers: Headers
    window: float
    state: BatchStage
    opened: float
    creating_at: float | None
    submitted_at: float | None
    ended_at: float | None
    file_id: str | None
    batch_id: str | None
    status: str | None
    expires: float | None
    lines: int
    bytes: int
    tokens: int
    riding: int
    released: int
    finished: int | None
    note: str | None
    origin: str | None = None

    @property
    def outlet(self) -> str:
        """Under which the duration of such batches is kept."""
        return f"{self.route}|{self.path}"


@dataclass(frozen=True, slots=True)
class Dealt:
    """Numbers of lines that one outlet gets, and what they come to, which is kept of batches only."""

    numbers: Sequence[int]
    bytes: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class AwaitedLine:
    """A call of an awaited job: the ``nth`` asking of its request, from 1. ``result`` is None until it ends."""

    number: int
    nth: int
    result: Result | None
