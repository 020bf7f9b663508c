"""Write an answer in the form of Anthropic's messages endpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from orchestra.local_route.answer import event, plain
from orchestra.local_route.tools import new_call_id

if TYPE_CHECKING:
    from orchestra.localengine.request import Completion, Delta, FinishReason, ToolCall, Usage

__all__ = ["MessagesAnswer"]


class MessagesAnswer:
    """``input_tokens`` is what the first event of a stream says that the prompt has.

    Text and tool calls are blocks in the order in which they come.
    """

    def __init__(self, *, call_id: str, model: str, input_tokens: int = 0) -> None:
        self._input_tokens = input_tokens
        self._blocks = 0  # begun so far
        self._in_text = False
        self._called = False
        self._message: dict[str, Any] = {
            "id": f"msg_{call_id}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }

    def whole(self, completion: Completion) -> bytes:
        calls = completion.tool_calls
        text = [{"type": "text", "text": completion.text, "citations": None}]
        return plain(
            {
                **self._message,
                "content": [
                    *(text if completion.text or not calls else []),
                    *({**_call(call), "input": json.loads(call.arguments)} for call in calls),
                ],
                **_end(completion.finish_reason, completion.stop, called=bool(calls)),
                "usage": _usage(completion.usage),
            }
        )

    def opening(self) -> bytes:
        usage = {
            "input_tokens": self._input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        }
        message = {**self._message, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return _event("message_start", message=message)

    def piece(self, delta: Delta) -> bytes:
        data = b""
        if delta.text:
            data += self._begin_text() + self._delta({"type": "text_delta", "text": delta.text})
        for call in delta.tool_calls:
            self._called = True
            data += self._end_text() + self._begin({**_call(call), "input": {}})
            data += self._delta({"type": "input_json_delta", "partial_json": call.arguments})
            data += _event("content_block_stop", index=self._blocks - 1)
        if delta.finish_reason is not None:
            if not self._blocks:  # an empty answer has an empty text
                data += self._begin_text()
            usage = {} if delta.usage is None else {"usage": _usage(delta.usage)}
            end = _end(delta.finish_reason, delta.stop, called=self._called)
            data += self._end_text() + _event("message_delta", delta=end, **usage)
        return data

    def closing(self) -> bytes:
        return _event("message_stop")

    def _begin(self, block: dict[str, Any]) -> bytes:
        self._blocks += 1
        return _event("content_block_start", index=self._blocks - 1, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._blocks - 1, delta=delta)

    def _begin_text(self) -> bytes:
        if self._in_text:
            return b""
        self._in_text = True
        return self._begin({"type": "text", "text": ""})

    def _end_text(self) -> bytes:
        if not self._in_text:
            return b""
        self._in_text = False
        return _event("content_block_stop", index=self._blocks - 1)


def _call(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": new_call_id("toolu_"), "name": call.name}


def _end(reason: FinishReason | None, stop: str | None, *, called: bool) -> dict[str, Any]:
    if reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if called:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    return {"stop_reason": "end_turn" if stop is None else "stop_sequence", "stop_sequence": stop}


def _usage(usage: Usage) -> dict[str, Any]:
    """Anthropic's input tokens are those that were not read from a cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)
