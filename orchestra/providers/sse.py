"""Streams of events, split as they arrive.

Source: WHATWG HTML, "Server-sent events"; RFC 8259 for lists of JSON objects.
"""

from __future__ import annotations

import re

__all__ = ["BOM", "EventSplitter", "ObjectSplitter", "event_data"]

BOM = b"\xef\xbb\xbf"
"""What a stream may start with, and means nothing."""

_BLANK_LINE = re.compile(rb"\r?\n\r?\n|\r\r")
_LONGEST = 4
_SIGNS = re.compile(rb'["\\{}]')


class EventSplitter:
    """Cuts a byte stream into whole events, each with the blank line that ends it."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that are complete now."""
        searched = max(0, len(self._buffer) - _LONGEST + 1)  # a blank line may lie across two reads
        self._buffer += data
        events = []
        start = 0
        for match in _BLANK_LINE.finditer(self._buffer, searched):
            events.append(bytes(self._buffer[start : match.end()]))
            start = match.end()
        del self._buffer[:start]
        return events

    def rest(self) -> bytes:
        """Return the last part, which no blank line ended, and forget it."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest


class ObjectSplitter:
    """Cuts a JSON object, or a list of them, after each object. What stands between two goes with the second."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._read = 0  # up to here the signs have been looked at
        self._depth = 0
        self._quoted = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the objects that are complete now."""
        self._buffer += data
        objects = []
        start, at = 0, self._read
        while match := _SIGNS.search(self._buffer, at):
            at = match.end()
            sign = match[0]
            if self._quoted:
                if sign == b"\\":
                    at += 1  # what it escapes, which may be yet to come
                self._quoted = sign != b'"'
            elif sign == b'"':
                self._quoted = True
            elif sign == b"{":
                self._depth += 1
            elif sign == b"}":
                self._depth -= 1
                if self._depth == 0:
                    objects.append(bytes(self._buffer[start:at]))
                    start = at
        self._read = max(at, len(self._buffer)) - start
        del self._buffer[:start]
        return objects

    def rest(self) -> bytes:
        """Return the last part, which is no whole object, and forget it."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest


def event_data(event: bytes) -> bytes | None:
    """Return an event's data, or None where it has none: a comment, or an empty line."""
    lines = event.removeprefix(BOM).splitlines()
    lines = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
