"""What a caller asks of the engine, and what it gets back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from orchestra.localengine.sampling_params import SamplingParams

__all__ = [
    "Candidate",
    "Chat",
    "Completion",
    "Delta",
    "FinishReason",
    "Message",
    "Prompt",
    "SamplingParams",
    "Timing",
    "TokenLogprob",
    "ToolCall",
    "Usage",
]

Message = Mapping[str, object]
"""One chat message: ``{"role": ..., "content": ...}``; with tools also ``tool_calls`` and ``tool_call_id``."""


@dataclass(frozen=True, slots=True)
class Chat:
    """Chat messages with tools that the model may call.

    ``tools`` are in OpenAI's form, ``{"type": "function", "function": {"name", "description", "parameters"}}``.
    ``tool_choice``: ``auto`` leaves it to the model; ``required`` makes it call at least one of them, and a name
    makes it call that one: then the answer is held to the form of a call, arguments and all. Without ``parallel``
    no call but the first is told.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, object]] = ()
    tool_choice: str = "auto"
    parallel: bool = True


Prompt = str | Sequence[int] | Sequence[Message] | Chat
"""Raw text, token ids, or chat messages (the model's chat template applies to these)."""

FinishReason = Literal["stop", "length"]


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
class Candidate:
    """A token that might have been drawn. ``bytes`` is what it stands for, perhaps part of a character."""

    token_id: int
    logprob: float
    bytes: bytes


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a token was (natural logarithm), and the likeliest ones in its place, likeliest first.

    ``rank`` is 1 for the likeliest of all. ``offset`` says how many characters of text came before the token's
    own; a token that ends a character begun by others has the offset of that character.
    """

    token_id: int
    logprob: float
    rank: int
    bytes: bytes
    top: tuple[Candidate, ...] = ()
    offset: int = 0


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for. ``arguments`` is JSON text, an object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a streamed answer.

    ``text`` never splits a character and never holds part of a stop string; it may be empty.
    Several tokens may be merged into one delta when the reader is slow.
    ``finish_reason``, ``usage`` and ``timing`` are set on the last delta only; ``stop`` there, too, where a stop
    string ended the output: which one. ``index`` says which of ``n`` completions it belongs to; each has a last
    delta. ``logprobs`` has one entry a token, where they were asked for; ``prompt_logprobs`` come with the first
    delta of the first completion. ``tool_calls`` are the calls that became whole with it: their text is no
    ``text``.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    timing: Timing | None = None
    stop: str | None = None
    index: int = 0
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. ``stop`` is the stop string that ended it, where one did.

    ``logprobs`` has one entry for each of ``token_ids``; ``prompt_logprobs`` one for each token of the prompt but
    the first. ``others`` are the further completions where ``n`` of them were asked for; each has a usage of its
    own, in which the prompt counts again.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timing: Timing
    stop: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    others: tuple[Completion, ...] = ()
