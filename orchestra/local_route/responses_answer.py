"""Write an answer in the form of OpenAI's responses endpoint.

A stream is typed events, each with its number; the last one has the whole response, and no ``[DONE]`` follows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestra.local_route.answer import event, plain

if TYPE_CHECKING:
    from orchestra.localengine.request import Completion, Delta, FinishReason, Usage

__all__ = ["ResponsesAnswer"]

_PLACE = {"output_index": 0, "content_index": 0}


class ResponsesAnswer:
    """``payload`` is the request, whose settings a response repeats."""

    def __init__(self, payload: Mapping[str, Any], *, call_id: str, model: str) -> None:
        self._item_id = f"msg_{call_id}"
        self._number = 0
        self._texts: list[str] = []
        self._response: dict[str, Any] = {
            "id": f"resp_{call_id}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "instructions": payload.get("instructions"),
            "max_output_tokens": payload.get("max_output_tokens"),
            "model": model,
            "output": [],
            "parallel_tool_calls": _or(payload.get("parallel_tool_calls"), True),
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": _or(payload.get("temperature"), 1.0),
            "text": {"format": {"type": "text"}},
            "tool_choice": _or(payload.get("tool_choice"), "auto"),
            "tools": [],
            "top_p": _or(payload.get("top_p"), 1.0),
            "truncation": "disabled",
            "background": False,
            "usage": None,
            "metadata": _or(payload.get("metadata"), {}),
        }

    def whole(self, completion: Completion) -> bytes:
        return plain(self._ended(completion.text, completion.finish_reason, completion.usage))

    def opening(self) -> bytes:
        return (
            self._event("response.created", response=self._response)
            + self._event("response.in_progress", response=self._response)
            + self._event("response.output_item.added", output_index=0, item=self._item("in_progress", []))
            + self._event("response.content_part.added", item_id=self._item_id, **_PLACE, part=_part(""))
        )

    def piece(self, text: str) -> bytes:
        self._texts.append(text)
        return self._event("response.output_text.delta", item_id=self._item_id, **_PLACE, delta=text, logprobs=[])

    def ending(self, last: Delta) -> bytes:
        text = "".join(self._texts)
        response = self._ended(text, last.finish_reason, last.usage)
        place = {"item_id": self._item_id, **_PLACE}
        return (
            self._event("response.output_text.done", **place, text=text, logprobs=[])
            + self._event("response.content_part.done", **place, part=_part(text))
            + self._event("response.output_item.done", output_index=0, item=response["output"][0])
            + self._event(f"response.{response['status']}", response=response)
        )

    def _ended(self, text: str, reason: FinishReason | None, usage: Usage | None) -> dict[str, Any]:
        status = "incomplete" if reason == "length" else "completed"
        return {
            **self._response,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": [self._item(status, [_part(text)])],
            "usage": None if usage is None else _usage(usage),
        }

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, **fields, "sequence_number": self._number}
        self._number += 1
        return event(data, kind)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
