"""The kinds of providers there are: the one list from which the settings and the dialects are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True, slots=True)
class Kind:
    """``dialect`` is the class that speaks the wire, as ``module:name`` in `orchestra.providers`.

    ``base_url`` is the provider's own address, as its official SDK takes it; None where there is no such place.
    ``has_priority`` says that a request can carry a priority of its own.
    """

    dialect: str
    base_url: str | None = None
    has_priority: bool = False


KINDS: Mapping[str, Kind] = {
    "openai": Kind("openai:OpenAI", "https://api.openai.com/v1"),
    "anthropic": Kind("anthropic:Anthropic", "https://api.anthropic.com"),
    "gemini": Kind("gemini:Gemini", "https://generativelanguage.googleapis.com"),
    "azure": Kind("azure:Azure"),
    "mistral": Kind("mistral:Mistral", "https://api.mistral.ai"),
    "groq": Kind("groq:Groq", "https://api.groq.com"),
    "together": Kind("together:Together", "https://api.together.ai"),
    "fireworks": Kind("fireworks:Fireworks", "https://api.fireworks.ai"),
    "vllm": Kind("vllm:VLLM", has_priority=True),
    "sglang": Kind("sglang:SGLang", has_priority=True),
    "llamacpp": Kind("llamacpp:LlamaCpp"),
    "openai-compatible": Kind("openai:OpenAICompatible"),
}
