"""Write the in-process engine's answer in OpenAI's form: one JSON object, or server-sent events."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestra.local_route.request import Endpoint
    from orchestra.localengine.request import Completion, FinishReason, Usage

__all__ = ["LocalAnswer"]

DONE = b"data: [DONE]\n\n"


class LocalAnswer:
    """One answer's identity, and its bytes in the order of the wire.

    A stream is `opening`, any number of `piece`, `ending`. ``include_usage`` adds the chunk that has the usage and
    no choices, and ``usage: null`` to the others.
    """

    def __init__(self, endpoint: Endpoint, *, call_id: str, model: str, include_usage: bool = False) -> None:
        self._chat = endpoint == "chat"
        self._include_usage = include_usage
        self._head = {
            "id": ("chatcmpl-" if self._chat else "cmpl-") + call_id,
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, completion: Completion) -> bytes:
        """Return the body of an answer that is not streamed."""
        end: dict[str, Any] = {"logprobs": None, "finish_reason": completion.finish_reason}
        if self._chat:
            message = {"role": "assistant", "content": completion.text, "refusal": None}
            choice = {"index": 0, "message": message, **end}
        else:
            choice = {"index": 0, "text": completion.text, **end}
        body = {
            **self._head,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [choice],
            "usage": _usage(completion.usage),
        }
        return _json(body)

    def opening(self) -> bytes:
        """Chat streams start with the role; others with nothing."""
        return self._event({"role": "assistant", "content": "", "refusal": None}) if self._chat else b""

    def piece(self, text: str) -> bytes:
        return self._event({"content": text} if self._chat else text)

    def ending(self, finish_reason: FinishReason, usage: Usage) -> bytes:
        events = self._event({} if self._chat else "", finish_reason)
        if self._include_usage:
            events += _sse({**self._chunk_head, "choices": [], "usage": _usage(usage)})
        return events + DONE

    @property
    def _chunk_head(self) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk" if self._chat else "text_completion"}

    def _event(self, content: dict[str, Any] | str, finish_reason: FinishReason | None = None) -> bytes:
        choice = {
            "index": 0,
            "delta" if self._chat else "text": content,
            "logprobs": None,
            "finish_reason": finish_reason,
        }
        chunk = {**self._chunk_head, "choices": [choice]}
        if self._include_usage:
            chunk["usage"] = None
        return _sse(chunk)


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _sse(chunk: Any) -> bytes:
    return b"data: " + _json(chunk) + b"\n\n"
