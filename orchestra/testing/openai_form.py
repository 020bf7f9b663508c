"""The default answers of a `ScriptedProvider`, in OpenAI's form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from orchestra.testing.limiter import Gauge
from orchestra.testing.script import Reply, StreamScript, output_tokens

__all__ = ["LIMIT_HEADER", "events", "limit_headers", "refusal", "unauthorized", "whole_answer"]

LIMIT_HEADER = "x-ratelimit-{field}-{metric}"


def whole_answer(path: str, payload: Mapping[str, Any], text: str, prompt: int) -> dict[str, Any]:
    """Return the answer of the endpoint at ``path`` to a prompt of so many tokens."""
    model = payload.get("model", "scripted")
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
        return {"object": "list", "data": [{"id": "scripted", "object": "model", "created": 0, "owned_by": "us"}]}
    return {"object": "unknown"}


def events(path: str, payload: Mapping[str, Any], script: StreamScript, prompt: int) -> Iterator[bytes | None]:
    """Yield the events of a streamed answer; None where the connection is to be dropped."""
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


def limit_headers(gauges: Iterable[Gauge]) -> dict[str, str]:
    """Return the headers that tell the state of every limit."""
    headers = {}
    for gauge in gauges:
        told = {"limit": int(gauge.limit), "remaining": int(gauge.remaining), "reset": f"{gauge.full_in:.3f}s"}
        for field, value in told.items():
            headers[LIMIT_HEADER.format(field=field, metric=gauge.metric.replace("_", "-"))] = str(value)
    return headers


def _envelope(kind: str, model: Any, **rest: Any) -> dict[str, Any]:
    return {"id": "scripted-1", "object": kind, "created": 1_700_000_000, "model": model, **rest}


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
