"""What a `ScriptedProvider` is told to answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Hit", "Reply", "StreamScript"]


@dataclass(frozen=True, slots=True)
class StreamScript:
    """How a streamed answer goes: a chunk for each of ``chunks``, ``gap`` seconds apart, then its end.

    ``drop_after=k`` closes the connection after k chunks, ``error_after=k`` sends ``error`` as an event instead of
    the rest. ``usage`` sends the chunk with the usage (None: when the request asks for it); ``done`` sends the
    last line, ``[DONE]``.
    """

    chunks: Sequence[str] = ("Hello", ", ", "world", ".")
    gap: float = 0.0
    drop_after: int | None = None
    error_after: int | None = None
    error: Mapping[str, Any] = field(
        default_factory=lambda: {
            "message": "the server broke",
            "type": "server_error",
            "param": None,
            "code": None,
        }
    )
    usage: bool | None = None
    done: bool = True


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, given after ``delay`` seconds.

    ``body`` is sent as it is (bytes, str) or as JSON; None is the endpoint's default answer, with usage, or, where
    the request streams, ``stream``. ``drop`` closes the connection without an answer.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    delay: float = 0.0
    stream: StreamScript = StreamScript()
    drop: bool = False

    @classmethod
    def error(
        cls,
        status: int,
        code: str | None = None,
        *,
        kind: str = "server_error",
        message: str = "scripted",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Return an answer in OpenAI's error form."""
        error = {"message": message, "type": kind, "param": None, "code": code}
        return cls(status, headers or {}, {"error": error})


@dataclass(slots=True)
class Hit:
    """One request as it arrived. ``at`` is on the monotonic clock; ``in_flight`` counts itself.

    ``completed`` turns True when the whole answer has been written; it stays False for a client that went away.
    """

    at: float
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    in_flight: int
    status: int | None = None
    completed: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)
