"""Read a request of OpenAI's chat or completions endpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestra.errors import InputError
from orchestra.local_route.fields import (
    SAMPLING,
    Fields,
    LocalRequest,
    optional,
    read_cache_salt,
    read_sampling,
    read_text,
    shown,
)
from orchestra.local_route.forms import read_form, read_structured_outputs
from orchestra.local_route.tools import read_tools

if TYPE_CHECKING:
    from orchestra.localengine.request import Prompt
    from orchestra.localengine.sampling_params import Structure

__all__ = ["HINTS", "read_chat", "read_completion"]

COMPLETIONS_MAX_TOKENS = 16
"""What /completions generates where it is not told, by OpenAI's description. Chat goes on to the context's end."""

HINTS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",  # obeyed where there are tools; without, there is nothing to call in parallel
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
_OBEYED = SAMPLING | {
    "model",
    "stream",
    "stream_options",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "logit_bias",
    "logprobs",
    "structured_outputs",
    "cache_salt",
}
_HINTS = HINTS | {"prediction", "priority", "reasoning_effort", "verbosity"}
_ASKS_FOR_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "suffix": ("",),
}
_CHAT = Fields(
    _OBEYED | {"messages", "response_format", "tools", "tool_choice", "top_logprobs"}, _HINTS, _ASKS_FOR_NOTHING
)
_COMPLETIONS = Fields(_OBEYED | {"prompt"}, _HINTS, _ASKS_FOR_NOTHING)


def read_chat(payload: Mapping[str, Any]) -> LocalRequest:
    """Raises InputError with ``param`` set."""
    _CHAT.check(payload)
    tools = read_tools(payload)
    form = read_form(payload.get("response_format"), "response_format", nested=True)
    tools.refuse_beside(form, "response_format")
    tools.refuse_beside(payload.get("structured_outputs"), "structured_outputs")
    wants = optional(payload, "logprobs", bool)
    top = optional(payload, "top_logprobs", int)
    if top and not wants:
        raise InputError("top_logprobs needs logprobs to be true", param="top_logprobs")
    return _request(
        payload,
        tools.prompt(_read_messages(payload)),
        "messages",
        None,
        ("top_logprobs", (top or 0) if wants else None),
        form,
    )


def read_completion(payload: Mapping[str, Any]) -> LocalRequest:
    """Raises InputError with ``param`` set."""
    _COMPLETIONS.check(payload)
    logprobs = payload.get("logprobs")
    top = None if logprobs is False else optional(payload, "logprobs", int)  # chat's false asks for nothing, too
    prompt = _read_text_prompt(payload)
    return _request(payload, prompt, "prompt", COMPLETIONS_MAX_TOKENS, ("logprobs", top), None)


def _request(
    payload: Mapping[str, Any],
    prompt: Prompt,
    prompt_field: str,
    max_tokens: int | None,
    logprobs: tuple[str, int | None],
    form: Structure | None,
) -> LocalRequest:
    form_field = "response_format"
    if (other := read_structured_outputs(payload)) is not None:
        if form is not None:
            raise InputError(
                "response_format and structured_outputs disagree: give one", param="structured_outputs"
            )
        form, form_field = other, "structured_outputs"
    streams = optional(payload, "stream", bool) or False
    options = optional(payload, "stream_options", dict) or {}
    return LocalRequest(
        prompt=prompt,
        prompt_field=prompt_field,
        sampling=read_sampling(
            payload,
            lengths=("max_tokens", "max_completion_tokens"),
            stop="stop",
            max_tokens=max_tokens,
            logprobs=logprobs,
            form=(form_field, form),
        ),
        streams=streams,
        include_usage=streams and optional(options, "include_usage", bool, prefix="stream_options.") is True,
        form_field=form_field,
        cache_salt=read_cache_salt(payload),
    )


def _read_messages(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = optional(payload, "messages", list)
    if not messages:
        raise InputError("messages must hold at least one message", param="messages")
    return [_read_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _read_message(message: Any, place: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InputError(f"{place} must be an object with role and content, not {shown(message)}", param=place)
    for field in ("function_call", "audio"):
        if message.get(field):
            raise InputError(f"{place}: the local engine cannot do {field!r} yet", param=f"{place}.{field}")
    role = message.get("role")
    if role == "tool":
        call_id = optional(message, "tool_call_id", str, prefix=f"{place}.")
        text = read_text(message.get("content"), f"{place}.content")
        return {"role": "tool", "tool_call_id": call_id or "", "content": text}
    if not isinstance(role, str) or role not in _ROLES:
        raise InputError(
            f"{place}.role must be one of {', '.join(_ROLES)}, not {shown(role)}", param=f"{place}.role"
        )
    if role == "assistant" and message.get("tool_calls"):
        calls = _read_calls(optional(message, "tool_calls", list, prefix=f"{place}."), f"{place}.tool_calls")
        content = message.get("content")
        text = read_text(content, f"{place}.content") if content else ""
        return {"role": "assistant", "content": text, "tool_calls": calls}
    return {"role": _ROLES[role], "content": read_text(message.get("content"), f"{place}.content")}


def _read_calls(calls: list[Any], place: str) -> list[dict[str, Any]]:
    return [_read_call(call, f"{place}[{index}]") for index, call in enumerate(calls)]


def _read_call(call: Any, place: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputError(f"{place} must have a function with a name and arguments", param=place)
    arguments = function.get("arguments")
    try:
        if not isinstance(arguments, str) or not isinstance(json.loads(arguments or "{}"), dict):
            raise ValueError
    except (ValueError, RecursionError):
        raise InputError(
            f"{place}.function.arguments must be the text of a JSON object", param=f"{place}.function.arguments"
        ) from None
    return {
        "id": str(call.get("id") or ""),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments or "{}"},
    }


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
