"""Fireworks.

Sources: its documentation, "Rate limits"; fireworks-ai 1.2.30. Its limits adapt to what an account uses, and its
headers tell those of tokens by the second, without what is left; ``x-ratelimit-over-limit: yes`` marks a call that
was served although the account was above them.
"""

from __future__ import annotations

from dataclasses import replace

from orchestra.call import Headers, RateLimit
from orchestra.providers.base import Endpoint
from orchestra.providers.openai import OpenAICompatible

__all__ = ["Fireworks"]


class Fireworks(OpenAICompatible):
    """Fireworks."""

    root = "/inference/v1"
    tiered = frozenset({Endpoint.CHAT})

    def limits(self, headers: Headers, now: float) -> list[RateLimit]:
        told = super().limits(headers, now)
        if ("x-ratelimit-over-limit", "yes") not in headers:
            return told
        # Which of them is meant is not said.
        return [limit if limit.remaining is not None else replace(limit, remaining=0.0) for limit in told]
