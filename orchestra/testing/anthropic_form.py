"""The default answers of a `ScriptedProvider`, in Anthropic's form, and how it refuses.

Source: platform.claude.com/docs, pages "Messages", "Streaming", "Rate limits" and "Errors".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from orchestra.testing.limiter import Gauge
from orchestra.testing.script import Reply, StreamScript, output_tokens

__all__ = [
    "LIMIT_HEADER",
    "events",
    "limit_headers",
    "refusal",
    "serves",
    "unauthorized",
    "unknown",
    "whole_answer",
]

LIMIT_HEADER = "anthropic-ratelimit-{metric}-{field}"


def serves(path: str, method: str = "POST") -> bool:
    """Return whether there is such an endpoint of the models."""
    return method == "POST" and path.endswith(("/messages", "/messages/count_tokens"))


def whole_answer(path: str, payload: Mapping[str, Any], text: str, prompt: int) -> dict[str, Any]:
    """Return the answer of the endpoint at ``path`` to a prompt of so many tokens."""
    if path.endswith("/count_tokens"):
        return {"input_tokens": prompt}
    content = [{"type": "text", "text": text, "citations": None}]
    return _message(payload, content, prompt, output_tokens(text), stop="end_turn")


def events(path: str, payload: Mapping[str, Any], script: StreamScript, prompt: int) -> Iterator[bytes | None]:
    """Yield the events of a streamed answer; None where the connection is to be dropped."""
    yield _event("message_start", message=_message(payload, [], prompt, 1, stop=None))
    yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for sent, text in enumerate(script.chunks):
        if script.drop_after == sent:
            yield None
            return
        if script.error_after == sent:
            yield _event("error", error=dict(script.error))
            return
        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
    yield _event("content_block_stop", index=0)
    usage = {} if script.usage is False else {"usage": {"output_tokens": output_tokens("".join(script.chunks))}}
    if script.finished:
        yield _event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, **usage)
    if script.done:
        yield _event("message_stop")


def refusal() -> Reply:
    """Return what a limit answers."""
    return Reply.anthropic_error(429, "rate_limit_error", "This request would exceed your rate limit.")


def unauthorized() -> Reply:
    """Return what a key that is not taken is answered."""
    return Reply.anthropic_error(401, "authentication_error", "invalid x-api-key")


def unknown(method: str, path: str) -> Reply:
    """Return what a request is answered that there is no endpoint for."""
    return Reply.anthropic_error(404, "not_found_error", f"Not found: {method} {path}")


def limit_headers(gauges: Iterable[Gauge]) -> dict[str, str]:
    """Return the headers that tell the state of every limit; what is left of tokens in whole thousands."""
    headers = {}
    for gauge in gauges:
        remaining = int(gauge.remaining) if gauge.metric == "requests" else round(gauge.remaining, -3)
        full_at = datetime.now(UTC) + timedelta(seconds=gauge.full_in)
        reset = full_at.strftime("%Y-%m-%dT%H:%M:%SZ")
        told = {"limit": int(gauge.limit), "remaining": int(remaining), "reset": reset}
        for field, value in told.items():
            headers[LIMIT_HEADER.format(field=field, metric=gauge.metric.replace("_", "-"))] = str(value)
    return headers


def _message(
    payload: Mapping[str, Any], content: list[Any], prompt: int, output: int, *, stop: str | None
) -> dict[str, Any]:
    cache = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {
        "id": "msg_scripted",
        "type": "message",
        "role": "assistant",
        "model": payload.get("model", "scripted"),
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": prompt, **cache, "output_tokens": output},
    }


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields}, separators=(',', ':'))}\n\n".encode()
