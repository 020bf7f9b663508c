"""The reader of Anthropic's streams, and of its usage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from orchestra.call import Usage
from orchestra.policies.fault import Fault
from orchestra.providers.base import FormatError, as_tier
from orchestra.providers.event_reader import EventReader
from orchestra.providers.faults import as_error
from orchestra.providers.sse import event_data

__all__ = ["MessagesStreamReader", "read_usage"]

_LARGEST_COUNT = 10**12
_MARKS = (b'"message_delta"', b'"message_stop"', b'"error"')


def read_usage(usage: Any) -> Usage:
    """Return what a ``usage`` object reports. Its three counts of input are disjoint; ours is their sum."""
    if not isinstance(usage, Mapping):
        return Usage()
    fresh, written, cached, output = (
        _count(usage.get(name))
        for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    )
    if fresh is None and output is None:
        return Usage()
    prompt = (fresh or 0) + (written or 0) + (cached or 0)
    tier = as_tier(usage.get("service_tier"))
    return Usage(prompt, output or 0, cached or 0, certainty="known", tier=tier)


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _LARGEST_COUNT else None


class MessagesStreamReader(EventReader):
    """Messages: ``message_start``, blocks of content, ``message_delta`` (maybe several), ``message_stop``.

    The usage of ``message_start`` is that of the input; each ``message_delta`` tells the sums so far, and may
    leave out what has not changed. Until the first of those the usage is an estimate: the input, and no output
    to speak of.
    """

    def __init__(self, fault_of: Callable[[Mapping[str, Any]], Fault]) -> None:
        super().__init__()
        self._fault_of = fault_of
        self._counts: dict[str, Any] = {}

    def _keep(self, event: bytes) -> bool:
        data = event_data(event)
        # Quotes inside a model's own text are escaped, so these bytes are names.
        if data is None or (self.started and not any(mark in data for mark in _MARKS)):
            return True
        parsed = self._parse(data)
        kind = parsed.get("type")
        if not isinstance(kind, str):
            raise FormatError("an event has no type")
        match kind:
            case "error":
                self.fault = self._fault_of(as_error(parsed.get("error")))
            case "message_start":
                message = parsed.get("message")
                self._add(message.get("usage") if isinstance(message, Mapping) else None, "estimated")
            case "content_block_start":
                self.started = self.started or _comes_whole(parsed.get("content_block"))
            case "content_block_delta":
                delta = parsed.get("delta")
                self.started = self.started or (isinstance(delta, Mapping) and _shows(delta))
            case "message_delta":
                self.started = True
                self._add(parsed.get("usage"), "known")
            case "message_stop":
                self.started = self.ended = True
        return True  # events that we do not know are for the caller to pass over

    def _add(self, usage: Any, certainty: Any) -> None:
        if not isinstance(usage, Mapping):
            return
        self._counts |= {name: count for name, count in usage.items() if count is not None}
        told = read_usage(self._counts)
        if told.certainty == "known":
            self.usage = replace(told, certainty=certainty)


def _shows(part: Mapping[str, Any]) -> bool:
    return any(value for name, value in part.items() if name != "type")


def _comes_whole(block: Any) -> bool:
    """Return whether a block starts with content, as results of the server's tools do."""
    return isinstance(block, Mapping) and any(block.get(name) for name in ("text", "thinking", "data", "content"))
