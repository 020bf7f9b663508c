"""Write an answer in the form of OpenAI's responses endpoint.

A stream is typed events, each with its number; the last one has the whole response, and no ``[DONE]`` follows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestra.local_route.answer import event, plain
from orchestra.local_route.logprobs import TextLogprobs, chat_logprobs
from orchestra.local_route.tools import new_call_id

if TYPE_CHECKING:
    from orchestra.localengine.request import Completion, Delta, FinishReason, ToolCall, Usage

__all__ = ["ResponsesAnswer"]


class ResponsesAnswer:
    """``payload`` is the request, whose settings a response repeats.

    Text and tool calls are items of the output in the order in which they come.
    """

    def __init__(self, payload: Mapping[str, Any], *, call_id: str, model: str) -> None:
        self._call_id = call_id
        self._number = 0
        self._output: list[dict[str, Any]] = []  # the items that are complete
        self._texts: list[str] | None = None  # of the message that is begun
        self._logprobs = TextLogprobs()
        self._told: list[dict[str, Any]] = []
        text = payload.get("text") or {}
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
            "text": {"format": _or(text.get("format"), {"type": "text"})},
            "tool_choice": _or(payload.get("tool_choice"), "auto"),
            "tools": [_tool(tool) for tool in payload.get("tools") or []],
            "top_logprobs": _or(payload.get("top_logprobs"), 0),
            "top_p": _or(payload.get("top_p"), 1.0),
            "truncation": "disabled",
            "background": False,
            "usage": None,
            "metadata": _or(payload.get("metadata"), {}),
        }

    def whole(self, completion: Completion) -> bytes:
        status = _status(completion.finish_reason)
        told = chat_logprobs(self._logprobs.push(completion.text, completion.logprobs))
        if completion.text or not completion.tool_calls:
            self._output.append(self._message(status, [_part(completion.text, told)]))
        self._output += [self._call(call) for call in completion.tool_calls]
        return plain(self._ended(status, completion.usage))

    def opening(self) -> bytes:
        return self._event("response.created", response=self._response) + self._event(
            "response.in_progress", response=self._response
        )

    def piece(self, delta: Delta) -> bytes:
        data = b""
        tokens = self._logprobs.push(delta.text, delta.logprobs)
        if delta.text:
            data += self._begin_text()
            assert self._texts is not None
            self._texts.append(delta.text)
            self._told += chat_logprobs(tokens)
            logprobs = chat_logprobs(tokens, with_bytes=False)
            data += self._event("response.output_text.delta", **self._place, delta=delta.text, logprobs=logprobs)
        for call in delta.tool_calls:
            data += self._end_text("completed") + self._whole_call(self._call(call))
        if delta.finish_reason is not None:
            status = _status(delta.finish_reason)
            if not self._output:  # an empty answer has an empty text
                data += self._begin_text()
            data += self._end_text(status)
            data += self._event(f"response.{status}", response=self._ended(status, delta.usage))
        return data

    def closing(self) -> bytes:
        return b""

    def _begin_text(self) -> bytes:
        if self._texts is not None:
            return b""
        self._texts = []
        added = self._event("response.output_item.added", **self._index, item=self._message("in_progress", []))
        return added + self._event("response.content_part.added", **self._place, part=_part("", []))

    def _end_text(self, status: str) -> bytes:
        if self._texts is None:
            return b""
        text, told = "".join(self._texts), self._told
        item = self._message(status, [_part(text, told)])
        data = (
            self._event("response.output_text.done", **self._place, text=text, logprobs=_without_bytes(told))
            + self._event("response.content_part.done", **self._place, part=_part(text, told))
            + self._event("response.output_item.done", **self._index, item=item)
        )
        self._output.append(item)
        self._texts, self._told = None, []
        return data

    def _whole_call(self, item: dict[str, Any]) -> bytes:
        place = {**self._index, "item_id": item["id"]}
        begun = {**item, "status": "in_progress", "arguments": ""}
        told = {"name": item["name"], "arguments": item["arguments"]}
        data = (
            self._event("response.output_item.added", **self._index, item=begun)
            + self._event("response.function_call_arguments.delta", **place, delta=item["arguments"])
            + self._event("response.function_call_arguments.done", **place, **told)
            + self._event("response.output_item.done", **self._index, item=item)
        )
        self._output.append(item)
        return data

    @property
    def _index(self) -> dict[str, Any]:
        return {"output_index": len(self._output)}

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, **self._index, "content_index": 0}

    @property
    def _item_id(self) -> str:
        number = len(self._output)
        return f"msg_{self._call_id}" + (f"_{number}" if number else "")

    def _ended(self, status: str, usage: Usage | None) -> dict[str, Any]:
        return {
            **self._response,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": self._output,
            "usage": None if usage is None else _usage(usage),
        }

    def _message(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _call(self, call: ToolCall) -> dict[str, Any]:
        return {
            "id": new_call_id("fc_"),
            "type": "function_call",
            "status": "completed",
            "call_id": new_call_id(),
            "name": call.name,
            "arguments": call.arguments,
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, **fields, "sequence_number": self._number}
        self._number += 1
        return event(data, kind)


def _status(reason: FinishReason) -> str:
    return "incomplete" if reason == "length" else "completed"


def _part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _without_bytes(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def plain_one(one: Mapping[str, Any]) -> dict[str, Any]:
        return {"token": one["token"], "logprob": one["logprob"]}

    return [
        {**plain_one(one), "top_logprobs": [plain_one(other) for other in one["top_logprobs"]]} for one in told
    ]


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": None, "parameters": None, "strict": None, **tool}


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
