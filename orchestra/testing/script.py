"""What a `ScriptedProvider` is told to answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestra.testing.encoding import spaced

__all__ = ["Hit", "Reply", "StreamScript", "count_tokens", "output_tokens", "prompt_of"]


_PROMPTS = ("messages", "prompt", "input", "contents")
_SYSTEMS = ("system", "instructions", "systemInstruction")


@dataclass(frozen=True, slots=True)
class StreamScript:
    """How a streamed answer goes: a chunk for each of ``chunks``, ``gap`` seconds apart, then its end.

    ``drop_after=k`` closes the connection after k chunks, ``error_after=k`` sends ``error`` as an event instead of
    the rest. ``usage`` sends the usage (None: where the wire or the request asks for it); ``finished`` sends why
    it finished, ``done`` the last line, ``[DONE]``, or the last event, ``message_stop``. Some servers send no
    ``[DONE]``; a stream without either was cut.
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
    finished: bool = True
    done: bool = True


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, given after ``delay`` seconds.

    ``body`` is sent as it is (bytes, str) or as JSON; None is the endpoint's default answer, with usage, or, where
    the request streams, ``stream``. ``drop`` closes the connection without an answer, ``cut_after`` after so many
    bytes of a body that was announced whole, and before its last.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    delay: float = 0.0
    stream: StreamScript = StreamScript()
    drop: bool = False
    cut_after: int | None = None

    @property
    def own(self) -> bool:
        """Whether it stands in place of the usual answer, and is not only how that is given."""
        return self.status != 200 or self.body is not None or self.drop

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

    @classmethod
    def anthropic_error(
        cls, status: int, kind: str, message: str = "scripted", *, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Return an answer in Anthropic's error form."""
        error = {"type": kind, "message": message}
        return cls(status, headers or {}, {"type": "error", "error": error, "request_id": "req_scripted"})


@dataclass(slots=True)
class Hit:
    """One request as it arrived. ``at`` is on the provider's clock; ``in_flight`` counts itself; ``connection``
    tells connections apart.

    ``status`` is what it was answered with, at ``answered_at``. ``completed`` turns True when the whole answer has
    been written; it stays False for a client that went away. ``tokens`` is what a limit counts for it in the end.
    ``body`` is not kept where it is longer than a megabyte; its ``size`` and ``body_hash`` (SHA-256) are.
    """

    at: float
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    in_flight: int
    query: Mapping[str, str] = field(default_factory=dict)
    connection: str = ""
    status: int | None = None
    completed: bool = False
    answered_at: float | None = None
    tokens: float = 0.0
    size: int = field(init=False)
    body_hash: str = field(init=False)

    def __post_init__(self) -> None:
        self.size = len(self.body)
        self.body_hash = hashlib.sha256(self.body).hexdigest()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def prompt_of(payload: Mapping[str, Any]) -> Any:
    """Return what a request asks, as its wire has it: messages, contents, an input or a prompt."""
    for name in _PROMPTS:
        if name in payload:
            return payload[name]
    return ""


def count_tokens(payload: Mapping[str, Any], tokens_per_character: float = 0.25) -> int:
    """Return the tokens that a request's prompt counts for: by the characters of its JSON, and one."""
    system = next((payload[name] for name in _SYSTEMS if payload.get(name)), "")
    characters = len(spaced(prompt_of(payload))) + (len(spaced(system)) if system else 0)
    return int(characters * tokens_per_character) + 1


def output_tokens(text: str) -> int:
    """Return the tokens that an answer's text counts for: a quarter of its characters."""
    return max(1, len(text) // 4)
