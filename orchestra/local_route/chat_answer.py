"""Write an answer in the form of OpenAI's chat or completions endpoint."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from orchestra.local_route.answer import event, plain

if TYPE_CHECKING:
    from orchestra.localengine.request import Completion, Delta, FinishReason, Usage

__all__ = ["ChatAnswer"]

DONE = b"data: [DONE]\n\n"


class ChatAnswer:
    """``chat`` tells the two endpoints apart. ``include_usage`` adds the chunk that has the usage and no choices,
    and ``usage: null`` to the others.
    """

    def __init__(self, *, chat: bool, call_id: str, model: str, include_usage: bool = False) -> None:
        self._chat = chat
        self._include_usage = include_usage
        self._head = {
            "id": ("chatcmpl-" if chat else "cmpl-") + call_id,
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, completion: Completion) -> bytes:
        end: dict[str, Any] = {"logprobs": None, "finish_reason": completion.finish_reason}
        if self._chat:
            message = {"role": "assistant", "content": completion.text, "refusal": None}
            choice = {"index": 0, "message": message, **end}
        else:
            choice = {"index": 0, "text": completion.text, **end}
        return plain(
            {
                **self._head,
                "object": "chat.completion" if self._chat else "text_completion",
                "choices": [choice],
                "usage": _usage(completion.usage),
            }
        )

    def opening(self) -> bytes:
        """Chat streams start with the role; others with nothing."""
        return self._chunk({"role": "assistant", "content": "", "refusal": None}) if self._chat else b""

    def piece(self, text: str) -> bytes:
        return self._chunk({"content": text} if self._chat else text)

    def ending(self, last: Delta) -> bytes:
        events = self._chunk({} if self._chat else "", last.finish_reason)
        if self._include_usage and last.usage is not None:
            events += event({**self._chunk_head, "choices": [], "usage": _usage(last.usage)})
        return events + DONE

    @property
    def _chunk_head(self) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk" if self._chat else "text_completion"}

    def _chunk(self, content: dict[str, Any] | str, finish_reason: FinishReason | None = None) -> bytes:
        choice = {
            "index": 0,
            "delta" if self._chat else "text": content,
            "logprobs": None,
            "finish_reason": finish_reason,
        }
        chunk = {**self._chunk_head, "choices": [choice]}
        if self._include_usage:
            chunk["usage"] = None
        return event(chunk)


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
