"""What a vocabulary entry stands for, in bytes, by the two ways in which vocabularies write them."""

from __future__ import annotations

import re

from orchestra.localengine.text.tokenizer import TokenKind

__all__ = ["byte_level_piece", "sentencepiece_piece"]


def _gpt2_alphabet() -> dict[str, int]:
    """GPT-2's way to write each byte as one visible character: itself where printable, else from U+0100 up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(others)}


_ALPHABET = _gpt2_alphabet()
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_level_piece(text: str, kind: TokenKind) -> bytes:
    """Of a token in GPT-2's alphabet of bytes."""
    if kind == TokenKind.NORMAL:
        try:
            return bytes([_ALPHABET[c] for c in text])
        except KeyError:
            pass  # a token that was added as it is written
    return _as_written(text, kind)


def sentencepiece_piece(text: str, kind: TokenKind) -> bytes:
    """Of a token of SentencePiece, which writes a space as U+2581."""
    return _as_written(text.replace("\u2581", " ") if kind == TokenKind.NORMAL else text, kind)


def _as_written(text: str, kind: TokenKind) -> bytes:
    if kind == TokenKind.BYTE and (match := _BYTE_TOKEN.fullmatch(text)):
        return bytes([int(match[1], 16)])
    return text.encode("utf-8", "replace")
