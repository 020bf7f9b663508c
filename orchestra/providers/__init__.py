"""The providers' wires: one file a dialect, found by the ``kind`` of the settings."""

from __future__ import annotations

from orchestra.providers.base import Endpoint, FormatError, Provider, StreamReader
from orchestra.providers.openai import OpenAI, OpenAICompatible

__all__ = ["Endpoint", "FormatError", "Provider", "StreamReader", "provider_of_kind"]

_KINDS: dict[str, Provider] = {"openai": OpenAI(), "openai-compatible": OpenAICompatible()}


def provider_of_kind(kind: str) -> Provider:
    """Return the dialect of that kind."""
    return _KINDS[kind]
