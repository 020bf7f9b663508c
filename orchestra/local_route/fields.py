"""What the requests of all wires have in common: how their fields are checked and read.

Three kinds of fields: those the engine obeys, those that cannot change the text (accounting, caching and effort
hints), which are left aside, and all others, which are refused unless their value asks for nothing. A request is
thus answered as it was meant, or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestra.config.section import closest
from orchestra.errors import InputError

if TYPE_CHECKING:
    from orchestra.localengine.request import Prompt, SamplingParams
    from orchestra.localengine.sampling_params import Structure

__all__ = [
    "SAMPLING",
    "Fields",
    "LocalRequest",
    "optional",
    "read_cache_salt",
    "read_sampling",
    "read_text",
    "shown",
]

_SAMPLED: Mapping[str, tuple[type, ...]] = {
    "temperature": (int, float),
    "top_p": (int, float),
    "top_k": (int,),
    "min_p": (int, float),
    "presence_penalty": (int, float),
    "frequency_penalty": (int, float),
    "repetition_penalty": (int, float),
    "min_tokens": (int,),
    "seed": (int,),
    "ignore_eos": (bool,),
    "prompt_logprobs": (int,),
}
SAMPLING = frozenset(_SAMPLED)
"""Fields that have the same name on every wire, and in the engine. Not all are every provider's."""

_NEAR = 0.8
"""How alike (difflib's ratio) a field's name must be to another to be taken for a slip."""
_HOTTEST = 2.0
"""The highest temperature that providers take: a request must not depend on which of its routes answers."""

_TYPE_NAMES = {
    bool: "true or false",
    dict: "an object",
    float: "a number",
    int: "an integer",
    list: "a list",
    str: "a string",
}


@dataclass(frozen=True, slots=True)
class LocalRequest:
    """What the engine is asked for, and the form in which the caller wants the answer.

    ``prompt_field`` names the field that the prompt came from, and ``form_field`` the one that says which form the
    answer has. Only requests of one ``cache_salt`` share what they have computed.
    """

    prompt: Prompt
    prompt_field: str
    sampling: SamplingParams
    streams: bool
    include_usage: bool
    form_field: str = "response_format"
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one wire's requests. ``nothing`` holds the values of others that ask for nothing."""

    obeyed: frozenset[str]
    hints: frozenset[str]
    nothing: Mapping[str, Collection[Any]]

    def check(self, payload: Mapping[str, Any], prefix: str = "") -> None:
        """Raise InputError for a field that would change the answer, and that the engine cannot do."""
        for name, value in payload.items():
            known = name in self.obeyed or name in self.hints
            if known or value is None or value in self.nothing.get(name, ()):
                continue
            near = closest(name, self.obeyed | self.hints, at_least=_NEAR)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise InputError(
                f"the local engine cannot do {prefix + name!r} yet{hint}: leave it out, or give the model another "
                "route",
                param=prefix + name,
            )


def optional(payload: Mapping[str, Any], name: str, *types: type, prefix: str = "") -> Any:
    """Return the field's value, None where absent. Raises InputError where its type is wrong."""
    value = payload.get(name)
    if value is None or (isinstance(value, types) and (bool in types or not isinstance(value, bool))):
        return value
    wanted = " or ".join(_TYPE_NAMES[kind] for kind in types)
    raise InputError(f"{prefix}{name} must be {wanted}, not {shown(value)}", param=prefix + name)


def shown(value: Any) -> str:
    """Name a value in an error without repeating a whole prompt."""
    text = repr(value)
    return text if len(text) <= 40 else f"a {type(value).__name__}"


def read_sampling(
    payload: Mapping[str, Any],
    *,
    lengths: Sequence[str],
    stop: str | None = None,
    max_tokens: int | None = None,
    logprobs: tuple[str, int | None] = ("logprobs", None),
    form: tuple[str, Structure | None] = ("response_format", None),
) -> SamplingParams:
    """Return how to sample. Raises InputError with the caller's own name of the field that is wrong.

    ``lengths`` are the fields that bound the output; ``max_tokens`` holds where none of them does. ``stop`` is the
    field of the stop strings. ``logprobs`` and ``form`` are the fields of these, and what they ask for.
    """
    from orchestra.localengine.request import SamplingParams

    wanted: dict[str, Any] = {}

    def take(field: str, value: Any, param: str) -> None:
        try:
            SamplingParams(**{field: value})
        except ValueError as error:
            raise InputError(param + str(error).removeprefix(field), param=param) from None
        wanted[field] = value

    for name, types in _SAMPLED.items():
        value = optional(payload, name, *types)
        if value is not None:
            take(name, value, name)
    if wanted.get("temperature", 0.0) > _HOTTEST:
        raise InputError(f"temperature must be at most {_HOTTEST:g}", param="temperature")
    for name in lengths:
        value = optional(payload, name, int)
        if value is None:
            continue
        if wanted.get("max_tokens", value) != value:
            raise InputError(f"{' and '.join(lengths)} disagree: give one of them", param=name)
        take("max_tokens", value, name)
    if max_tokens is not None:
        wanted.setdefault("max_tokens", max_tokens)
    strings = optional(payload, stop, str, list) if stop is not None else None
    if stop is not None and strings is not None:
        take("stop", (strings,) if isinstance(strings, str) else tuple(strings), stop)
    bias = optional(payload, "logit_bias", dict)
    if bias is not None:
        take("logit_bias", {_token(token): value for token, value in bias.items()}, "logit_bias")
    completions = optional(payload, "n", int)
    if completions is not None:
        take("n", completions, "n")
    if logprobs[1] is not None:
        take("logprobs", logprobs[1], logprobs[0])
    wanted["structure"] = form[1]
    try:
        return SamplingParams(**wanted)
    except ValueError as error:  # what goes with what; it begins with the engine's name of the field
        field, _, told = str(error).partition(" ")
        param = stop if field == "stop" and stop is not None else field
        told = told.replace("a structure", form[0])
        raise InputError(f"{param} {told}", param=param) from None


def read_cache_salt(payload: Mapping[str, Any]) -> str | None:
    """Return the salt of the prefix cache, if any. Raises InputError where it is no text, or empty."""
    salt: str | None = optional(payload, "cache_salt", str)
    if salt == "":
        raise InputError(
            "cache_salt must not be empty: leave it out to share with all that have none", param="cache_salt"
        )
    return salt


def _token(key: Any) -> int:
    try:
        return int(key)
    except ValueError:
        raise InputError(f"logit_bias: {shown(key)} is no token id", param="logit_bias") from None


def read_text(content: Any, place: str, kinds: Collection[str] = ("text",), *, first: int = 0) -> str:
    """Return the text of a message's content: a string, or a list of parts of these ``kinds``.

    ``first`` is the number of the first part, for errors.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InputError(f"{place} must be a string or a list of text parts, not {shown(content)}", param=place)
    texts = []
    for index, part in enumerate(content, first):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in kinds:
            raise InputError(
                f"{place}[{index}]: the local engine reads text parts only, not {shown(kind or part)}",
                param=f"{place}[{index}]",
            )
        if not isinstance(part.get("text"), str):
            raise InputError(f"{place}[{index}].text must be a string", param=f"{place}[{index}].text")
        texts.append(part["text"])
    return "\n".join(texts)
