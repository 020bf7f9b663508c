"""How output tokens are drawn, and what the output is held to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["SamplingParams", "Structure"]

_MOST_COMPLETIONS = 128
_MOST_LOGPROBS = 100


@dataclass(frozen=True, slots=True)
class Structure:
    """A form that the output has. Where it ends by itself (``finish_reason`` is ``stop``), it is whole.

    ``json_object``: any JSON object. ``json_schema``: JSON that fits the schema in ``definition`` (JSON text).
    ``regex``: text that the regular expression matches as a whole. ``grammar``: text of a grammar in Lark's
    notation, as llguidance reads it.
    """

    kind: Literal["json_object", "json_schema", "regex", "grammar"]
    definition: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("json_object", "json_schema", "regex", "grammar"):
            raise ValueError(f"structure must be json_object, json_schema, regex or grammar, not {self.kind!r}")
        if not isinstance(self.definition, str) or (self.kind != "json_object") != bool(self.definition):
            raise ValueError(f"structure: {self.kind} needs {'no' if self.definition else 'a'} definition as text")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to draw the output tokens.

    ``max_tokens``: upper bound on output tokens; ``None`` means as many as the context has room for.
    ``min_tokens``: so many are drawn before a token may end the output; stop strings are looked for in the text
    of those after them.
    ``n``: so many completions of the prompt, which is computed once; with a seed, completion ``i`` (from 0) is
    drawn as by ``seed + i``.
    ``seed``: with it, the draw at each position depends on nothing but (seed, position, token).
    ``stop``: strings that end the output; they are not part of the text. ``stop_after``: they count only in what
    follows this text, such as the ``</think>`` after which a model that reasons begins to answer.
    ``stop_token_ids``: further tokens that end the output, beside the model's own end tokens.
    ``ignore_eos``: the model's own end tokens do not end the output.
    ``structure``: the form that the output has. It decides where the output ends, so it goes with none of
    ``stop``, ``stop_token_ids``, ``ignore_eos`` and ``min_tokens``.

    What changes the odds, in the order in which it does (vLLM's):

    1. ``logit_bias``: token id to what is added to its logit, from -100 to 100.
    2. ``repetition_penalty``: divides the positive logits of tokens in prompt or output and multiplies the
       negative; 1 is off. Then ``frequency_penalty`` for each time that the token is in the output so far, and
       ``presence_penalty`` once if it is there at all, are taken from the logit; 0 is off. The prompt does not
       count for these two (as OpenAI and vLLM count).
    3. ``min_tokens`` and ``structure`` forbid tokens.
    4. ``temperature``: 0 is greedy, and the rest has no say.
    5. ``min_p``: only tokens at least so many times as probable as the likeliest; 0 is off. Then ``top_k``: only
       the most probable; 0 is off. Then ``top_p``: of what is left the fewest whose probabilities reach it; 1 is
       off.

    ``logprobs``: with each output token tell its log-probability and the so many likeliest tokens; 0 tells the
    token's own alone, ``None`` nothing. ``logprobs_mode``: ``raw`` tells the model's own, before any of the above;
    ``processed`` those that the token was drawn by, after all of it (for greedy, after 1 to 3).
    ``prompt_logprobs``: likewise for each token of the prompt but the first, always raw.

    Raises ValueError where a value is outside its range or of another type: the values are used in the engine's
    own thread, where a wrong one would take every other request down with it.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_after: str | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    logprobs_mode: Literal["raw", "processed"] = "raw"
    prompt_logprobs: int | None = None
    structure: Structure | None = None

    def __post_init__(self) -> None:
        for name, (fits, wanted) in _RANGES.items():
            if not fits(value := getattr(self, name)):
                raise ValueError(f"{name} must be {wanted}, not {value!r}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) must be at most max_tokens ({self.max_tokens})")
        if self.structure is not None:
            for name in ("stop", "stop_token_ids", "ignore_eos", "min_tokens"):
                if getattr(self, name):
                    raise ValueError(f"{name} must be left out with a structure, which says where the output ends")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalizes(self) -> bool:
        """Whether what was said already changes the odds."""
        return bool(self.presence_penalty or self.frequency_penalty) or self.repetition_penalty != 1


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _are_all(values: object, fits: Callable[[object], bool]) -> bool:
    return isinstance(values, tuple | list) and all(map(fits, values))


def _whole(least: int, most: float = math.inf) -> Callable[[object], bool]:
    return lambda value: _is_whole(value) and least <= value <= most  # type: ignore[operator]


def _number(least: float, most: float) -> Callable[[object], bool]:
    return lambda value: _is_number(value) and least <= value <= most  # type: ignore[operator]


def _or_none(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or fits(value)


def _above_0(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: fits(value) and value != 0


def _is_bias(value: object) -> bool:
    fits = _number(-100, 100)
    return isinstance(value, Mapping) and all(_is_whole(k) and k >= 0 and fits(v) for k, v in value.items())


_LOGPROBS = _or_none(_whole(0, _MOST_LOGPROBS)), f"a number of tokens from 0 to {_MOST_LOGPROBS}, or None"
_RANGES: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "max_tokens": (_or_none(_whole(1)), "at least 1"),
    "min_tokens": (_whole(0), "0 (off) or more"),
    "n": (_whole(1, _MOST_COMPLETIONS), f"from 1 to {_MOST_COMPLETIONS}"),
    "temperature": (_number(0, 100), "between 0 and 100"),
    "top_k": (_whole(0), "0 (off) or more"),
    "top_p": (_above_0(_number(0, 1)), "above 0 and at most 1"),
    "min_p": (_number(0, 1), "from 0 (off) to 1"),
    "presence_penalty": (_number(-2, 2), "from -2 to 2"),
    "frequency_penalty": (_number(-2, 2), "from -2 to 2"),
    "repetition_penalty": (_above_0(_number(0, 10)), "above 0 and at most 10"),
    "logit_bias": (_is_bias, "token ids with numbers from -100 to 100"),
    "seed": (_or_none(_is_whole), "a whole number"),
    "stop": (lambda v: _are_all(v, lambda s: isinstance(s, str) and s != ""), "a tuple of non-empty strings"),
    "stop_after": (_or_none(lambda v: isinstance(v, str) and v != ""), "a text that is not empty, or None"),
    "stop_token_ids": (lambda v: _are_all(v, _is_whole), "a tuple of token ids"),
    "ignore_eos": (lambda v: isinstance(v, bool), "True or False"),
    "logprobs": _LOGPROBS,
    "logprobs_mode": (lambda v: v in ("raw", "processed"), "raw or processed"),
    "prompt_logprobs": _LOGPROBS,
    "structure": (_or_none(lambda v: isinstance(v, Structure)), "a Structure"),
}
