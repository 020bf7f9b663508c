"""What a caller asks of the engine, and what it gets back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Completion", "Delta", "FinishReason", "Message", "Prompt", "SamplingParams", "Timing", "Usage"]

Message = Mapping[str, object]
"""One chat message: ``{"role": ..., "content": ...}``."""

Prompt = str | Sequence[int] | Sequence[Message]
"""Raw text, token ids, or chat messages (the model's chat template applies to these)."""

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to draw the output tokens.

    ``max_tokens``: upper bound on output tokens; ``None`` means as many as the context has room for.
    ``temperature``: 0 is greedy. ``top_k``: 0 is off. ``top_p``: 1 is off.
    ``seed``: with it, the draw at each position depends on nothing but (seed, position, token).
    ``stop``: strings that end the output; they are not part of the text.
    ``stop_token_ids``: further tokens that end the output, beside the model's own end tokens.
    ``ignore_eos``: the model's own end tokens do not end the output.

    Raises ValueError where a value is outside its range or of another type: the values are used in the engine's
    own thread, where a wrong one would take every other request down with it.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens is not None and not (_is_whole(self.max_tokens) and self.max_tokens >= 1):
            raise ValueError(f"max_tokens must be at least 1, not {self.max_tokens!r}")
        if not (_is_number(self.temperature) and 0 <= self.temperature <= 100):
            raise ValueError(f"temperature must be between 0 and 100, not {self.temperature!r}")
        if not (_is_whole(self.top_k) and self.top_k >= 0):
            raise ValueError(f"top_k must be 0 (off) or more, not {self.top_k!r}")
        if not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p!r}")
        if self.seed is not None and not _is_whole(self.seed):
            raise ValueError(f"seed must be a whole number, not {self.seed!r}")
        if not _are_all(self.stop, lambda s: isinstance(s, str) and s != ""):
            raise ValueError("stop must be a tuple of non-empty strings")
        if not _are_all(self.stop_token_ids, _is_whole):
            raise ValueError("stop_token_ids must be a tuple of token ids")
        if not isinstance(self.ignore_eos, bool):
            raise ValueError(f"ignore_eos must be True or False, not {self.ignore_eos!r}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _are_all(values: object, fits: Callable[[object], bool]) -> bool:
    return isinstance(values, tuple | list) and all(map(fits, values))


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request. ``cached_tokens`` are prompt tokens that needed no computing."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, all counted from submission.

    ``queue``: until the first step that computed something for it. ``ttft``: until the first output token.
    ``tokens``: the instant of each output token.
    """

    queue: float
    ttft: float
    tokens: tuple[float, ...] = field(repr=False)

    @property
    def total(self) -> float:
        return self.tokens[-1] if self.tokens else self.ttft

    @property
    def tpot(self) -> float | None:
        """Mean seconds per output token after the first; None with fewer than two."""
        if len(self.tokens) < 2:
            return None
        return (self.tokens[-1] - self.tokens[0]) / (len(self.tokens) - 1)


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a streamed answer.

    ``text`` never splits a character and never holds part of a stop string; it may be empty.
    Several tokens may be merged into one delta when the reader is slow.
    ``finish_reason``, ``usage`` and ``timing`` are set on the last delta only; ``stop`` there, too, where a stop
    string ended the output: which one.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    timing: Timing | None = None
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. ``stop`` is the stop string that ended it, where one did."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timing: Timing
    stop: str | None = None
