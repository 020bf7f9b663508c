"""Readers of OpenAI's streams. Once content flows, an event that tells us nothing is passed on unparsed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from orchestra.call import Usage, read_json
from orchestra.policies.retry import Fault
from orchestra.providers.base import FormatError
from orchestra.providers.sse import BOM, EventSplitter, event_data

__all__ = ["ChatStreamReader", "PlainStreamReader", "ResponsesStreamReader", "as_error", "read_usage"]

_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
_LONGEST_FIELD = max(map(len, _FIELDS))
_LARGEST_COUNT = 10**12


def read_usage(answer: Mapping[str, Any]) -> Usage:
    """Return the usage that an answer or a chunk reports, under any of the names in use."""
    groq = answer.get("x_groq")
    usage = answer.get("usage") or (groq.get("usage") if isinstance(groq, Mapping) else None)
    if not isinstance(usage, Mapping):
        return Usage()
    prompt = _first(usage, "prompt_tokens", "input_tokens")
    output = _first(usage, "completion_tokens", "output_tokens")
    if prompt is None and output is None:
        return Usage()
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = _first(details, "cached_tokens") if isinstance(details, Mapping) else 0
    return Usage(prompt or 0, output or 0, cached or 0, certainty="known")


def _first(counts: Mapping[str, Any], *names: str) -> int | None:
    values = (counts.get(name) for name in names)
    return next((value for value in values if type(value) is int and 0 <= value <= _LARGEST_COUNT), None)


def as_error(error: Any) -> Mapping[str, Any]:
    """Return what stands where an error object should, as one: some servers put only its message there."""
    if isinstance(error, str):
        return {"message": error}
    return error if isinstance(error, Mapping) else {}


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


class _EventReader:
    """What the readers of event streams share: splitting, and telling an event stream from anything else."""

    def __init__(self, *, fault_of: Callable[[Mapping[str, Any]], Fault]) -> None:
        self.started = False
        self.ended = False
        self.fault: Fault | None = None
        self.usage = Usage()
        self._fault_of = fault_of
        self._splitter = EventSplitter()
        self._head: bytes | None = b""  # until the first field tells that this is an event stream

    def feed(self, data: bytes) -> bytes:
        if self._head is not None:
            self._check_head(data)
        return b"".join(event for event in self._splitter.feed(data) if self._keep(event))

    def finish(self) -> bytes:
        if self._head:
            raise FormatError("the answer is not an event stream")
        rest = self._splitter.rest()
        return rest if rest.strip() and self._keep(rest) else b""

    def _check_head(self, data: bytes) -> None:
        self._head = (self._head or b"") + data
        line = self._head.removeprefix(BOM).lstrip(b"\r\n")
        if line.startswith(_FIELDS):
            self._head = None
        elif len(line) >= _LONGEST_FIELD:
            raise FormatError("the answer is not an event stream")

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


class ChatStreamReader(_EventReader):
    """Chat completions and completions: chunks, then ``[DONE]``.

    The chunk that carries the usage has no choices; the caller sees it only if it asked for it (``keep_usage``).
    """

    def __init__(self, *, fault_of: Callable[[Mapping[str, Any]], Fault], keep_usage: bool) -> None:
        super().__init__(fault_of=fault_of)
        self._keep_usage = keep_usage

    def _keep(self, event: bytes) -> bool:
        data = event_data(event)
        if data is None:
            return True
        if data == b"[DONE]":
            self.ended = True
            return True
        # Quotes inside a model's own text are escaped, so these bytes are field names.
        if self.started and b'"error"' not in data and (b'"usage"' not in data or b'"usage":null' in data):
            return True
        chunk = self._parse(data)
        error = as_error(chunk.get("error"))
        if error:
            self.fault = self._fault_of(error)
            return True
        usage = read_usage(chunk)
        if usage.certainty == "known":
            self.usage = usage
        choices = chunk.get("choices")
        self.started = self.started or _shows_content(choices)
        return self._keep_usage or bool(choices) or not chunk.get("usage")


def _shows_content(choices: Any) -> bool:
    return isinstance(choices, list) and any(_has_content(choice) for choice in choices)


def _has_content(choice: Any) -> bool:
    if not isinstance(choice, Mapping):
        return False
    if choice.get("text") or choice.get("finish_reason"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, Mapping) and any(value for name, value in delta.items() if name != "role")


class ResponsesStreamReader(_EventReader):
    """Responses: typed events, the last of which carries the whole response with its usage. No ``[DONE]``."""

    _PREAMBLE = frozenset(
        {
            "response.created",
            "response.queued",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        }
    )
    _LAST = frozenset({"response.completed", "response.failed", "response.incomplete"})
    _MARKS = (b"response.completed", b"response.failed", b"response.incomplete", b'"error"')

    def _keep(self, event: bytes) -> bool:
        data = event_data(event)
        if data is None or (self.started and not any(mark in data for mark in self._MARKS)):
            return True
        parsed = self._parse(data)
        kind = parsed.get("type")
        if kind == "error":
            self.fault = self._fault_of(as_error(parsed.get("error")) or {**parsed, "type": None})
            return True
        response = parsed.get("response")
        if kind in self._LAST and isinstance(response, Mapping):
            self.ended = True
            self.usage = read_usage(response)
            if kind == "response.failed" and not self.started:
                self.fault = self._fault_of(as_error(response.get("error")))
        self.started = self.started or kind not in self._PREAMBLE
        return True
