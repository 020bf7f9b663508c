"""A model's chat template: chat messages to the token ids of a prompt.

The template comes with the model and is untrusted: it runs in Jinja's immutable sandbox, with bounds on its own
size and on what it may write. The messages come from anywhere: no text in them can become a control token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from orchestra.localengine.errors import ModelFileError, PromptError
from orchestra.localengine.request import Message
from orchestra.localengine.text.tokenizer import Tokenizer, refuse_surrogates

__all__ = ["ChatTemplate"]

_MAX_SOURCE = 256 * 1024  # characters; the longest in use have some 20,000
_MAX_OVERHEAD = 1 << 20  # characters that a template may write beyond a few times the messages' own
_ROLES = ("system", "user", "assistant", "tool", "function")


class ChatTemplate:
    """A compiled chat template. ``now`` is the clock behind ``strftime_now``.

    Raises ModelFileError where ``source`` is no template that can be used.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None,
        eos_token: str | None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        if len(source) > _MAX_SOURCE:
            raise ModelFileError(
                f"the chat template has {len(source):,} characters, more than the {_MAX_SOURCE:,} that are read: "
                "use another model file"
            )
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[LoopControlExtension, _Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals.update(
            raise_exception=_refuse,
            strftime_now=lambda form: now().strftime(form),
            bos_token=bos_token or "",
            eos_token=eos_token or "",
            tools=None,
            documents=None,
        )
        try:
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError, MemoryError, ValueError, OverflowError, SyntaxError) as error:
            line = f", line {error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
            raise ModelFileError(
                f"the chat template cannot be read ({_brief(error)}{line}): use another model file, or send the "
                "prompt as text"
            ) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, object]] = (),
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt as text, for people to read; ``encode`` is what a model should be given.

        ``tools`` are in OpenAI's form. Raises PromptError where the messages are not chat messages of text, or the
        template refuses them.
        """
        return self._render(_checked(messages), list(tools), add_generation_prompt, str)

    def encode(
        self,
        messages: Sequence[Message],
        tokenizer: Tokenizer,
        *,
        tools: Sequence[Mapping[str, object]] = (),
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """The prompt's token ids: those of the rendered text, but a control token written in a message stays text.

        Before rendering, the first character of each control token in the messages and the tools is disguised; the
        rendered text is split at the control tokens that are left, which are the template's; then the disguise
        comes off. Raises PromptError as ``render`` does.
        """
        plain, given = _checked(messages), list(tools)
        disguise = _Disguise(tokenizer.control_texts, present=set("".join(_texts([plain, given]))))
        hidden, hidden_tools = _mapped(plain, disguise.put_on), _mapped(given, disguise.put_on)
        ids: list[int] = []
        rendered = self._render(hidden, hidden_tools, add_generation_prompt, disguise.take_off)
        first = True
        for part in tokenizer.split(rendered):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += tokenizer.encode(disguise.take_off(part), special=False, first=first)
            first = False
        return ids

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, object]],
        add_generation_prompt: bool,
        shown: Callable[[str], str],
    ) -> str:
        room = _MAX_OVERHEAD + 4 * sum(map(len, _texts([messages, tools])))
        pieces: list[str] = []
        try:
            for piece in self._template.generate(
                messages=messages, tools=tools or None, add_generation_prompt=add_generation_prompt
            ):
                room -= len(piece)
                if room < 0:
                    raise ModelFileError("the chat template writes without end: use another model file")
                pieces.append(piece)
        except ModelFileError:
            raise
        except _Refusal as error:
            raise PromptError(
                f"the model's chat template refuses these messages: {shown(_brief(error))}"
            ) from error
        except (SecurityError, OverflowError, MemoryError, RecursionError) as error:
            raise ModelFileError(
                f"the chat template does what it may not ({_brief(error)}): use another model file"
            ) from error
        except Exception as error:  # a template can fail in any way that Python can
            fault = f"{type(error).__name__}: {shown(_brief(error))}"
            raise PromptError(
                f"the model's chat template fails on these messages ({fault}): check their roles and their order"
            ) from error
        return "".join(pieces)


def _checked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Role and text of each message, and its calls. Raises PromptError naming the message that has none."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise PromptError("messages must be a list of {'role': ..., 'content': ...}")
    if not messages:
        raise PromptError("messages is empty: give at least one")
    return [_checked_one(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _checked_one(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise PromptError(f"{where} is {type(message).__name__}, not {{'role': ..., 'content': ...}}")
    role = message.get("role")
    if role == "developer":  # the newer name of the same thing, which no template knows
        role = "system"
    if role not in _ROLES:
        raise PromptError(f"{where}.role is {_shown(role)}: it must be one of developer, {', '.join(_ROLES)}")
    if message.get("function_call"):
        raise PromptError(f"{where} has function_call, which is no longer in use: send tool_calls")
    calls = message.get("tool_calls")
    content = (
        "" if calls and message.get("content") is None else _content(message.get("content"), f"{where}.content")
    )
    checked: dict[str, Any] = {"role": role, "content": content}
    if calls:
        checked["tool_calls"] = _tool_calls(calls, f"{where}.tool_calls")
    for key in ("tool_call_id", "name"):
        if isinstance(value := message.get(key), str) and role in ("tool", "function"):
            checked[key] = value
    for text in _texts(checked):
        refuse_surrogates(text, f"{where}.content")
    return checked


def _tool_calls(calls: object, where: str) -> list[dict[str, Any]]:
    """Calls as templates want them: their arguments are an object, not its text."""
    checked = []
    for call in calls if isinstance(calls, list | tuple) else [None]:
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        arguments = function.get("arguments") if isinstance(function, Mapping) else None
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except ValueError:
                arguments = None
        if not isinstance(name, str) or not isinstance(arguments, Mapping):
            raise PromptError(f"{where}: each must have a function with a name and with arguments, a JSON object")
        call_id = call.get("id") if isinstance(call, Mapping) else None
        one = {"type": "function", "function": {"name": name, "arguments": dict(arguments)}}
        checked.append({"id": call_id, **one} if isinstance(call_id, str) else one)
    return checked


def _texts(value: object) -> Iterator[str]:
    """All strings in plain data, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _texts(key)
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Plain data with every string changed, keys too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key) if isinstance(key, str) else key: _mapped(one, change) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(one, change) for one in value]
    return value


def _content(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
        raise PromptError(f"{where} is {_shown(content)}: it must be a string or a list of text parts")
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            raise PromptError(
                f"{where}[{i}] is of type {_shown(kind)}: the local engine takes parts of type 'text' only"
            )
        if not isinstance(text := part.get("text"), str):
            raise PromptError(f"{where}[{i}].text is {_shown(text)}: it must be a string")
        texts.append(text)
    return "".join(texts)


class _Disguise:
    """Replaces the first character of every control token in a text by one that no text here has.

    So, too, that of a beginning of one at the text's end (white space aside): a template may put two texts side by
    side. Letter case is ignored, as a template may change it. A text keeps its length, and one without control
    tokens keeps all but such an ending, so that a template's own tests of it come out the same.
    """

    def __init__(self, control_texts: tuple[str, ...], present: set[str]) -> None:
        self._pattern = _heads(control_texts)
        private_use = map(chr, range(0xF0000, 0xFFFFE))
        self._unused = (c for c in private_use if c not in present)
        self._stand_ins: dict[str, str] = {}

    def put_on(self, text: str) -> str:
        return self._pattern.sub(lambda match: self._stand_in(match[0]), text)

    def take_off(self, text: str) -> str:
        return text.translate({ord(stand_in): char for char, stand_in in self._stand_ins.items()})

    def _stand_in(self, char: str) -> str:
        if char not in self._stand_ins:
            try:
                self._stand_ins[char] = next(self._unused)
            except StopIteration:
                raise PromptError("the messages use every private character of Unicode: leave one out") from None
        return self._stand_ins[char]


@lru_cache(maxsize=16)
def _heads(control_texts: tuple[str, ...]) -> re.Pattern[str]:
    """Finds each first character of a control token whose rest follows, or at least does until the text ends."""
    patterns = []
    for head in sorted({t[0] for t in control_texts}):
        rests = [t[1:] for t in control_texts if t[0] == head]
        beginnings = {rest[:k] for rest in rests for k in range(len(rest))}
        whole, begun = ("|".join(map(re.escape, sorted(texts))) for texts in (rests, beginnings))
        patterns.append(rf"{re.escape(head)}(?=(?:{whole})|(?:{begun})\s*\Z)")
    return re.compile("|".join(patterns) or r"(?!)", re.IGNORECASE)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Also refuses the two operators that make something huge out of something small."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (_is_small(left) and _is_small(right)):
            raise SecurityError(f"it computes {_shown(left)} ** {_shown(right)}")
        for value, count in ((left, right), (right, left)):
            if (
                isinstance(value, str | list | tuple)
                and isinstance(count, int)
                and len(value) * count > _MAX_OVERHEAD
            ):
                raise SecurityError(f"it repeats something {count} times")
        return super().call_binop(context, operator, left, right)


def _is_small(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= 64


class _Generation(Extension):
    """``{% generation %}`` marks what the assistant wrote, for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012  (as the base class types it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class _Refusal(Exception):
    """What ``raise_exception`` in a template raises."""


def _refuse(message: str) -> NoReturn:
    raise _Refusal(message)


def _tojson(value: object, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    """Plain JSON; Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


def _brief(error: BaseException) -> str:
    """The first line of an error, as much as fits in a sentence."""
    return str(error).strip().partition("\n")[0][:200].rstrip(".")


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]
