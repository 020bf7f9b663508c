"""Read a request of OpenAI's chat or completions endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestra.errors import InputError
from orchestra.local_route.fields import (
    SAMPLING,
    Fields,
    LocalRequest,
    optional,
    read_sampling,
    read_text,
    shown,
)

__all__ = ["HINTS", "read_chat", "read_completion"]

COMPLETIONS_MAX_TOKENS = 16
"""What /completions generates where it is not told, by OpenAI's description. Chat goes on to the context's end."""

HINTS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",  # without tools there is nothing to call in parallel
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Fields of all of OpenAI's endpoints that cannot change the text."""

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_OBEYED = SAMPLING | {"model", "stream", "stream_options", "stop", "max_tokens", "max_completion_tokens"}
_HINTS = HINTS | {"prediction", "priority", "reasoning_effort", "verbosity"}
_ASKS_FOR_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "n": (1,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
}
_CHAT = Fields(_OBEYED | {"messages"}, _HINTS, _ASKS_FOR_NOTHING)
_COMPLETIONS = Fields(_OBEYED | {"prompt"}, _HINTS, _ASKS_FOR_NOTHING)


def read_chat(payload: Mapping[str, Any]) -> LocalRequest:
    """Raises InputError with ``param`` set."""
    _CHAT.check(payload)
    return _request(payload, _read_messages(payload), "messages", None)


def read_completion(payload: Mapping[str, Any]) -> LocalRequest:
    """Raises InputError with ``param`` set."""
    _COMPLETIONS.check(payload)
    return _request(payload, _read_text_prompt(payload), "prompt", COMPLETIONS_MAX_TOKENS)


def _request(
    payload: Mapping[str, Any],
    prompt: list[dict[str, str]] | str | list[int],
    prompt_field: str,
    max_tokens: int | None,
) -> LocalRequest:
    streams = optional(payload, "stream", bool) or False
    options = optional(payload, "stream_options", dict) or {}
    return LocalRequest(
        prompt=prompt,
        prompt_field=prompt_field,
        sampling=read_sampling(
            payload, lengths=("max_tokens", "max_completion_tokens"), stop="stop", max_tokens=max_tokens
        ),
        streams=streams,
        include_usage=streams and optional(options, "include_usage", bool, prefix="stream_options.") is True,
    )


def _read_messages(payload: Mapping[str, Any]) -> list[dict[str, str]]:
    messages = optional(payload, "messages", list)
    if not messages:
        raise InputError("messages must hold at least one message", param="messages")
    return [_read_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _read_message(message: Any, place: str) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise InputError(f"{place} must be an object with role and content, not {shown(message)}", param=place)
    for field in ("tool_calls", "function_call", "audio"):
        if message.get(field):
            raise InputError(f"{place}: the local engine cannot do {field!r} yet", param=f"{place}.{field}")
    role = message.get("role")
    if role in ("tool", "function"):
        raise InputError(f"{place}: the local engine cannot do tools yet", param=f"{place}.role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InputError(
            f"{place}.role must be one of {', '.join(_ROLES)}, not {shown(role)}", param=f"{place}.role"
        )
    return {"role": _ROLES[role], "content": read_text(message.get("content"), f"{place}.content")}


def _read_text_prompt(payload: Mapping[str, Any]) -> str | list[int]:
    """``prompt`` is text or token ids, or a list of one of them."""
    prompt = payload.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise InputError("the local engine takes one prompt a request: send the others apart", param="prompt")
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(type(token) is int and token >= 0 for token in prompt):
        return prompt
    raise InputError(f"prompt must be text or token ids, and not empty; it is {shown(prompt)}", param="prompt")
