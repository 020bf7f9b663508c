"""The kinds of providers there are: the one list from which the settings and the dialects are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True, slots=True)
class Kind:
    """``dialect`` is the class that speaks the wire, as ``module:name`` in `orchestra.providers`.

    ``base_url`` is the provider's own address, as its official SDK takes it; None where there is no such place.
    ``has_priority`` says that a request can carry a priority of its own. ``tiers`` are the service tiers that one
    can ask for, by the provider's documentation; ``billed_tiers`` those whose prices it has: what answers name.

    ``batches`` is the class that speaks its batch endpoint, as ``module:name`` in `orchestra.providers.batches`;
    None where it has none, or none that we speak. ``batches_by_default`` is False where not every server of that
    kind has one, so that the settings must say so. ``background`` are the windows in which it answers single
    requests at a lower price, the cheapest first: see `orchestra.providers.batches.background`.
    ``rate_limits`` is the class that reads what an administrator is told of an account's limits, as
    ``module:name`` in `orchestra.providers.rate_limits`; None where nobody is.
    """

    dialect: str
    base_url: str | None = None
    has_priority: bool = False
    tiers: tuple[str, ...] = ()
    billed_tiers: tuple[str, ...] = ()
    batches: str | None = None
    batches_by_default: bool = True
    background: tuple[str, ...] = ()
    rate_limits: str | None = None


_OPENAI_TIERS = ("auto", "default", "flex", "scale", "priority", "fast")
_OPENAI_BILLED = ("default", "flex", "scale", "priority", "ultrafast")
_OPENAI_SHAPED = "openai:OpenAICompatibleBatches"

KINDS: Mapping[str, Kind] = {
    "openai": Kind(
        "openai:OpenAI",
        "https://api.openai.com/v1",
        tiers=_OPENAI_TIERS,
        billed_tiers=_OPENAI_BILLED,
        batches="openai:OpenAIBatches",
        background=("8h", "2h"),
        rate_limits="openai:OpenAIRateLimits",
    ),
    "anthropic": Kind(
        "anthropic:Anthropic",
        "https://api.anthropic.com",
        tiers=("auto", "standard_only"),
        billed_tiers=("standard", "priority"),
        batches="anthropic:AnthropicBatches",
        rate_limits="anthropic:AnthropicRateLimits",
    ),
    "gemini": Kind(
        "gemini:Gemini",
        "https://generativelanguage.googleapis.com",
        tiers=("flex", "standard", "priority"),
        billed_tiers=("flex", "standard", "priority"),
        batches="gemini:GeminiBatches",
    ),
    "azure": Kind(
        "azure:Azure",
        tiers=("auto", "default", "flex", "priority"),
        billed_tiers=("default", "flex", "priority"),
        batches="azure:AzureBatches",
    ),
    "mistral": Kind(
        "mistral:Mistral",
        "https://api.mistral.ai",
        tiers=("auto", "standard_only"),
        billed_tiers=("standard", "priority"),
        batches="mistral:MistralBatches",
    ),
    "groq": Kind(
        "groq:Groq",
        "https://api.groq.com",
        tiers=("auto", "on_demand", "flex", "performance"),
        billed_tiers=("on_demand", "flex", "performance"),
        batches="groq:GroqBatches",
    ),
    "together": Kind("together:Together", "https://api.together.ai", batches="together:TogetherBatches"),
    "fireworks": Kind(
        "fireworks:Fireworks", "https://api.fireworks.ai", tiers=("priority",), billed_tiers=("priority",)
    ),
    "vllm": Kind("vllm:VLLM", has_priority=True, batches=_OPENAI_SHAPED, batches_by_default=False),
    "sglang": Kind("sglang:SGLang", has_priority=True, batches=_OPENAI_SHAPED, batches_by_default=False),
    "llamacpp": Kind("llamacpp:LlamaCpp", batches=_OPENAI_SHAPED, batches_by_default=False),
    "openai-compatible": Kind(
        "openai:OpenAICompatible",
        tiers=_OPENAI_TIERS,  # gateways hand the field on
        billed_tiers=_OPENAI_BILLED,
        batches=_OPENAI_SHAPED,
        batches_by_default=False,
    ),
}
