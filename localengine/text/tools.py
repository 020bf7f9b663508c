"""Tools that a model may call: how its family writes a call, and how a call is read from its output.

Families differ in the marks around a call (Hermes, Qwen and SmolLM: ``<tool_call>``; Mistral: ``[TOOL_CALLS]``;
Llama 3: bare JSON, perhaps after ``<|python_tag|>``). Which one a model uses is told by its chat template.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestra.localengine.errors import ParameterError
from orchestra.localengine.request import Chat, Message, ToolCall
from orchestra.localengine.sampling_params import Structure

__all__ = ["ToolParser", "ToolSyntax", "call_structure", "for_template", "tool_syntax"]


@dataclass(frozen=True, slots=True)
class ToolSyntax:
    """How a family writes its calls: ``opening``, a JSON object (or more), ``closing`` or the output's end.

    ``arguments`` is the object's key for them. ``bare``: an output that begins with an object is a call without
    the opening. ``named``: the tool's name stands before its arguments (Mistral's newer form). ``known``: the chat
    template has a place for tools; where it has none, they are described in the system message. ``visible`` are
    the control tokens among the marks, which have to be read.
    """

    opening: str
    closing: str | None
    arguments: str = "arguments"
    bare: bool = False
    named: bool = False
    known: bool = True
    visible: frozenset[int] = frozenset()


_HERMES = ToolSyntax("<tool_call>", "</tool_call>")
_MISTRAL = ToolSyntax("[TOOL_CALLS]", None)
_LLAMA = ToolSyntax("<|python_tag|>", None, arguments="parameters", bare=True)
_ARGUMENTS = "[ARGS]"
_MARKS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", _ARGUMENTS, "[CALL_ID]", "<|python_tag|>")


def tool_syntax(template: str, control_ids: Callable[[str], Sequence[int | str]]) -> ToolSyntax:
    """The syntax of a chat template's family. ``control_ids`` splits a text at control tokens, which are ids."""
    if "[TOOL_CALLS]" in template:
        syntax = replace(_MISTRAL, named=_ARGUMENTS in template)
    elif "<tool_call>" in template:
        syntax = _HERMES
    elif "tools" in template and "<|start_header_id|>" in template:
        syntax = _LLAMA
    else:
        syntax = replace(_HERMES, known="tools" in template)
    marks = (part for mark in _MARKS for part in control_ids(mark))
    return replace(syntax, visible=frozenset(part for part in marks if isinstance(part, int)))


class ToolParser:
    """Reads the calls of ``names`` from an output, piece by piece.

    ``push`` and ``flush`` return text that is final and no part of a call, and the calls that became whole. What
    looks like a call and is none (no JSON, no tool of that name) is text. White space around calls is left out.
    Without ``parallel`` calls after the first are left out.
    """

    def __init__(self, syntax: ToolSyntax, names: Collection[str], *, parallel: bool = True) -> None:
        self._syntax = syntax
        self._names = names
        self._parallel = parallel
        self._held = ""
        self._space = ""  # before the call that is begun: text, if it turns out to be none
        self._inside = False
        self._began = False  # something else than white space was said
        self._called = False

    def push(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        self._held += text
        return self._advance(last=False)

    def flush(self) -> tuple[str, tuple[ToolCall, ...]]:
        """The output has ended."""
        return self._advance(last=True)

    def _advance(self, *, last: bool) -> tuple[str, tuple[ToolCall, ...]]:
        texts: list[str] = []
        calls: list[ToolCall] = []
        while self._inside or self._opens(texts, last=last):
            body, closed = self._body(last=last)
            if body is None:
                break
            found = _read_calls(body, self._syntax, self._names)
            self._inside = False
            if found:
                calls += found if self._parallel else found[: not self._called]
                self._called = True
            else:
                marked = body if self._syntax.closing is None else self._syntax.opening + body + closed
                texts.append(self._space + marked)
                self._began = True
            if last and not self._held:
                break
        return "".join(texts), tuple(calls)

    def _opens(self, texts: list[str], *, last: bool) -> bool:
        """Put what comes before the next call in ``texts``; whether one begins."""
        held, syntax = self._held, self._syntax
        start = held.find(syntax.opening)
        if start < 0 and syntax.bare and not self._began and held.lstrip()[:1] in ("{", "["):
            self._inside = self._began = True
            return True
        if start >= 0:
            before, self._held = held[:start].rstrip(), held[start + len(syntax.opening) :]
            self._space = held[len(before) : start]
            self._inside = True
        else:
            keep = 0 if last else _beginning(held, syntax.opening)
            end = len(held[: len(held) - keep].rstrip())
            if last and self._called:
                keep = len(held)  # the white space that ends an output after its calls
            elif last:
                end = len(held)
            before, self._held = held[:end], "" if last else held[end:]
        if before:
            texts.append(before)
            self._began = True
        return self._inside

    def _body(self, *, last: bool) -> tuple[str | None, str]:
        """What a call that is begun consists of, and its closing mark; None where that is not known yet."""
        closing = self._syntax.closing
        end = -1 if closing is None else self._held.find(closing)
        if closing is not None and end >= 0:
            body, self._held = self._held[:end], self._held[end + len(closing) :]
            return body, closing
        if not last:
            return None, ""
        body, self._held = self._held, ""
        return body, ""


def call_structure(syntax: ToolSyntax, chat: Chat) -> Structure | None:
    """What holds an output to one call of the tools that ``chat`` demands; None where it demands none.

    Raises ParameterError where it demands a tool that it does not have.
    """
    if chat.tool_choice == "auto":
        return None
    functions = [_function(tool) for tool in chat.tools]
    wanted = [f for f in functions if chat.tool_choice in ("required", f["name"])]
    if not wanted:
        raise ParameterError(f"there is no tool {chat.tool_choice!r} among the tools", field="tool_choice")
    lines = []
    for number, function in enumerate(wanted):
        parameters = {"type": "object", **(function.get("parameters") or {})}
        shared = {key: parameters.pop(key) for key in ("$defs", "definitions") if key in parameters}
        if syntax.named:
            schema = {**parameters, **shared}
            lines.append(f"call{number}: {_text(function['name'] + _ARGUMENTS)} json{number}")
        else:
            schema = {
                "type": "object",
                "properties": {"name": {"const": function["name"]}, syntax.arguments: parameters},
                "required": ["name", syntax.arguments],
                "additionalProperties": False,
                **shared,
            }
            lines.append(f"call{number}: json{number}")
        schema["x-guidance"] = _SPACING
        lines.append(f"json{number}: %json {json.dumps(schema)}")
    calls = " | ".join(f"call{number}" for number in range(len(wanted)))
    if syntax.closing is not None:
        start = f'{_text(syntax.opening)} "\\n" call "\\n" {_text(syntax.closing)}'
    elif syntax.bare:
        start = "call"
    else:
        start = f"{_text(syntax.opening)} call" if syntax.named else f'{_text(syntax.opening)} "[" call "]"'
    return Structure("grammar", "\n".join([f"start: {start}", f"call: {calls}", *lines]))


def for_template(syntax: ToolSyntax, chat: Chat) -> Chat:
    """The chat as the family's template takes it.

    For one that knows no tools, these are described in the system message, and calls and results become text.
    """
    for tool in chat.tools:
        _function(tool)
    if not syntax.known:
        return Chat(_described(chat))
    if syntax.opening == _MISTRAL.opening:
        return replace(chat, messages=[_with_short_ids(message) for message in chat.messages])
    return chat


def _with_short_ids(message: Message) -> Message:
    """Mistral's templates take ids of nine letters and digits only."""

    def short(value: object) -> str:
        return hashlib.sha256(str(value).encode("utf-8", "replace")).hexdigest()[:9]

    if not isinstance(message, Mapping):
        return message
    calls = message.get("tool_calls")
    changed = dict(message)
    if isinstance(calls, list | tuple):
        changed["tool_calls"] = [{**c, "id": short(c.get("id"))} if isinstance(c, Mapping) else c for c in calls]
    if "tool_call_id" in message:
        changed["tool_call_id"] = short(message["tool_call_id"])
    return changed


def _described(chat: Chat) -> list[Message]:
    described = "\n".join(json.dumps(_function(tool), ensure_ascii=False) for tool in chat.tools)
    guide = (
        f"You can call these functions:\n{described}\n"
        f"To call one, write\n{_HERMES.opening}\n"
        f'{{"name": "the function\'s name", "arguments": {{...}}}}\n{_HERMES.closing}\nand nothing else.'
    )
    messages = [_plain(message) for message in chat.messages]
    if not chat.tools:
        return messages
    if messages and messages[0].get("role") in ("system", "developer"):
        first = messages[0]
        return [{**first, "content": f"{_content(first)}\n\n{guide}"}, *messages[1:]]
    return [{"role": "system", "content": guide}, *messages]


def _plain(message: Message) -> Message:
    if not isinstance(message, Mapping):
        return message  # the template refuses it
    calls = message.get("tool_calls")
    if message.get("role") == "tool":
        return {"role": "user", "content": f"<tool_response>\n{_content(message)}\n</tool_response>"}
    if not isinstance(calls, list | tuple) or not calls:
        return message
    texts = [_content(message)] if message.get("content") else []
    for call in calls:
        function = _function(call)
        body = {"name": function["name"], "arguments": _object(function.get("arguments")) or {}}
        texts.append(f"{_HERMES.opening}\n{json.dumps(body, ensure_ascii=False)}\n{_HERMES.closing}")
    return {"role": "assistant", "content": "\n".join(texts)}


def _content(message: Message) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content) if isinstance(content, list) else str(content)


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The function of a tool, or of a call. Raises ParameterError where it is none."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ParameterError("each tool must be {'type': 'function', 'function': {'name': ...}}", field="tools")
    if not isinstance(function.get("parameters") or {}, Mapping):
        raise ParameterError(f"the parameters of tool {function['name']!r} must be a JSON schema", field="tools")
    return dict(function)


def _read_calls(body: str, syntax: ToolSyntax, names: Collection[str]) -> list[ToolCall]:
    """The calls that ``body`` consists of; none where it is anything else."""
    values: list[Any] = []
    for part in body.split(syntax.opening):  # some models repeat it between calls
        if (match := _NAMED.match(part)) and syntax.opening == _MISTRAL.opening:
            arguments, rest = _decode(part[match.end() :])
            values.append({"name": match[1], "arguments": arguments})
        else:
            rest = part
        while rest.strip(_BETWEEN):
            value, rest = _decode(rest.lstrip(_BETWEEN))
            values += value if isinstance(value, list) else [value]
    calls = [_read_call(value, names) for value in values]
    return [call for call in calls if call is not None] if all(calls) else []


_NAMED = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\][\w-]*)?(?:\[ARGS\])?\s*(?=\{)")
_BETWEEN = " \t\r\n;"
_DECODER = json.JSONDecoder()
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # as models are taught


def _decode(text: str) -> tuple[Any, str]:
    """The JSON value that ``text`` begins with, and the rest; None and nothing where there is none."""
    try:
        value, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None, ""
    return value, text[end:]


def _read_call(value: Any, names: Collection[str]) -> ToolCall | None:
    if not isinstance(value, dict) or value.get("name") not in names:
        return None
    arguments = _object(value.get("arguments", value.get("parameters", {})))
    if arguments is None:
        return None
    return ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False))


def _object(value: Any) -> dict[str, Any] | None:
    """A JSON object, which some write as text."""
    if isinstance(value, str):
        value, rest = _decode(value.strip())
        if rest:
            return None
    return value if isinstance(value, dict) else None


def _beginning(text: str, mark: str) -> int:
    """How long a beginning of ``mark`` the text ends with."""
    return next((k for k in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:k])), 0)


def _text(value: str) -> str:
    """A text as Lark writes it."""
    return json.dumps(value)
