"""Tell log-probabilities in the forms of OpenAI's wires, beside the text that they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestra.localengine.request import Candidate, TokenLogprob

__all__ = ["TextLogprobs", "chat_logprobs", "completion_logprobs", "prompt_logprobs"]

_IMPOSSIBLE = -9999.0
"""What OpenAI's wire says of a token that could not be drawn: JSON has no infinity."""


class TextLogprobs:
    """Lets out those of the tokens whose text is out, and in the end drops those that have none.

    A token's text may be held back, and is cut off where a stop string begins; an end token has none.
    """

    def __init__(self) -> None:
        self._held: list[TokenLogprob] = []
        self._length = 0

    def push(self, text: str, logprobs: Sequence[TokenLogprob] | None) -> list[TokenLogprob]:
        """Take a piece of the text, and the tokens that came with it; returns those to tell now."""
        self._length += len(text)
        self._held += logprobs or ()
        out = 0
        while out < len(self._held) and self._held[out].offset < self._length:
            out += 1
        told, self._held = self._held[:out], self._held[out:]
        return told


def chat_logprobs(tokens: Sequence[TokenLogprob], *, with_bytes: bool = True) -> list[dict[str, Any]]:
    """The chat endpoint's form, which responses have, too (their deltas without bytes)."""
    return [
        {**_one(token, with_bytes), "top_logprobs": [_one(other, with_bytes) for other in token.top]}
        for token in tokens
    ]


def completion_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The completions endpoint's form: one list for each thing told."""
    return {
        "text_offset": [token.offset for token in tokens],
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "tokens": [_text(token) for token in tokens],
        "top_logprobs": [{_text(other): _finite(other.logprob) for other in token.top} for token in tokens],
    }


def prompt_logprobs(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any] | None]:
    """vLLM's form: nothing for the first token, then the token and the likeliest ones by id."""
    told: list[dict[str, Any] | None] = [None]
    for token in tokens:
        ranked: dict[str, Any] = {}
        for rank, other in enumerate(token.top, 1):
            ranked[str(other.token_id)] = _ranked(other, rank)
        ranked[str(token.token_id)] = _ranked(token, token.rank)
        told.append(ranked)
    return told


def _ranked(token: TokenLogprob | Candidate, rank: int) -> dict[str, Any]:
    return {"logprob": _finite(token.logprob), "rank": rank, "decoded_token": _text(token)}


def _one(token: TokenLogprob | Candidate, with_bytes: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"token": _text(token), "logprob": _finite(token.logprob)}
    return {**told, "bytes": list(token.bytes)} if with_bytes else told


def _text(token: TokenLogprob | Candidate) -> str:
    """A part of a character cannot be told as text: ``bytes`` has it exactly."""
    return token.bytes.decode("utf-8", "replace")


def _finite(logprob: float) -> float:
    return max(logprob, _IMPOSSIBLE)
