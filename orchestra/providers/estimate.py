"""How many tokens a request's input holds, from its characters alone: cheap, tokenizer-free, about right.

Four bytes of UTF-8 are taken for a token: near the truth for English, and not far from it for scripts of two or
three bytes a character. Media count by a rule, never by the length of their base64 text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["estimate_tokens"]

_BYTES_PER_TOKEN = 4
_TOKENS_PER_ITEM = 4
"""What a chat template adds to each message."""
_MEDIA = {
    # OpenAI's image rule: 85 tokens, and 170 for each tile of 512 x 512 in high detail; 1024 x 1024 has four.
    "image_url": 765,
    "input_image": 765,
    # No rule is published for these; about a minute of sound, and a few pages.
    "input_audio": 600,
    "file": 2000,
    "input_file": 2000,
    # Anthropic: width x height / 750 for an image, which it scales to 1600 at most; 1500 to 3000 for a PDF's page.
    "image": 1600,
    "document": 6000,
}
_LOW_DETAIL_IMAGE = 85
_TEXT_SOURCES = frozenset({"text", "content"})
"""What of Anthropic's documents is text after all."""
_BLOBS = frozenset({"inlineData", "inline_data", "fileData", "file_data"})
"""Where Gemini's parts hold media."""
_BLOB_TOKENS = {
    # Gemini ("Media resolution", "Understand and count tokens"): an image; a minute of sound at 32 a second, and
    # of video at 263; anything else is a few pages.
    "image": 1120,
    "audio": 1920,
    "video": 15_780,
}
_PAGES = 2000
_SIGNATURES = frozenset({"thoughtSignature", "thought_signature"})
"""What vouches for a thought and is no text."""


def estimate_tokens(value: Any) -> int:
    """Return the estimated tokens of ``value``, any part of a request's JSON."""
    return -(-_bytes(value) // _BYTES_PER_TOKEN)


def _bytes(value: Any) -> int:
    if isinstance(value, str):
        # A bare data URL stands where an image or a file may.
        if value.startswith("data:") and ";base64," in value[:128]:
            return _MEDIA["image_url"] * _BYTES_PER_TOKEN
        return len(value) if value.isascii() else len(value.encode("utf-8", "replace"))
    if isinstance(value, Mapping):
        kind = value.get("type")
        if isinstance(kind, str) and kind in _MEDIA and not _is_text(kind, value):
            return _media(kind, value) * _BYTES_PER_TOKEN
        overhead = _TOKENS_PER_ITEM * _BYTES_PER_TOKEN if "role" in value else 0
        unread = ("role", "type", "signature") if kind == "thinking" else ("role", "type")
        return overhead + sum(len(key) + _field(key, item) for key, item in value.items() if key not in unread)
    if isinstance(value, list | tuple):
        if value and all(type(item) is int for item in value):
            return len(value) * _BYTES_PER_TOKEN  # already token ids
        return sum(_bytes(item) for item in value)
    return 0 if value is None else _BYTES_PER_TOKEN


def _field(name: str, value: Any) -> int:
    if name in _BLOBS and isinstance(value, Mapping):
        mime = value.get("mimeType", value.get("mime_type"))
        family = mime.partition("/")[0] if isinstance(mime, str) else ""
        return _BLOB_TOKENS.get(family, _PAGES) * _BYTES_PER_TOKEN
    return 0 if name in _SIGNATURES else _bytes(value)


def _is_text(kind: str, part: Mapping[str, Any]) -> bool:
    """Return whether an image or document of Anthropic's form is none: its source holds text, or is missing."""
    if kind not in ("image", "document"):
        return False
    source = part.get("source")
    return not isinstance(source, Mapping) or source.get("type") in _TEXT_SOURCES


def _media(kind: str, part: Mapping[str, Any]) -> int:
    image = part.get("image_url")
    detail = image.get("detail") if isinstance(image, Mapping) else part.get("detail")
    return _LOW_DETAIL_IMAGE if detail == "low" else _MEDIA[kind]
