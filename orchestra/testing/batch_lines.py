"""The lines of a batch's input file: read once, and checked as providers check them before they run any."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestra.testing.batches import Desk
from orchestra.testing.content import Content
from orchestra.testing.roll import BREATH, Line, Roll

__all__ = ["CheckedLines", "LineRules", "check_lines"]

_MOST_PROBLEMS = 10
_decode = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class LineRules:
    """What a file may be. ``model`` is the job's, for lines that name none; ``routed``: every line names its
    method and url (OpenAI)."""

    endpoint: str
    max_requests: int
    max_bytes: int
    model: str | None = None
    routed: bool = True


@dataclass(slots=True)
class CheckedLines:
    """The lines, the model that they all ask, and what is wrong, as OpenAI's ``errors`` say it."""

    roll: Roll
    model: str | None = None
    problems: list[dict[str, Any]] = field(default_factory=list)

    def refuse(self, code: str, message: str, *, line: int | None = None, param: str | None = None) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append({"code": code, "line": line, "message": message, "param": param})


async def check_lines(content: Content, rules: LineRules, marked: Collection[str], desk: Desk) -> CheckedLines:
    """Return what a batch of this file would be, with the positions of the ``marked`` custom ids."""
    checked = CheckedLines(Roll(content, lambda raw: _line(_decode(raw.decode())[0], rules.model), marked))
    if content.size > rules.max_bytes:
        checked.refuse("file_too_large", f"The file has more than {rules.max_bytes} bytes.")
        return checked
    seen: set[str] = set()
    count = 0
    for number, (at, raw) in enumerate(content.lines(), start=1):
        if number % BREATH == 0:
            await asyncio.sleep(0)
        if not raw or raw.isspace():
            continue
        count += 1
        request = _checked(checked, raw, number, rules, seen)
        if request is not None and not checked.problems and count <= rules.max_requests:
            line = _line(request, rules.model)
            start = at + len(raw) - len(raw.lstrip())
            checked.roll.add(start, at + len(raw) - start, line, *desk.count(line.payload))
    if not count:
        checked.refuse("empty_file", "The file has no requests.")
    if count > rules.max_requests:
        checked.refuse("too_many_requests", f"The file has more than {rules.max_requests} requests.")
    return checked


def _line(request: Mapping[str, Any], model: str | None) -> Line:
    body = request["body"]
    return Line(request["custom_id"], body if model is None else {"model": model, **body})


def _checked(
    checked: CheckedLines, raw: bytes, number: int, rules: LineRules, seen: set[str]
) -> dict[str, Any] | None:
    """Return a line's request, or None where it is none; what is wrong with it is noted."""
    try:
        text = raw.decode().strip()
        request, end = _decode(text)
    except ValueError:
        request = None
    if not isinstance(request, dict) or end != len(text):
        checked.refuse("invalid_json_line", "This line is not a JSON object in UTF-8.", line=number)
        return None
    name, body = request.get("custom_id"), request.get("body")
    if not isinstance(name, str) or not name:
        checked.refuse("invalid_request", "custom_id must be a string.", line=number, param="custom_id")
    elif name in seen:
        message = f"The custom_id {name} is not unique."
        checked.refuse("duplicate_custom_id", message, line=number, param="custom_id")
    else:
        seen.add(name)
    if rules.routed and request.get("method") != "POST":
        checked.refuse("invalid_request", "method must be POST.", line=number, param="method")
    if rules.routed and request.get("url") != rules.endpoint:
        message = f"The url {request.get('url')} is not the endpoint of the batch, {rules.endpoint}."
        checked.refuse("url_mismatch", message, line=number, param="url")
    if not isinstance(body, dict):
        checked.refuse("invalid_request", "body must be an object.", line=number, param="body")
        return None
    if body.get("stream") is True:
        checked.refuse("invalid_request", "Batches do not stream.", line=number, param="body.stream")
    model = body.get("model", rules.model)
    if not isinstance(model, str):
        checked.refuse("model_not_found", "model must be a string.", line=number, param="body.model")
    elif checked.model is None:
        checked.model = model
    elif model != checked.model:
        message = f"The file asks {checked.model} and {model}; it must ask one model."
        checked.refuse("model_mismatch", message, line=number, param="body.model")
    return request
