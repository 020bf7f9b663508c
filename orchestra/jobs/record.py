"""What the ledger says of a job and of a line, as plain values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

__all__ = ["End", "JobRecord", "JobState", "LineError", "Result", "Tally"]

JobState = Literal["loading", "open", "ended"]
"""``loading``: its lines are still being added; ``open``: all are in; ``ended``: all have an end."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job. ``created`` and ``deadline`` are unix times.

    ``source`` identifies the file that it was read from, where there was one. ``stopped`` says why it stands
    still, where it was stopped by something other than a person.
    """

    id: int
    name: str
    created: float
    model: str | None
    deadline: float | None
    source: bytes | None
    state: JobState
    stopped: str | None


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of a job's lines, and the tokens that they used so far. ``whole`` says that the last line is in."""

    total: int
    done: int
    failed: int
    input_tokens: int
    output_tokens: int
    whole: bool

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
    """

    number: int
    error: LineError | None = None
    status_code: int | None = None
    request_id: str | None = None
    response: bytes | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    route: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A line that has ended, as the ledger keeps it.

    ``number`` is the line's place in the input, from 1. ``ended`` counts the job's ended lines in the order in
    which they did. ``error_code`` is None where the line was answered.
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
