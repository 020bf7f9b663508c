"""Read a request of Anthropic's messages endpoint."""

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

__all__ = ["read_message"]

_ROLES = ("user", "assistant")
_FIELDS = Fields(
    SAMPLING | {"model", "messages", "system", "stream", "max_tokens", "stop_sequences", "output_config"},
    frozenset(
        {"cache_control", "inference_geo", "metadata", "service_tier", "speed", "user_profile_id", "workspace_id"}
    ),
    {
        "mcp_servers": ([],),
        "thinking": ({"type": "disabled"}, {"type": "adaptive"}),
        "tool_choice": ({"type": "auto"}, {"type": "none"}),
        "tools": ([],),
    },
)
_OUTPUT_CONFIG = Fields(frozenset(), frozenset({"effort"}), {})


def read_message(payload: Mapping[str, Any]) -> LocalRequest:
    """Raises InputError with ``param`` set."""
    _FIELDS.check(payload)
    _OUTPUT_CONFIG.check(optional(payload, "output_config", dict) or {}, "output_config.")
    if payload.get("max_tokens") is None:
        raise InputError("max_tokens: the messages endpoint needs it", param="max_tokens")
    optional(payload, "stop_sequences", list)
    messages = _read_messages(payload)
    if payload.get("system"):
        messages.insert(0, {"role": "system", "content": read_text(payload["system"], "system")})
    sampling = read_sampling(payload, lengths=("max_tokens",), stop="stop_sequences")
    streams = optional(payload, "stream", bool) or False
    return LocalRequest(messages, "messages", sampling, streams, include_usage=streams)


def _read_messages(payload: Mapping[str, Any]) -> list[dict[str, str]]:
    given = optional(payload, "messages", list)
    if not given:
        raise InputError("messages must hold at least one message", param="messages")
    messages = [_read_one(message, f"messages[{index}]") for index, message in enumerate(given)]
    if messages[-1]["role"] == "assistant":
        place = f"messages[{len(messages) - 1}]"
        raise InputError(f"{place}: the local engine cannot go on with an answer that is begun", param=place)
    return messages


def _read_one(message: Any, place: str) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise InputError(f"{place} must be an object with role and content, not {shown(message)}", param=place)
    role = message.get("role")
    if role not in _ROLES:
        raise InputError(
            f"{place}.role must be one of {', '.join(_ROLES)}, not {shown(role)}", param=f"{place}.role"
        )
    return {"role": str(role), "content": read_text(message.get("content"), f"{place}.content")}
