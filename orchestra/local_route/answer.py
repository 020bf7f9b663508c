"""Write the in-process engine's answers in the form of the wire that was asked in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from orchestra.localengine.request import Completion, Delta

__all__ = ["LocalAnswer", "event", "plain"]


class LocalAnswer(Protocol):
    """One answer's identity, and its bytes in the order of the wire.

    A stream is `opening`, a `piece` for each delta, `closing`.
    """

    def whole(self, completion: Completion) -> bytes:
        """Return the body of an answer that is not streamed."""
        ...

    def opening(self) -> bytes: ...

    def piece(self, delta: Delta) -> bytes:
        """Return what a delta adds, often nothing; with the last one of a completion, its end."""
        ...

    def closing(self) -> bytes:
        """Return what follows when all completions have ended."""
        ...


def plain(value: Any) -> bytes:
    """Return a value as JSON in one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """Return a server-sent event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + plain(data) + b"\n\n"
