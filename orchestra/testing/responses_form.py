"""The default answers of ``/v1/responses``, whole, streamed, and in the background.

Source: platform.openai.com/docs, pages "Responses" and "Streaming events".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from orchestra.testing.script import StreamScript, output_tokens

__all__ = ["events", "response", "whole_answer"]

_CREATED = 1_700_000_000


def whole_answer(payload: Mapping[str, Any], text: str, prompt: int) -> dict[str, Any]:
    """Return a response that is complete."""
    return response(payload, "completed", output=[_message([_text(text)])], usage=_usage(text, prompt))


def response(
    payload: Mapping[str, Any],
    status: str,
    *,
    output: list[dict[str, Any]] | None = None,
    usage: Mapping[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Return the response to a request, with other values for some of its fields."""
    told = {
        "id": "resp_scripted",
        "object": "response",
        "created_at": _CREATED,
        "status": status,
        "completed_at": _CREATED if status == "completed" else None,
        "error": None,
        "incomplete_details": None,
        "instructions": payload.get("instructions"),
        "max_output_tokens": payload.get("max_output_tokens"),
        "model": payload.get("model", "scripted"),
        "output": output or [],
        "parallel_tool_calls": True,
        "previous_response_id": payload.get("previous_response_id"),
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "temperature": payload.get("temperature", 1.0),
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_p": payload.get("top_p", 1.0),
        "truncation": "disabled",
        "background": payload.get("background") is True,
        "usage": usage,
        "metadata": payload.get("metadata") or {},
    }
    return {**told, **fields}


def events(payload: Mapping[str, Any], script: StreamScript, prompt: int) -> Iterator[bytes | None]:
    """Yield the events of a streamed answer; None where the connection is to be dropped."""
    numbers = count()

    def event(kind: str, **fields: Any) -> bytes:
        told = json.dumps({"type": kind, **fields, "sequence_number": next(numbers)}, separators=(",", ":"))
        return f"event: {kind}\ndata: {told}\n\n".encode()

    place = {"item_id": "msg_scripted", "output_index": 0, "content_index": 0}
    whole = "".join(script.chunks)
    for kind in ("response.created", "response.in_progress"):
        yield event(kind, response=response(payload, "in_progress"))
    yield event("response.output_item.added", output_index=0, item=_message([], "in_progress"))
    yield event("response.content_part.added", **place, part=_text(""))
    for sent, text in enumerate(script.chunks):
        if script.drop_after == sent:
            yield None
            return
        if script.error_after == sent:
            told = {name: script.error.get(name) for name in ("code", "message", "param")}
            yield event("error", **told)
            return
        yield event("response.output_text.delta", **place, delta=text, logprobs=[])
    yield event("response.output_text.done", **place, text=whole, logprobs=[])
    yield event("response.content_part.done", **place, part=_text(whole))
    yield event("response.output_item.done", output_index=0, item=_message([_text(whole)]))
    if script.finished:
        answer = whole_answer(payload, whole, prompt)
        told = answer if script.usage is not False else {**answer, "usage": None}
        yield event("response.completed", response=told)


def _message(content: list[dict[str, Any]], status: str = "completed") -> dict[str, Any]:
    return {"id": "msg_scripted", "type": "message", "status": status, "role": "assistant", "content": content}


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(text: str, prompt: int) -> dict[str, Any]:
    output = output_tokens(text)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + output,
    }
