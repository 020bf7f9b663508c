"""Read tools, and the choice among them, into the one form that the engine takes (OpenAI's chat endpoint's)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestra.errors import InputError
from orchestra.local_route.fields import optional, shown

if TYPE_CHECKING:
    from orchestra.localengine.request import Prompt

__all__ = ["Tools", "new_call_id", "read_flat_tools", "read_tools"]


@dataclass(frozen=True, slots=True)
class Tools:
    """``choice`` is ``none``, ``auto``, ``required``, or a tool's name."""

    tools: Sequence[Mapping[str, Any]] = ()
    choice: str = "auto"
    parallel: bool = True

    @property
    def offered(self) -> bool:
        return bool(self.tools) and self.choice != "none"

    def refuse_beside(self, form: object, field: str) -> None:
        """Raise InputError where tools are offered and the answer is to have a form, too."""
        if form is not None and self.offered:
            raise InputError(
                f"{field}: the local engine cannot hold an answer to a form and offer tools beside it: set "
                "tool_choice to none, or leave one of them out",
                param=field,
            )

    def prompt(self, messages: list[dict[str, Any]]) -> Prompt:
        """The messages with these tools, where there are any."""
        if not self.offered:
            return messages
        from orchestra.localengine.request import Chat

        return Chat(messages, self.tools, self.choice, self.parallel)


def new_call_id(prefix: str = "call_") -> str:
    return prefix + uuid.uuid4().hex[:24]


def read_tools(payload: Mapping[str, Any]) -> Tools:
    """Read those of OpenAI's chat endpoint, whose functions are in objects of their own."""
    tools = []
    for index, tool in enumerate(optional(payload, "tools", list) or []):
        place = f"tools[{index}]"
        _require_function(tool, place)
        tools.append(_tool(optional(tool, "function", dict, prefix=f"{place}.") or {}, f"{place}.function"))
    choice = payload.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        choice = {**(optional(choice, "function", dict, prefix="tool_choice.") or {}), "type": "function"}
    return _tools(payload, tools, choice)


def read_flat_tools(payload: Mapping[str, Any]) -> Tools:
    """Read those of OpenAI's responses endpoint, whose functions are the tools themselves."""
    tools = []
    for index, tool in enumerate(optional(payload, "tools", list) or []):
        _require_function(tool, f"tools[{index}]")
        tools.append(_tool(tool, f"tools[{index}]"))
    return _tools(payload, tools, payload.get("tool_choice"))


def _tools(payload: Mapping[str, Any], tools: list[dict[str, Any]], choice: Any) -> Tools:
    names = [tool["function"]["name"] for tool in tools]
    if isinstance(choice, Mapping):
        name = choice.get("name")
        if choice.get("type") != "function" or name not in names:
            raise InputError(f"tool_choice: {shown(name or choice)} is none of the tools", param="tool_choice")
        choice = name
    elif choice not in (None, "none", "auto", "required"):
        raise InputError(
            f"tool_choice must be none, auto, required or a function, not {shown(choice)}", param="tool_choice"
        )
    elif choice == "required" and not tools:
        raise InputError("tool_choice: there are no tools of which one could be required", param="tool_choice")
    parallel = optional(payload, "parallel_tool_calls", bool)
    return Tools(tools, choice or "auto", parallel is not False)


def _require_function(tool: Any, place: str) -> None:
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if kind != "function":
        raise InputError(f"{place}: the local engine cannot do tools of type {shown(kind)} yet", param=place)


def _tool(function: Mapping[str, Any], place: str) -> dict[str, Any]:
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise InputError(f"{place}.name must be a string, not {shown(name)}", param=f"{place}.name")
    read: dict[str, Any] = {"name": name}
    if description := optional(function, "description", str, prefix=f"{place}."):
        read["description"] = description
    read["parameters"] = optional(function, "parameters", dict, prefix=f"{place}.") or {"type": "object"}
    return {"type": "function", "function": read}
