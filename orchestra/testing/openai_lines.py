"""The lines of an OpenAI batch's input file: read, and checked as OpenAI checks them before it runs any."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from orchestra.testing.batches import Line

__all__ = ["CheckedLines", "check_lines", "lines_of"]

_MOST_PROBLEMS = 10


@dataclass(slots=True)
class CheckedLines:
    """How many lines there are, the model that they all ask, and what is wrong, as a batch's ``errors`` say it."""

    count: int = 0
    model: str | None = None
    problems: list[dict[str, Any]] = field(default_factory=list)

    def refuse(self, code: str, message: str, *, line: int | None = None, param: str | None = None) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append({"code": code, "line": line, "message": message, "param": param})


def lines_of(content: bytes) -> Iterator[Line]:
    """Yield the requests of a file that was found good."""
    for raw in content.splitlines():
        if raw.strip():
            request = json.loads(raw)
            yield Line(request["custom_id"], request["body"])


def check_lines(content: bytes, endpoint: str, max_requests: int, max_bytes: int) -> CheckedLines:
    """Return what a batch of this file for ``endpoint`` would be."""
    checked = CheckedLines()
    if len(content) > max_bytes:
        checked.refuse("file_too_large", f"The file has more than {max_bytes} bytes.")
        return checked
    seen: set[str] = set()
    for number, raw in enumerate(content.splitlines(), start=1):
        if raw.strip():
            checked.count += 1
            _check_line(checked, raw, number, endpoint, seen)
    if not checked.count:
        checked.refuse("empty_file", "The file has no requests.")
    if checked.count > max_requests:
        checked.refuse("too_many_requests", f"The file has more than {max_requests} requests.")
    return checked


def _check_line(checked: CheckedLines, raw: bytes, number: int, endpoint: str, seen: set[str]) -> None:
    try:
        request = json.loads(raw.decode())
    except ValueError:
        request = None
    if not isinstance(request, dict):
        checked.refuse("invalid_json_line", "This line is not a JSON object in UTF-8.", line=number)
        return
    name, body = request.get("custom_id"), request.get("body")
    if not isinstance(name, str) or not name:
        checked.refuse("invalid_request", "custom_id must be a string.", line=number, param="custom_id")
    elif name in seen:
        checked.refuse(
            "duplicate_custom_id", f"The custom_id {name} is not unique.", line=number, param="custom_id"
        )
    else:
        seen.add(name)
    if request.get("method") != "POST":
        checked.refuse("invalid_request", "method must be POST.", line=number, param="method")
    if request.get("url") != endpoint:
        message = f"The url {request.get('url')} is not the endpoint of the batch, {endpoint}."
        checked.refuse("url_mismatch", message, line=number, param="url")
    if not isinstance(body, dict):
        checked.refuse("invalid_request", "body must be an object.", line=number, param="body")
        return
    if body.get("stream") is True:
        checked.refuse("invalid_request", "Batches do not stream.", line=number, param="body.stream")
    model = body.get("model")
    if not isinstance(model, str):
        checked.refuse("model_not_found", "model must be a string.", line=number, param="body.model")
    elif checked.model is None:
        checked.model = model
    elif model != checked.model:
        message = f"The file asks {checked.model} and {model}; it must ask one model."
        checked.refuse("model_mismatch", message, line=number, param="body.model")
