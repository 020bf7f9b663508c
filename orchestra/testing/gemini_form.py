"""The default answers of a `ScriptedProvider`, in Gemini's form, and how it refuses.

Source: ai.google.dev/gemini-api/docs, pages "Generating content", "Rate limits" and "Troubleshooting".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from orchestra.testing.limiter import Gauge
from orchestra.testing.script import Reply, StreamScript, output_tokens

__all__ = [
    "LIMIT_HEADER",
    "events",
    "limit_headers",
    "model_of",
    "refusal",
    "refused",
    "serves",
    "unauthorized",
    "unknown",
    "whole_answer",
]

LIMIT_HEADER = "x-ratelimit-{field}-{metric}"  # it has none of its own
_MODEL = re.compile(r"/models/([^/:]+):(\w+)$")
_STATUSES = {
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


def model_of(path: str) -> str | None:
    """Return the model that a path names, without the kind of request."""
    match = _MODEL.search(path)
    return match[1] if match else None


def serves(path: str, method: str = "POST") -> bool:
    """Return whether there is such an endpoint of the models."""
    match = _MODEL.search(path)
    return method == "POST" and match is not None and match[2] in ("generateContent", "streamGenerateContent")


def whole_answer(path: str, payload: Mapping[str, Any], text: str, prompt: int) -> dict[str, Any]:
    """Return the answer to a prompt of so many tokens."""
    return _chunk(payload, text, prompt, output_tokens(text), finish="STOP")


def events(path: str, payload: Mapping[str, Any], script: StreamScript, prompt: int) -> Iterator[bytes | None]:
    """Yield the events of a streamed answer; None where the connection is to be dropped."""
    last, said = len(script.chunks) - 1, ""
    for sent, text in enumerate(script.chunks):
        if script.drop_after == sent:
            yield None
            return
        if script.error_after == sent:
            yield _event(refused(503, str(script.error.get("message"))).body)
            return
        said += text
        finish = "STOP" if sent == last and script.finished else None
        yield _event(_chunk(payload, text, prompt, output_tokens(said), finish=finish))


def refusal() -> Reply:
    """Return what a limit answers."""
    return refused(429, "Resource has been exhausted (e.g. check quota).")


def unauthorized() -> Reply:
    """Return what a key that is not taken is answered."""
    return refused(400, "API key not valid. Please pass a valid API key.")


def unknown(method: str, path: str) -> Reply:
    """Return what a request is answered that there is no endpoint for."""
    return refused(404, f"There is no {method} {path}.")


def refused(status: int, message: str) -> Reply:
    """Return an answer in Gemini's error form."""
    error = {"code": status, "message": message, "status": _STATUSES.get(status, "INTERNAL")}
    return Reply(status, body={"error": error})


def limit_headers(gauges: Iterable[Gauge]) -> dict[str, str]:
    """Return nothing: Gemini tells no limits."""
    return {}


def _chunk(
    payload: Mapping[str, Any], text: str, prompt: int, output: int, *, finish: str | None
) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    usage = {"promptTokenCount": prompt, "candidatesTokenCount": output, "totalTokenCount": prompt + output}
    return {
        "candidates": [candidate],
        "usageMetadata": usage,
        "modelVersion": payload.get("model", "scripted"),
        "responseId": "scripted-1",
    }


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
