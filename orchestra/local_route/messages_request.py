"""Read a request of Anthropic's messages endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

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
from orchestra.local_route.forms import read_form
from orchestra.local_route.tools import Tools, read_flat_tools

__all__ = ["read_message"]

_ROLES = ("user", "assistant")
_FIELDS = Fields(
    SAMPLING
    | {"model", "messages", "system", "stream", "max_tokens", "stop_sequences", "output_config", "output_format"}
    | {"tools", "tool_choice", "cache_salt"},
    frozenset(
        {"cache_control", "inference_geo", "metadata", "service_tier", "speed", "user_profile_id", "workspace_id"}
    ),
    {
        "mcp_servers": ([],),
        "thinking": ({"type": "disabled"}, {"type": "adaptive"}),
    },
)
_OUTPUT_CONFIG = Fields(frozenset({"format"}), frozenset({"effort"}), {})
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def read_message(payload: Mapping[str, Any]) -> LocalRequest:
    """Raises InputError with ``param`` set."""
    _FIELDS.check(payload)
    config = optional(payload, "output_config", dict) or {}
    _OUTPUT_CONFIG.check(config, "output_config.")
    form_field = "output_config.format" if config.get("format") is not None else "output_format"
    form = read_form(config.get("format") or payload.get("output_format"), form_field, nested=False)
    tools = _read_tools(payload)
    tools.refuse_beside(form, form_field)
    if payload.get("max_tokens") is None:
        raise InputError("max_tokens: the messages endpoint needs it", param="max_tokens")
    optional(payload, "stop_sequences", list)
    messages = _read_messages(payload)
    if payload.get("system"):
        messages.insert(0, {"role": "system", "content": read_text(payload["system"], "system")})
    sampling = read_sampling(payload, lengths=("max_tokens",), stop="stop_sequences", form=(form_field, form))
    streams = optional(payload, "stream", bool) or False
    return LocalRequest(
        tools.prompt(messages),
        "messages",
        sampling,
        streams,
        include_usage=streams,
        form_field=form_field,
        cache_salt=read_cache_salt(payload),
    )


def _read_tools(payload: Mapping[str, Any]) -> Tools:
    tools = []
    for index, tool in enumerate(optional(payload, "tools", list) or []):
        place = f"tools[{index}]"
        if not isinstance(tool, Mapping) or tool.get("type") not in (None, "custom"):
            raise InputError(f"{place}: the local engine calls tools of the caller's own only", param=place)
        schema = optional(tool, "input_schema", dict, prefix=f"{place}.")
        tools.append({**tool, "type": "function", "parameters": schema})
    choice = optional(payload, "tool_choice", dict) or {"type": "auto"}
    kind = choice.get("type")
    if kind not in (*_CHOICES, "tool"):
        raise InputError(
            f"tool_choice.type must be auto, any, tool or none, not {shown(kind)}", param="tool_choice"
        )
    named = {"type": "function", "name": choice.get("name")}
    return read_flat_tools(
        {
            "tools": tools,
            "tool_choice": named if kind == "tool" else _CHOICES[str(kind)],
            "parallel_tool_calls": not choice.get("disable_parallel_tool_use"),
        }
    )


def _read_messages(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = optional(payload, "messages", list)
    if not given:
        raise InputError("messages must hold at least one message", param="messages")
    messages = [one for index, message in enumerate(given) for one in _read_one(message, f"messages[{index}]")]
    if messages[-1]["role"] == "assistant":
        place = f"messages[{len(given) - 1}]"
        raise InputError(f"{place}: the local engine cannot go on with an answer that is begun", param=place)
    return messages


def _read_one(message: Any, place: str) -> Iterator[dict[str, Any]]:
    """Results of tools are messages of their own, which come before the text beside them."""
    if not isinstance(message, Mapping):
        raise InputError(f"{place} must be an object with role and content, not {shown(message)}", param=place)
    role = message.get("role")
    if role not in _ROLES:
        raise InputError(
            f"{place}.role must be one of {', '.join(_ROLES)}, not {shown(role)}", param=f"{place}.role"
        )
    content = message.get("content")
    if not isinstance(content, list) or not any(_kind(part) in _TOOL_PARTS for part in content):
        yield {"role": str(role), "content": read_text(content, f"{place}.content")}
        return
    texts, calls = [], []
    for index, part in enumerate(content):
        where = f"{place}.content[{index}]"
        match role, _kind(part):
            case "user", "tool_result":
                result = part.get("content")
                text = read_text(result, f"{where}.content") if result else ""
                yield {"role": "tool", "tool_call_id": str(part.get("tool_use_id") or ""), "content": text}
            case "assistant", "tool_use":
                calls.append(_read_call(part, where))
            case _, "tool_use" | "tool_result":
                raise InputError(f"{where}: a {_kind(part)} is not the {role}'s to say", param=where)
            case _:
                texts.append(read_text([part], f"{place}.content", first=index))
    text = "\n".join(texts)
    if calls:
        yield {"role": "assistant", "content": text, "tool_calls": calls}
    elif text:
        yield {"role": str(role), "content": text}


_TOOL_PARTS = ("tool_use", "tool_result")


def _kind(part: Any) -> Any:
    return part.get("type") if isinstance(part, Mapping) else None


def _read_call(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    name, given = part.get("name"), part.get("input")
    if not isinstance(name, str) or not isinstance(given, Mapping):
        raise InputError(f"{where} must have a name and an input, an object", param=where)
    function = {"name": name, "arguments": json.dumps(given, ensure_ascii=False)}
    return {"id": str(part.get("id") or ""), "type": "function", "function": function}
