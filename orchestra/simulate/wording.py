"""What simulated requests say, and the answers to them.

A request's first words tell what its answer is going to be. So whoever answers needs to know nothing else, over
the wire or in a batch, and a request means the same wherever it goes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from orchestra.config import LOCAL, Config
from orchestra.simulate.traffic import Size

__all__ = ["Told", "Wire", "answer", "ask", "told_in", "wire_of"]

Wire = Literal["openai", "anthropic", "gemini"]
"""What a request is written in: OpenAI's chat completions, Anthropic's messages, Gemini's contents."""

_CHARACTERS = 4  # a token, as `orchestra.providers.estimate` has it
_FRAME = 23  # and what it counts for a message's own names
_PREFIX = "sim "
_ENCODER = json.JSONEncoder(separators=(",", ":"))  # `json.dumps` makes one each time


class Told(NamedTuple):
    """What a request says: tokens of its prompt and of its answer, and the seconds that takes, where known."""

    prompt: int
    output: int
    seconds: float | None


def wire_of(config: Config, model: str) -> Wire:
    """Return what most routes of ``model`` speak: a call reaches those alone."""
    entry = config.models.get(model)
    heads = [route.partition("/")[0] for route in (entry.routes if entry else (model,))]
    kinds = [config.providers[head].kind for head in heads if head != LOCAL and head in config.providers]
    spoken: Counter[Wire] = Counter(_WIRES.get(kind, "openai") for kind in kinds)
    return spoken.most_common(1)[0][0] if spoken else "openai"


_WIRES: Mapping[str, Wire] = {"anthropic": "anthropic", "gemini": "gemini"}


def ask(wire: Wire, model: str, size: Size) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a request of that size."""
    seconds = "-" if size.seconds is None else f"{size.seconds:.6f}"
    counted = size.prompt if size.counted_prompt is None else size.counted_prompt
    said = f"{_PREFIX}{counted} {size.output} {seconds} "
    text = said.ljust(size.prompt * _CHARACTERS - _FRAME, "x")
    most = size.most_output
    match wire:
        case "gemini":
            body: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": text}]}]}
            if most is not None:
                body["generationConfig"] = {"maxOutputTokens": most}
            return f"/v1beta/models/{model}:generateContent", body
        case "anthropic":
            messages = [{"role": "user", "content": text}]
            return "/v1/messages", {
                "model": model,
                "max_tokens": most or max(size.output, 1),
                "messages": messages,
            }
        case "openai":
            body = {"model": model, "messages": [{"role": "user", "content": text}]}
            return "/v1/chat/completions", body if most is None else {**body, "max_tokens": most}


def told_in(payload: Mapping[str, Any]) -> Told:
    """Return what a request's body says of its answer. Raises ValueError where it is none of ours."""
    if "contents" in payload:
        text = payload["contents"][0]["parts"][0]["text"]
    else:
        text = payload["messages"][0]["content"]
    if not text.startswith(_PREFIX):
        raise ValueError("this is no request of a simulation")
    _, counted, output, seconds, _ = text.split(" ", 4)
    return Told(int(counted), int(output), None if seconds == "-" else float(seconds))


def answer(path: str, payload: Mapping[str, Any], told: Told) -> bytes:
    """Return the answer to a request with that body at a path."""
    model, prompt, output = payload.get("model", ""), told.prompt, told.output
    if "contents" in payload:
        body: dict[str, Any] = {
            "candidates": [{"content": {"role": "model", "parts": [{"text": "."}]}, "finishReason": "STOP"}],
            "usageMetadata": {
                "promptTokenCount": prompt,
                "candidatesTokenCount": output,
                "totalTokenCount": prompt + output,
            },
        }
    elif path.endswith("/messages"):
        body = {
            "id": "msg_sim",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [{"type": "text", "text": "."}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": prompt, "output_tokens": output},
        }
    else:
        message = {"role": "assistant", "content": "."}
        body = {
            "id": "sim",
            "object": "chat.completion",
            "created": 0,
            "model": model,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output},
        }
    return _ENCODER.encode(body).encode()
