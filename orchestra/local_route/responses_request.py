"""Read a request of OpenAI's responses endpoint.

Nothing is kept between requests, so what refers to an earlier one (``previous_response_id``, ``conversation``) is
refused; send the whole conversation as ``input``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestra.errors import InputError
from orchestra.local_route.chat_request import HINTS
from orchestra.local_route.fields import (
    SAMPLING,
    Fields,
    LocalRequest,
    optional,
    read_sampling,
    read_text,
    shown,
)

__all__ = ["read_response"]

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_PARTS = ("input_text", "output_text")
_FIELDS = Fields(
    SAMPLING | {"model", "input", "instructions", "stream", "stream_options", "max_output_tokens", "text"},
    HINTS | {"max_tool_calls", "reasoning"},
    {
        "background": (False,),
        "include": ([], ["reasoning.encrypted_content"]),  # there is no reasoning
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
    },
)
_TEXT = Fields(frozenset(), frozenset({"verbosity"}), {"format": ({"type": "text"},)})


def read_response(payload: Mapping[str, Any]) -> LocalRequest:
    """Raises InputError with ``param`` set."""
    _FIELDS.check(payload)
    _TEXT.check(optional(payload, "text", dict) or {}, "text.")
    optional(payload, "stream_options", dict)  # whether deltas are padded is all that it says
    messages = _read_input(payload)
    if instructions := optional(payload, "instructions", str):
        messages.insert(0, {"role": "system", "content": instructions})
    streams = optional(payload, "stream", bool) or False
    sampling = read_sampling(payload, lengths=("max_output_tokens",))
    return LocalRequest(messages, "input", sampling, streams, include_usage=streams)


def _read_input(payload: Mapping[str, Any]) -> list[dict[str, str]]:
    given = optional(payload, "input", str, list)
    if not given:
        raise InputError("input must be a text, or a list of at least one message", param="input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return [_read_item(item, f"input[{index}]") for index, item in enumerate(given)]


def _read_item(item: Any, place: str) -> dict[str, str]:
    if not isinstance(item, Mapping):
        raise InputError(f"{place} must be an object with role and content, not {shown(item)}", param=place)
    kind = item.get("type")
    if kind not in (None, "message"):
        raise InputError(f"{place}: the local engine reads messages only, not {shown(kind)}", param=place)
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InputError(
            f"{place}.role must be one of {', '.join(_ROLES)}, not {shown(role)}", param=f"{place}.role"
        )
    return {"role": _ROLES[role], "content": read_text(item.get("content"), f"{place}.content", _PARTS)}
