"""What the readers of streamed answers share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol

from orchestra.call import Usage, read_json
from orchestra.policies.fault import Fault
from orchestra.providers.base import FormatError
from orchestra.providers.sse import BOM, EventSplitter

__all__ = ["EventReader", "PlainStreamReader", "Splitter"]

_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
_LONGEST_FIELD = max(map(len, _FIELDS))


class Splitter(Protocol):
    """Cuts a byte stream into events."""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that are complete now."""
        ...

    def rest(self) -> bytes:
        """Return the last part, which nothing ended, and forget it."""
        ...


class PlainStreamReader:
    """Passes on a body that we do not understand. It is complete when the connection says so."""

    def __init__(self) -> None:
        self.started = False
        self.ended = False
        self.fault: Fault | None = None
        self.usage = Usage()

    def feed(self, data: bytes) -> bytes:
        self.started = True
        return data

    def finish(self) -> bytes:
        self.ended = True
        return b""


class EventReader:
    """The base of the readers of event streams: splits, and tells an event stream from anything else."""

    def __init__(self) -> None:
        self.started = False
        self.ended = False
        self.fault: Fault | None = None
        self.usage = Usage()
        self._splitter: Splitter = EventSplitter()
        self._head: bytes | None = b""  # until the first field tells that this is an event stream

    def feed(self, data: bytes) -> bytes:
        if self._head is not None:
            self._head += data
            if self._knows(self._head.removeprefix(BOM).lstrip(b"\r\n")):
                self._head = None
        return b"".join(event for event in self._splitter.feed(data) if self._keep(event))

    def finish(self) -> bytes:
        if self._head:
            raise FormatError("the answer is not an event stream")
        rest = self._splitter.rest()
        try:
            return rest if not rest.strip() or self._keep(rest) else b""
        except FormatError:  # the stream was cut within an event
            return b""

    def _knows(self, head: bytes) -> bool:
        """Return whether what came first shows that this is an event stream; False while that is open.

        Raises FormatError where it cannot be one.
        """
        if not head.startswith(_FIELDS) and len(head) >= _LONGEST_FIELD:
            raise FormatError("the answer is not an event stream")
        return head.startswith(_FIELDS)

    @abstractmethod
    def _keep(self, event: bytes) -> bool:
        """Take note of one event; return whether the caller is to see it."""

    def _parse(self, data: bytes) -> dict[str, Any]:
        try:
            parsed = read_json(data)
        except ValueError:
            raise FormatError("an event's data is not JSON") from None
        if not isinstance(parsed, dict):
            raise FormatError("an event's data is not a JSON object")
        return parsed
