"""What the forms share in reading: fields that may be missing or odd, results line by line, and lines that
failed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from orchestra.call import read_json
from orchestra.policies.fault import Recovery
from orchestra.providers.base import FormatError, Provider
from orchestra.providers.batches.base import BatchState, LineResult
from orchestra.providers.faults import as_error

__all__ = [
    "WHY",
    "JsonLines",
    "JsonObject",
    "answered",
    "batch",
    "batches",
    "failed",
    "first_of",
    "mapping",
    "named",
    "names",
    "parse_object",
    "result_of",
    "text",
    "unix",
    "whole",
]

WHY = "the provider does not say why"
_LONGEST_LINE = 64 << 20
_OWN_FAULTS = frozenset(
    {
        "content_filter",
        "content_policy_violation",
        "context_length_exceeded",
        "invalid_request",
        "invalid_request_error",
    }
)
"""Codes of a line without a status that say that it would be refused again. Any other line is worth another
try."""
_LONGEST_NAME = 1024
_MOST = 1 << 60  # some of them can be summed in the 63 bits that SQLite has
_LAST_SECOND = 253_402_300_799.0  # of the year 9999


class JsonLines:
    """Reads JSON Lines, piece by piece. ``read`` returns the result that a line's object is, None where it is
    none.

    Empty lines are passed over. A line longer than ``longest`` bytes is not kept: it is unreadable.
    """

    def __init__(
        self, read: Callable[[Mapping[str, Any]], LineResult | None], *, longest: int = _LONGEST_LINE
    ) -> None:
        self.unreadable = 0
        self._read = read
        self._longest = longest
        self._rest = bytearray()
        self._is_too_long = False

    def feed(self, data: bytes) -> list[LineResult]:
        """Return the results of the lines that end in ``data``."""
        *ended, rest = data.split(b"\n")
        results = []
        for part in ended:
            self._keep(part)
            results += self.finish()
        self._keep(rest)
        return results

    def finish(self) -> list[LineResult]:
        """Return the result of what is left: a last line need not have an end."""
        line, is_too_long = bytes(self._rest), self._is_too_long
        self._rest.clear()
        self._is_too_long = False
        if not is_too_long and not line.strip():
            return []
        result = None if is_too_long else self._parsed(line)
        if result is None:
            self.unreadable += 1
            return []
        return [result]

    def _keep(self, part: bytes) -> None:
        if self._is_too_long or len(self._rest) + len(part) > self._longest:
            self._is_too_long = True
            self._rest.clear()
        else:
            self._rest += part

    def _parsed(self, line: bytes) -> LineResult | None:
        try:
            told = read_json(line)
        except ValueError:
            return None
        return self._read(told) if isinstance(told, Mapping) else None


class JsonObject:
    """Reads an answer that is one result as a whole. ``read`` is as that of `JsonLines`."""

    def __init__(
        self, read: Callable[[Mapping[str, Any]], LineResult | None], *, longest: int = _LONGEST_LINE
    ) -> None:
        self.unreadable = 0
        self._read = read
        self._longest = longest
        self._body = bytearray()

    def feed(self, data: bytes) -> list[LineResult]:
        """Return nothing: it is read when it is whole."""
        if len(self._body) <= self._longest:
            self._body += data
        return []

    def finish(self) -> list[LineResult]:
        """Return the result, where it is one."""
        result = None
        try:
            if len(self._body) <= self._longest:
                result = self._read(parse_object(bytes(self._body)))
        except FormatError:
            pass
        if result is None:
            self.unreadable += 1
            return []
        return [result]


def result_of(dialect: Provider, told: Mapping[str, Any]) -> LineResult | None:
    """Read a line as OpenAI writes it, and whoever does as OpenAI:
    ``{"custom_id", "response": {"status_code", "request_id", "body"}, "error": {"code", "message"}}``.

    A status that is left out is a success where there is an answer without an error.
    """
    custom_id = named(told.get("custom_id"))
    if custom_id is None:
        return None
    response = mapping(told.get("response"))
    body, status = response.get("body"), whole(response.get("status_code"))
    request_id = text(response.get("request_id"))
    error = as_error(told.get("error")) or as_error(mapping(body).get("error"))
    if status is None and body is not None and not error:
        status = 200
    if status is not None and 200 <= status < 300 and body is not None:
        return answered(custom_id, body, status=status, request_id=request_id)
    return failed(dialect, custom_id, error, status=status, body=body, request_id=request_id)


def answered(custom_id: str, body: Any, *, status: int = 200, request_id: str | None = None) -> LineResult:
    """Return the result of a line that has its answer."""
    return LineResult(custom_id, "answered", status, _compact(body), request_id)


def failed(
    dialect: Provider,
    custom_id: str,
    error: Mapping[str, Any],
    *,
    status: int | None = None,
    body: Any = None,
    request_id: str | None = None,
) -> LineResult:
    """Return the result of a line that has an error: refused for good, or not served this time.

    It is what the same error would mean in a synchronous answer. Without a status, in the error's code either,
    only codes that are known to be the line's own fault are refusals. ``body`` is the error's answer, where it
    came in one.
    """
    code = next((str(word) for word in (error.get("code"), error.get("type")) if word not in (None, "")), "")
    message = str(error.get("message") or "")
    if status is None and len(code) == 3 and code.isascii() and code.isdigit() and 400 <= int(code) < 600:
        status = int(code)
    told = _compact(body if isinstance(body, Mapping) and body else {"error": dict(error)})
    if status is None:
        is_refused = code in _OWN_FAULTS
    else:
        is_refused = 400 <= status < 500 and dialect.fault(status, (), told, 0.0).recovery is Recovery.NONE
    if is_refused:
        return LineResult(custom_id, "refused", status, told, request_id, code, message)
    return LineResult(custom_id, "unserved", status, None, request_id, code, message)


def parse_object(body: bytes) -> Mapping[str, Any]:
    """Return the JSON object that a body is. Raises FormatError."""
    try:
        told = read_json(body)
    except ValueError:
        raise FormatError("the answer is not JSON") from None
    if not isinstance(told, Mapping):
        raise FormatError("the answer is no JSON object")
    return told


def batch(state: BatchState | None) -> BatchState:
    """Return a batch that was read. Raises FormatError where there was none."""
    if state is None:
        raise FormatError("the answer is no batch")
    return state


def batches(listed: Any, read: Callable[[Mapping[str, Any]], BatchState | None]) -> list[BatchState]:
    """Return the batches in a list, as ``read`` reads them. Raises FormatError where it is none."""
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise FormatError("the answer is no list of batches")
    return [state for one in listed if (state := read(mapping(one))) is not None]


def names(*values: Any) -> tuple[str, ...]:
    """Return those of ``values`` that name something: neither null nor empty."""
    return tuple(name for value in values if (name := named(value)) is not None)


def first_of(listed: Any) -> Mapping[str, Any]:
    """Return the first object of a list; an empty one where there is none."""
    return mapping(listed[0]) if isinstance(listed, list) and listed else {}


def mapping(value: Any) -> Mapping[str, Any]:
    """Return ``value`` where it is an object; an empty one where it is not."""
    return value if isinstance(value, Mapping) else {}


def text(value: Any) -> str | None:
    """Return ``value`` where it is a string with something in it. An escape that says half of a character is
    replaced."""
    if not isinstance(value, str) or not value:
        return None
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def named(value: Any) -> str | None:
    """Return ``value`` where it can be a name: one that can be sent, and kept, and is not altogether too long."""
    word = text(value)
    return word if word is not None and word == value and len(word) <= _LONGEST_NAME else None


def whole(value: Any) -> int | None:
    """Return a count or a code, which may be written as a string: nothing below zero, nor beyond all measure."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:18])
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST else None


def unix(value: Any) -> float | None:
    """Return the unix time that ``value`` is: a number, or a date as RFC 3339 writes it."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            seconds = float(value)
        else:
            moment = datetime.fromisoformat(value)
            seconds = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds <= _LAST_SECOND else None


def _compact(body: Any) -> bytes:
    """Return a body as JSON. Numbers that JSON does not have (NaN, and what is too large) become null."""
    try:
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        return json.dumps(_finite(body), separators=(",", ":"), allow_nan=False).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
