"""Read a request of OpenAI's responses endpoint.

Nothing is kept between requests, so what refers to an earlier one (``previous_response_id``, ``conversation``) is
refused; send the whole conversation as ``input``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestra.errors import InputError
from orchestra.local_route.chat_request import HINTS
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
from orchestra.local_route.forms import read_form
from orchestra.local_route.tools import read_flat_tools

__all__ = ["read_response"]

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_PARTS = ("input_text", "output_text")
_FIELDS = Fields(
    SAMPLING
    | {"model", "input", "instructions", "stream", "stream_options", "max_output_tokens", "text"}
    | {"include", "tools", "tool_choice", "top_logprobs", "cache_salt"},
    HINTS | {"max_tool_calls", "reasoning"},
    {"background": (False,), "truncation": ("disabled",)},
)
_TEXT = Fields(frozenset({"format"}), frozenset({"verbosity"}), {})
_INCLUDED = ("reasoning.encrypted_content", "message.output_text.logprobs")  # there is no reasoning


def read_response(payload: Mapping[str, Any]) -> LocalRequest:
    """Raises InputError with ``param`` set."""
    _FIELDS.check(payload)
    text = optional(payload, "text", dict) or {}
    _TEXT.check(text, "text.")
    form = read_form(text.get("format"), "text.format", nested=False)
    tools = read_flat_tools(payload)
    tools.refuse_beside(form, "text.format")
    included = optional(payload, "include", list) or []
    for one in included:
        if one not in _INCLUDED:
            raise InputError(f"include: the local engine has nothing like {shown(one)}", param="include")
    top = optional(payload, "top_logprobs", int)
    wants = bool(top) or "message.output_text.logprobs" in included
    optional(payload, "stream_options", dict)  # whether deltas are padded is all that it says
    messages = _read_input(payload)
    if instructions := optional(payload, "instructions", str):
        messages.insert(0, {"role": "system", "content": instructions})
    streams = optional(payload, "stream", bool) or False
    sampling = read_sampling(
        payload,
        lengths=("max_output_tokens",),
        logprobs=("top_logprobs", (top or 0) if wants else None),
        form=("text.format", form),
    )
    return LocalRequest(
        tools.prompt(messages),
        "input",
        sampling,
        streams,
        include_usage=streams,
        form_field="text.format",
        cache_salt=read_cache_salt(payload),
    )


def _read_input(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = optional(payload, "input", str, list)
    if not given:
        raise InputError("input must be a text, or a list of at least one message", param="input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    for index, item in enumerate(given):
        message = _read_item(item, f"input[{index}]")
        if "tool_calls" in message and messages and messages[-1]["role"] == "assistant":
            last = messages[-1]  # what was said, and calls that were made at once, are one message
            messages[-1] = {**last, "tool_calls": [*last.get("tool_calls", []), *message["tool_calls"]]}
        else:
            messages.append(message)
    return messages


def _read_item(item: Any, place: str) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise InputError(f"{place} must be an object with role and content, not {shown(item)}", param=place)
    kind = item.get("type")
    if kind == "function_call":
        return {"role": "assistant", "content": "", "tool_calls": [_read_call(item, place)]}
    if kind == "function_call_output":
        output = item.get("output")
        text = read_text(output, f"{place}.output", _PARTS) if output else ""
        return {"role": "tool", "tool_call_id": str(item.get("call_id") or ""), "content": text}
    if kind not in (None, "message"):
        raise InputError(f"{place}: the local engine reads messages only, not {shown(kind)}", param=place)
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InputError(
            f"{place}.role must be one of {', '.join(_ROLES)}, not {shown(role)}", param=f"{place}.role"
        )
    return {"role": _ROLES[role], "content": read_text(item.get("content"), f"{place}.content", _PARTS)}


def _read_call(item: Mapping[str, Any], place: str) -> dict[str, Any]:
    name, arguments = item.get("name"), item.get("arguments")
    try:
        if not isinstance(name, str) or not isinstance(arguments, str):
            raise ValueError
        if not isinstance(json.loads(arguments or "{}"), dict):
            raise ValueError
    except (ValueError, RecursionError):
        raise InputError(
            f"{place} must have a name, and arguments that are a JSON object's text", param=place
        ) from None
    function = {"name": name, "arguments": arguments or "{}"}
    return {"id": str(item.get("call_id") or ""), "type": "function", "function": function}
