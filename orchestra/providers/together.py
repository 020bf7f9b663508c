"""Together.

Sources: its documentation, "Rate limits"; together 3.1.1. Its limits follow what an account has used lately, and
its headers tell them by the second (see `orchestra.providers.hints.read_limits`). 429 means that the account is
above its rate; 503, that it is not, and the platform is full.
"""

from __future__ import annotations

from orchestra.providers.openai import OpenAICompatible

__all__ = ["Together"]


class Together(OpenAICompatible):
    """Together."""

    root = "/v1"
    tiered = frozenset()
