"""The default answers of a `ScriptedProvider`, in OpenAI's form, and how it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from orchestra.testing import responses_form
from orchestra.testing.content import Content
from orchestra.testing.limiter import Gauge
from orchestra.testing.script import Reply, StreamScript, output_tokens

__all__ = [
    "LIMIT_HEADER",
    "events",
    "invalid",
    "limit_headers",
    "object_of",
    "page",
    "refusal",
    "serves",
    "unauthorized",
    "unknown",
    "whole_answer",
]

LIMIT_HEADER = "x-ratelimit-{field}-{metric}"

_ENDPOINTS = ("/completions", "/embeddings", "/responses")  # and /chat/completions


def serves(path: str, method: str = "POST") -> bool:
    """Return whether there is such an endpoint of the models."""
    if method == "GET":
        return path.endswith("/models") or path.rpartition("/")[0].endswith("/models")
    return method == "POST" and path.endswith(_ENDPOINTS)


def whole_answer(path: str, payload: Mapping[str, Any], text: str, prompt: int) -> dict[str, Any]:
    """Return the answer of the endpoint at ``path`` to a prompt of so many tokens."""
    model = payload.get("model", "scripted")
    if path.endswith("/responses"):
        return responses_form.whole_answer(payload, text, prompt)
    output = output_tokens(text)
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    if path.endswith("/chat/completions"):
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return _envelope("chat.completion", model, choices=[choice], usage=usage)
    if path.endswith("/completions"):
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": "stop"}
        return _envelope("text_completion", model, choices=[choice], usage=usage)
    if path.endswith("/embeddings"):
        inputs = payload.get("input")
        count = len(inputs) if isinstance(inputs, list) else 1
        data = [{"object": "embedding", "index": index, "embedding": [0.0, 1.0]} for index in range(count)]
        usage = {"prompt_tokens": prompt, "total_tokens": prompt}
        return {"object": "list", "model": model, "data": data, "usage": usage}
    if path.endswith("/models"):
        return {"object": "list", "data": [_model("scripted")]}
    return _model(path.rpartition("/")[2])


def events(path: str, payload: Mapping[str, Any], script: StreamScript, prompt: int) -> Iterator[bytes | None]:
    """Yield the events of a streamed answer; None where the connection is to be dropped."""
    if path.endswith("/responses"):
        yield from responses_form.events(payload, script, prompt)
        return
    chat = path.endswith("/chat/completions")
    kind = "chat.completion.chunk" if chat else "text_completion"
    model = payload.get("model", "scripted")
    asked = (payload.get("stream_options") or {}).get("include_usage") is True

    def chunk(delta: dict[str, Any] | str, finish: str | None = None) -> bytes:
        part = {"delta": delta} if chat else {"text": delta}
        choice = {"index": 0, **part, "logprobs": None, "finish_reason": finish}
        extra = {"usage": None} if asked else {}
        return _event(_envelope(kind, model, choices=[choice], **extra))

    if chat:
        yield chunk({"role": "assistant", "content": ""})
    for sent, text in enumerate(script.chunks):
        if script.drop_after == sent:
            yield None
            return
        if script.error_after == sent:
            yield _event({"error": dict(script.error)})
            return
        yield chunk({"content": text} if chat else text)
    if script.finished:
        yield chunk({} if chat else "", "stop")
    if script.usage if script.usage is not None else asked:
        usage = whole_answer(path, payload, "".join(script.chunks), prompt)["usage"]
        yield _event(_envelope(kind, model, choices=[], usage=usage))
    if script.done:
        yield b"data: [DONE]\n\n"


def refusal() -> Reply:
    """Return what a limit answers."""
    return Reply.error(429, "rate_limit_exceeded", kind="requests", message="Too many requests.")


def unauthorized() -> Reply:
    """Return what a key that is not taken is answered."""
    return Reply.error(401, "invalid_api_key", kind="invalid_request_error", message="Incorrect API key provided.")


def unknown(method: str, path: str) -> Reply:
    """Return what a request is answered that there is no endpoint for."""
    return invalid(404, f"Invalid URL ({method} {path})")


def invalid(status: int, message: str, *, param: str | None = None) -> Reply:
    """Return how a wrong request is refused."""
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
    return Reply(status, body={"error": error})


def object_of(body: Content) -> dict[str, Any] | None:
    """Return the JSON object that a body is, or None where it is none."""
    try:
        parsed = json.loads(body.read())
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def page(objects: list[dict[str, Any]], query: Mapping[str, str], most: int) -> Reply:
    """Return the page of a list that is asked for."""
    names = [one["id"] for one in objects]
    after, told = query.get("after"), query.get("limit", "20")
    if not (told.isdecimal() and 1 <= int(told) <= most):
        return invalid(400, f"limit must be from 1 to {most}.", param="limit")
    if after is not None and after not in names:
        return invalid(400, f"There is no {after} to go on after.", param="after")
    start, limit = (names.index(after) + 1 if after is not None else 0), int(told)
    shown = objects[start : start + limit]
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    more = start + limit < len(objects)
    return Reply(body={"object": "list", "data": shown, "first_id": first, "last_id": last, "has_more": more})


def limit_headers(gauges: Iterable[Gauge]) -> dict[str, str]:
    """Return the headers that tell the state of every limit."""
    headers = {}
    for gauge in gauges:
        told = {"limit": int(gauge.limit), "remaining": int(gauge.remaining), "reset": f"{gauge.full_in:.3f}s"}
        for field, value in told.items():
            headers[LIMIT_HEADER.format(field=field, metric=gauge.metric.replace("_", "-"))] = str(value)
    return headers


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "us"}


def _envelope(kind: str, model: Any, **rest: Any) -> dict[str, Any]:
    return {"id": "scripted-1", "object": kind, "created": 1_700_000_000, "model": model, **rest}


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
