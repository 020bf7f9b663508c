"""One line of a job: what it asks, checked before anything is sent.

Two forms are read. OpenAI's batch line::

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
     "body": {"model": "fast", "messages": [{"role": "user", "content": "..."}]}}

and the plain line, which is the body alone and is called ``line-<n>`` unless it names itself::

    {"messages": [...]}          {"prompt": "..."}          {"custom_id": "a", "model": "fast", "messages": [...]}

A large file is checked whole before anything is sent, so `LineParser.check` is a handful of dictionary look-ups
around one decode. What costs more to know of a line, its body and its digest, is found when it is taken in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from hashlib import blake2b
from math import isinf
from typing import Any, NoReturn

from pydantic_core import to_json

from orchestra.errors import InputError
from orchestra.jobs.ledger.line import Fault, Line

__all__ = [
    "ENDPOINTS",
    "MAX_LINE_BYTES",
    "LineCheck",
    "LineParser",
    "encode_json",
    "faults_error",
]

ENDPOINTS: Mapping[str, str] = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/v1/responses": "input",
    "/v1/embeddings": "input",
    "/v1/messages": "messages",
}
"""The endpoints that a line may ask, each with the key that holds its prompt."""

LineCheck = Callable[[str, Mapping[str, Any]], None]
"""Asked about each line's endpoint and body, after its form was found right. Raises InputError to refuse it."""

MAX_LINE_BYTES = 32 << 20
MAX_DEPTH = 100
"""How deep a line's objects and lists may be nested. Deeper ones would break what reads them by recursion."""

_LONE_SURROGATE = 'holds half of a character (a lone surrogate such as "\\ud83d"); write the whole character'
_BOM = b"\xef\xbb\xbf"
_LINE_ENDS = ("\n", "\r\n", "")
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _finite(number: str) -> float:
    value = float(number)
    if isinf(value):
        raise ValueError(f"{number} is out of range")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_decode = json.JSONDecoder().decode
_decode_finite = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant).raw_decode
_digest = partial(blake2b, digest_size=16)


class LineParser:
    """Reads lines. ``model``, where given, replaces the lines' own; ``check`` may refuse a line."""

    def __init__(self, *, model: str | None = None, check: LineCheck | None = None) -> None:
        self.model = model
        self._check = check
        self._encodable = model is None or model.isascii()

    def check(self, number: int, raw: bytes) -> str | Fault:
        """Return the custom_id of a line of a file, or why it cannot be used: what `from_json` finds, for less."""
        if (parts := self._read(number, raw)) is not None:
            return parts[0]
        entry = self._judge(number, raw)
        return entry if isinstance(entry, Fault) else entry.custom_id

    def from_json(self, number: int, raw: bytes) -> Line | Fault:
        """Read a line of a file."""
        if (parts := self._read(number, raw)) is not None:
            return _line(number, *parts)
        return self._judge(number, raw)

    def from_object(self, number: int, request: object) -> Line | Fault:
        """Read a line that is a mapping already."""
        try:
            raw = encode_json(dict(request) if isinstance(request, Mapping) else request)
        except InputError as error:
            return Fault(number, str(error), _digest(str(error).encode()).digest())
        return self.from_json(number, raw)

    def _read(self, number: int, raw: bytes) -> tuple[str, str, dict[str, Any]] | None:
        """Return custom_id, endpoint and body of a line that is good beyond doubt.

        None is for any other: one that has a fault, which is to be told, or might have, which takes long to find.
        """
        if number == 1 or not self._encodable or not _is_plain(raw):
            return None
        try:
            text = raw.decode()
            request, end = _decode_finite(text)
            if end + 2 < len(text) or text[end:] not in _LINE_ENDS:
                return None
            parts = _take_apart(number, request)
            self._check_body(parts[1], parts[2])
        except (InputError, ValueError, RecursionError):
            return None
        return parts

    def _judge(self, number: int, raw: bytes) -> Line | Fault:
        """Read any line, to the last doubt."""
        try:
            custom_id, path, body = _take_apart(number, _decoded(number, raw))
            self._check_body(path, body)
            encode_json([custom_id, body])
        except InputError as error:
            return Fault(number, str(error), _digest(raw).digest())
        return _line(number, custom_id, path, body)

    def _check_body(self, path: str, body: dict[str, Any]) -> None:
        if self.model is not None:
            body["model"] = self.model
        _check_body(path, body)
        if self._check is not None:
            self._check(path, body)


def _line(number: int, custom_id: str, path: str, body: dict[str, Any]) -> Line:
    """Return the line of parts that can be encoded."""
    encoded = to_json(body)
    # neither an endpoint nor JSON holds a zero byte, so the parts cannot run into each other
    identity = b"\0".join((path.encode(), encoded, custom_id.encode()))
    return Line(number, custom_id, path, encoded, blake2b(identity, digest_size=16).digest())


def _decoded(number: int, raw: bytes) -> Any:
    if len(raw) >= MAX_LINE_BYTES:
        raise InputError(f"longer than {MAX_LINE_BYTES >> 20} MiB")
    try:
        text = (raw.removeprefix(_BOM) if number == 1 else raw).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 (byte {error.start + 1} of the line); save the file as UTF-8") from None
    try:
        request = _decode(text)
    except RecursionError:
        raise InputError("nested too deeply to be a request") from None
    except json.JSONDecodeError as error:
        # from where the line ends: what is missing there is reported behind its newline
        column = min(error.pos, len(text.rstrip())) + 1
        raise InputError(
            f"not valid JSON: {error.msg} at column {column}; each line must be one JSON object"
        ) from None
    except ValueError as error:  # a number of thousands of digits
        raise InputError(f"not usable JSON: {error}") from None
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _is_deeper(request, MAX_DEPTH):
        raise InputError(f"nested more than {MAX_DEPTH} levels deep")
    return request


def encode_json(value: object) -> bytes:
    """Return ``value`` as compact JSON in UTF-8. Raises InputError where that cannot be."""
    try:
        return _encode(value).encode()
    except UnicodeEncodeError:
        raise InputError(_LONE_SURROGATE) from None
    except RecursionError:
        raise InputError("nested too deeply to be a request") from None
    except (TypeError, ValueError) as error:
        raise InputError(f"cannot be written as JSON: {error}") from None


def faults_error(source: str, faults: Iterable[Fault], count: int) -> InputError:
    """Return one error that tells the first faults, and how many there are in all."""
    told = [f"line {fault.number}: {fault.message}" for fault in faults]
    if count == 1:
        return InputError(f"{source}, {told[0]}")
    rest = [f"... and {count - len(told)} more"] if count > len(told) else []
    return InputError("\n  ".join([f"{source}: {count} lines cannot be used", *told, *rest]))


def _is_plain(raw: bytes) -> bool:
    """Return whether the text is short and flat enough, and free of what may be half of a character.

    What UTF-8 itself holds are whole characters; a half can only come as an escape, \\ud800 to \\udfff.
    """
    if b"\\" in raw and (b"\\ud" in raw or b"\\uD" in raw):
        return False
    return raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH and len(raw) < MAX_LINE_BYTES


def _is_deeper(value: Any, levels: int) -> bool:
    layer = [value]
    for _ in range(levels):
        items = (item for outer in layer for item in (outer.values() if isinstance(outer, dict) else outer))
        layer = [item for item in items if isinstance(item, dict | list)]
    return bool(layer)


def _take_apart(number: int, request: Any) -> tuple[str, str, dict[str, Any]]:
    """Return custom_id, endpoint and body of either form."""
    if type(request) is not dict:
        raise InputError(f"a line must be a JSON object, not {_kind(request)}")
    batch_line = "body" in request or "url" in request
    if batch_line:
        custom_id = request.get("custom_id")
        if custom_id is None:
            raise InputError('has no "custom_id"; a batch line needs one, by which its answer is found')
    else:
        custom_id = request.get("custom_id", f"line-{number}")
    if type(custom_id) is not str or not custom_id:
        raise InputError(f'"custom_id" must be a text that is not empty, not {_kind(custom_id)}')
    if not batch_line:
        plain = {key: value for key, value in request.items() if key != "custom_id"}
        return custom_id, _endpoint_of(plain), plain

    if request.get("method", "POST") != "POST":
        raise InputError(f'"method" must be "POST", not {request["method"]!r:.40}')
    body = request.get("body")
    if type(body) is not dict:
        raise InputError(
            'has no "body"; put the request there' if body is None else '"body" must be a JSON object'
        )
    path = request.get("url")
    if path is None:
        raise InputError(f'has no "url"; it must be one of {", ".join(ENDPOINTS)}')
    if type(path) is not str or path not in ENDPOINTS:
        raise InputError(f'"url" {path!r:.80} is not supported; it must be one of {", ".join(ENDPOINTS)}')
    return custom_id, path, body


def _endpoint_of(body: Mapping[str, Any]) -> str:
    if "messages" in body:
        return "/v1/chat/completions"
    if "prompt" in body:
        return "/v1/completions"
    if "input" in body:
        raise InputError('"input" suits both /v1/responses and /v1/embeddings: write a batch line with a "url"')
    raise InputError('has neither "messages" nor "prompt", nor the "url" and "body" of a batch line')


def _check_body(path: str, body: Mapping[str, Any]) -> None:
    model = body.get("model")
    if type(model) is not str or not model:
        raise InputError('has no "model"; add it, or name one for all lines with --model')
    if body.get("stream"):
        raise InputError('"stream" is not possible in a bulk line; leave it out')
    key = ENDPOINTS[path]
    prompt = body.get(key)
    if key == "messages":
        if type(prompt) is not list or not prompt:
            raise InputError('"messages" must be a list of at least one message')
        for message in prompt:
            if type(message) is not dict or type(message.get("role")) is not str:
                raise InputError('every one of "messages" must be an object with a "role"')
    elif type(prompt) not in (str, list) or not prompt:
        raise InputError(f'"{key}" must be a text or a list that is not empty')


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    if value == "":
        return "an empty text"
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
