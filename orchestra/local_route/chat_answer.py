"""Write an answer in the form of OpenAI's chat or completions endpoint."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestra.local_route.answer import event, plain
from orchestra.local_route.logprobs import TextLogprobs, chat_logprobs, completion_logprobs, prompt_logprobs
from orchestra.local_route.tools import new_call_id

if TYPE_CHECKING:
    from orchestra.localengine.request import Completion, Delta, FinishReason, TokenLogprob, ToolCall, Usage

__all__ = ["ChatAnswer"]

DONE = b"data: [DONE]\n\n"


class ChatAnswer:
    """``chat`` tells the two endpoints apart. ``include_usage`` adds the chunk that has the usage and no choices,
    and ``usage: null`` to the others. A stream has ``n`` choices; a tool call comes whole, in one chunk.
    """

    def __init__(self, *, chat: bool, call_id: str, model: str, include_usage: bool = False, n: int = 1) -> None:
        self._chat = chat
        self._include_usage = include_usage
        self._n = n
        self._head = {
            "id": ("chatcmpl-" if chat else "cmpl-") + call_id,
            "created": int(time.time()),
            "model": model,
        }
        self._logprobs: defaultdict[int, TextLogprobs] = defaultdict(TextLogprobs)
        self._calls: defaultdict[int, int] = defaultdict(int)  # told so far, by choice
        self._usages: list[Usage] = []

    def whole(self, completion: Completion) -> bytes:
        completions = [completion, *completion.others]
        body = {
            **self._head,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [self._choice(index, one) for index, one in enumerate(completions)],
            "usage": _usage([one.usage for one in completions]),
        }
        if completion.prompt_logprobs is not None:
            body["prompt_logprobs"] = prompt_logprobs(completion.prompt_logprobs)
        return plain(body)

    def _choice(self, index: int, completion: Completion) -> dict[str, Any]:
        logprobs = None
        if completion.logprobs is not None:
            logprobs = self._told(TextLogprobs().push(completion.text, completion.logprobs))
        end = {"logprobs": logprobs, "finish_reason": _reason(completion.finish_reason, completion.tool_calls)}
        if not self._chat:
            return {"index": index, "text": completion.text, **end}
        message: dict[str, Any] = {"role": "assistant", "content": completion.text, "refusal": None}
        if completion.tool_calls:
            message["content"] = completion.text or None
            message["tool_calls"] = [_call(call) for call in completion.tool_calls]
        return {"index": index, "message": message, **end}

    def opening(self) -> bytes:
        """Chat streams start with the role; others with nothing."""
        if not self._chat:
            return b""
        role = {"role": "assistant", "content": "", "refusal": None}
        return b"".join(self._chunk(index, role) for index in range(self._n))

    def piece(self, delta: Delta) -> bytes:
        index = delta.index
        logprobs = None
        if delta.logprobs is not None:
            told = self._logprobs[index].push(delta.text, delta.logprobs)
            logprobs = self._told(told) if told else None
        data = b""
        if delta.text or logprobs:
            data += self._chunk(index, {"content": delta.text} if self._chat else delta.text, logprobs=logprobs)
        if delta.tool_calls:
            first = self._calls[index]
            calls = [{"index": place, **_call(call)} for place, call in enumerate(delta.tool_calls, first)]
            self._calls[index] += len(calls)
            data += self._chunk(index, {"tool_calls": calls})
        if delta.finish_reason is not None:
            data += self._chunk(index, {} if self._chat else "", _reason(delta.finish_reason, self._calls[index]))
        if delta.usage is not None:
            self._usages.append(delta.usage)
        return data

    def closing(self) -> bytes:
        if not self._include_usage:
            return DONE
        return event({**self._chunk_head, "choices": [], "usage": _usage(self._usages)}) + DONE

    def _told(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        if self._chat:
            return {"content": chat_logprobs(tokens), "refusal": None}
        return completion_logprobs(tokens)

    @property
    def _chunk_head(self) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk" if self._chat else "text_completion"}

    def _chunk(
        self,
        index: int,
        content: dict[str, Any] | str,
        finish_reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> bytes:
        choice = {
            "index": index,
            "delta" if self._chat else "text": content,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        chunk = {**self._chunk_head, "choices": [choice]}
        if self._include_usage:
            chunk["usage"] = None
        return event(chunk)


def _reason(reason: FinishReason, calls: object) -> str:
    return "tool_calls" if calls and reason == "stop" else reason


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": new_call_id(),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _usage(usages: Sequence[Usage]) -> dict[str, Any]:
    """The prompt is computed, and counts, once."""
    first = usages[0]
    completion_tokens = sum(usage.completion_tokens for usage in usages)
    return {
        "prompt_tokens": first.prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": first.prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": first.cached_tokens},
    }
