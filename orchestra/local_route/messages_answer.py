"""Write an answer in the form of Anthropic's messages endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestra.local_route.answer import event, plain

if TYPE_CHECKING:
    from orchestra.localengine.request import Completion, Delta, FinishReason, Usage

__all__ = ["MessagesAnswer"]


class MessagesAnswer:
    """``input_tokens`` is what the first event of a stream says that the prompt has."""

    def __init__(self, *, call_id: str, model: str, input_tokens: int = 0) -> None:
        self._input_tokens = input_tokens
        self._message: dict[str, Any] = {
            "id": f"msg_{call_id}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }

    def whole(self, completion: Completion) -> bytes:
        return plain(
            {
                **self._message,
                "content": [{"type": "text", "text": completion.text, "citations": None}],
                **_end(completion.finish_reason, completion.stop),
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
        return _event("message_start", message=message) + _event(
            "content_block_start", index=0, content_block={"type": "text", "text": ""}
        )

    def piece(self, text: str) -> bytes:
        return _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def ending(self, last: Delta) -> bytes:
        usage = {} if last.usage is None else {"usage": _usage(last.usage)}
        return (
            _event("content_block_stop", index=0)
            + _event("message_delta", delta=_end(last.finish_reason, last.stop), **usage)
            + _event("message_stop")
        )


def _end(reason: FinishReason | None, stop: str | None) -> dict[str, Any]:
    if reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
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
