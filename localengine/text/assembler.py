"""Tokens to text while they come: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Set as AbstractSet
from typing import Protocol

__all__ = ["TextAssembler", "TokenBytes"]


class TokenBytes(Protocol):
    """What the assembler needs of a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


class TextAssembler:
    """The text of one output, built token by token.

    ``push`` and ``flush`` return text that is final: what they return, put together, equals the decoding of all
    bytes at once (invalid UTF-8 becomes U+FFFD as ``bytes.decode("utf-8", "replace")`` has it), cut before the
    stop string that is complete first; of two complete at the same character, before the longer. How the text is
    cut into tokens makes no difference. Special tokens and ids outside the vocabulary give no text, but for the
    special tokens that are ``visible``, which are written out.

    Stop strings are looked for in all of the output's text, but for the characters that the first ``unsearched``
    tokens complete, and in nothing else; with ``after``, only in what follows that text. So a model that thinks
    aloud is stopped there as well, unless told otherwise. Held back is only what could still turn out to be the
    beginning of one.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        stop: tuple[str, ...] = (),
        *,
        unsearched: int = 0,
        after: str | None = None,
        visible: AbstractSet[int] = frozenset(),
    ) -> None:
        self.stop: str | None = None
        """The stop string that ended the text."""
        self.length = 0
        """Characters that are decoded so far, held back or not: where the next character begins."""
        self._tokenizer = tokenizer
        self._unsearched = unsearched
        self._visible = visible
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._matchers = [_Matcher(s) for s in sorted(set(stop), key=len, reverse=True)]
        self._marker = None if after is None else _Matcher(after)  # None once it was seen
        self._held = ""
        self._emitted: list[str] = []

    @property
    def stopped(self) -> bool:
        return self.stop is not None

    @property
    def text(self) -> str:
        """All text returned so far."""
        return "".join(self._emitted)

    def push(self, token_id: int) -> str:
        """Take the next token; returns the text that became final, often empty."""
        self._unsearched -= 1
        if self.stopped or (self._tokenizer.is_special(token_id) and token_id not in self._visible):
            return ""
        new = self._decoder.decode(self._tokenizer.token_bytes(token_id))
        self.length += len(new)
        return self._emit(self._advance(new))

    def flush(self) -> str:
        """The output has ended: returns what was held back. Bytes of an unfinished character become U+FFFD."""
        if self.stopped:
            return ""
        final = self._advance(self._decoder.decode(b"", final=True))
        if not self.stopped:
            final += self._held
            self._held, self._matchers = "", []  # nothing can follow
        return self._emit(final)

    def _advance(self, new: str) -> str:
        """Feed the matchers; returns what is final of the held and the new text, and holds the rest."""
        text = self._held + new
        position = len(self._held)
        for char in new if self._matchers else "":
            position += 1
            if self._marker is not None:
                if self._marker.step(char):
                    self._marker = None
                continue
            for matcher in self._matchers if self._unsearched < 0 else ():
                if matcher.step(char):
                    self.stop, self._held = matcher.pattern, ""
                    return text[: position - len(matcher.pattern)]
        end = len(text) - max((m.matched for m in self._matchers), default=0)
        self._held = text[end:]
        return text[:end]

    def _emit(self, final: str) -> str:
        if final:
            self._emitted.append(final)
        return final


class _Matcher:
    """Knuth-Morris-Pratt: after each character, how long a beginning of ``pattern`` the text ends with."""

    def __init__(self, pattern: str) -> None:
        if not pattern:
            raise ValueError("a stop string must not be empty, nor the text after which it counts")
        self.pattern = pattern
        self.matched = 0
        # fallback[k]: the longest proper beginning of pattern[: k + 1] that it also ends with
        self._fallback = [0] * len(pattern)
        length = 0
        for k in range(1, len(pattern)):
            while length and pattern[k] != pattern[length]:
                length = self._fallback[length - 1]
            length += pattern[k] == pattern[length]
            self._fallback[k] = length

    def step(self, char: str) -> bool:
        """Take one character; True when it completes the pattern (nothing may be fed after that)."""
        while self.matched and char != self.pattern[self.matched]:
            self.matched = self._fallback[self.matched - 1]
        self.matched += char == self.pattern[self.matched]
        return self.matched == len(self.pattern)
