"""Read a request in OpenAI's form as one that the in-process engine can serve.

Three kinds of fields: those the engine obeys, those that cannot change the text (accounting, caching and effort
hints), which are left aside, and all others, which are refused unless their value asks for nothing. A request is
thus answered as it was meant, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from orchestra.errors import InputError

if TYPE_CHECKING:
    from orchestra.localengine.request import Prompt, SamplingParams

__all__ = ["Endpoint", "LocalRequest", "endpoint_of", "read_request"]

Endpoint = Literal["chat", "completions"]

COMPLETIONS_MAX_TOKENS = 16
"""What /completions generates where it is not told, by OpenAI's description. Chat goes on to the context's end."""

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

_ENGINE_FIELDS: Mapping[str, tuple[type, ...]] = {
    "temperature": (int, float),
    "top_p": (int, float),
    "top_k": (int,),
    "seed": (int,),
    "ignore_eos": (bool,),
}
_OBEYED = frozenset(
    {"model", "messages", "prompt", "stream", "stream_options", "stop", "max_tokens", "max_completion_tokens"}
    | _ENGINE_FIELDS.keys()
)
_HINTS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",  # without tools there is nothing to call in parallel
        "prediction",
        "priority",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
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


@dataclass(frozen=True, slots=True)
class LocalRequest:
    """What the engine is asked for, and the form in which the caller wants the answer.

    ``prompt_field`` names the field that the prompt came from.
    """

    prompt: Prompt
    prompt_field: str
    sampling: SamplingParams
    streams: bool
    include_usage: bool


def endpoint_of(url: str) -> Endpoint:
    """Return the endpoint that a URL means. Raises InputError for one that the engine does not answer."""
    path = url.partition("?")[0].rstrip("/")
    if path.endswith("/chat/completions"):
        return "chat"
    if path.endswith("/completions"):
        return "completions"
    raise InputError(f"the local engine answers /chat/completions and /completions, not {path!r}")


def read_request(endpoint: Endpoint, payload: Mapping[str, Any] | None) -> LocalRequest:
    """Check every field and return the request. Raises InputError with ``param`` set."""
    if payload is None:
        raise InputError("the request's body is not a JSON object")
    _refuse_what_cannot_be_done(payload)
    streams = _optional(payload, "stream", bool) or False
    options = _optional(payload, "stream_options", dict) or {}
    return LocalRequest(
        prompt=_read_messages(payload) if endpoint == "chat" else _read_text_prompt(payload),
        prompt_field="messages" if endpoint == "chat" else "prompt",
        sampling=_read_sampling(endpoint, payload),
        streams=streams,
        include_usage=streams and _optional(options, "include_usage", bool, prefix="stream_options.") is True,
    )


def _refuse_what_cannot_be_done(payload: Mapping[str, Any]) -> None:
    for name, value in payload.items():
        if name in _OBEYED or name in _HINTS or value is None or value in _ASKS_FOR_NOTHING.get(name, ()):
            continue
        raise InputError(
            f"the local engine cannot do {name!r} yet: leave it out, or give the model another route", param=name
        )


def _optional(payload: Mapping[str, Any], name: str, *types: type, prefix: str = "") -> Any:
    """Return the field's value, None where absent. Raises InputError where its type is wrong."""
    value = payload.get(name)
    if value is None or (isinstance(value, types) and (bool in types or not isinstance(value, bool))):
        return value
    wanted = " or ".join(_TYPE_NAMES[kind] for kind in types)
    raise InputError(f"{prefix}{name} must be {wanted}, not {_shown(value)}", param=prefix + name)


_TYPE_NAMES = {
    bool: "true or false",
    dict: "an object",
    float: "a number",
    int: "an integer",
    list: "a list",
    str: "a string",
}


def _shown(value: Any) -> str:
    """Name a value in an error without repeating a whole prompt."""
    text = repr(value)
    return text if len(text) <= 40 else f"a {type(value).__name__}"


def _read_sampling(endpoint: Endpoint, payload: Mapping[str, Any]) -> SamplingParams:
    from orchestra.localengine.request import SamplingParams

    wanted: dict[str, Any] = {}

    def take(field: str, value: Any, param: str) -> None:
        try:
            SamplingParams(**{field: value})
        except ValueError as error:
            raise InputError(param + str(error).removeprefix(field), param=param) from None
        wanted[field] = value

    for name, types in _ENGINE_FIELDS.items():
        value = _optional(payload, name, *types)
        if value is not None:
            take(name, value, name)
    for name in ("max_tokens", "max_completion_tokens"):
        value = _optional(payload, name, int)
        if value is None:
            continue
        if wanted.get("max_tokens", value) != value:
            raise InputError("max_tokens and max_completion_tokens disagree: give one of them", param=name)
        take("max_tokens", value, name)
    if endpoint == "completions":
        wanted.setdefault("max_tokens", COMPLETIONS_MAX_TOKENS)
    stop = _optional(payload, "stop", str, list)
    if stop is not None:
        take("stop", (stop,) if isinstance(stop, str) else tuple(stop), "stop")
    return SamplingParams(**wanted)


def _read_messages(payload: Mapping[str, Any]) -> list[dict[str, str]]:
    messages = _optional(payload, "messages", list)
    if not messages:
        raise InputError("messages must hold at least one message", param="messages")
    return [_read_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _read_message(message: Any, place: str) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise InputError(f"{place} must be an object with role and content, not {_shown(message)}", param=place)
    for field in ("tool_calls", "function_call", "audio"):
        if message.get(field):
            raise InputError(f"{place}: the local engine cannot do {field!r} yet", param=f"{place}.{field}")
    role = message.get("role")
    if role in ("tool", "function"):
        raise InputError(f"{place}: the local engine cannot do tools yet", param=f"{place}.role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InputError(
            f"{place}.role must be one of {', '.join(_ROLES)}, not {_shown(role)}", param=f"{place}.role"
        )
    return {"role": _ROLES[role], "content": _read_content(message.get("content"), f"{place}.content")}


def _read_content(content: Any, place: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InputError(f"{place} must be a string or a list of text parts, not {_shown(content)}", param=place)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            raise InputError(
                f"{place}[{index}]: the local engine reads text parts only, not {_shown(kind or part)}",
                param=f"{place}[{index}]",
            )
        if not isinstance(part.get("text"), str):
            raise InputError(f"{place}[{index}].text must be a string", param=f"{place}[{index}].text")
        texts.append(part["text"])
    return "\n".join(texts)


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
    raise InputError(f"prompt must be text or token ids, and not empty; it is {_shown(prompt)}", param="prompt")
