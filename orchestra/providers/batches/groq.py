"""Groq's batches.

Source: console.groq.com/docs, "Batch"; groq 1.7.0 (files of 100 MB). They touch none of the ordinary limits.
"""

from __future__ import annotations

from orchestra.providers.base import Endpoint
from orchestra.providers.batches.base import DAY, BatchTraits
from orchestra.providers.batches.openai import OpenAIBatches
from orchestra.providers.groq import Groq

__all__ = ["GroqBatches"]


class GroqBatches(OpenAIBatches):
    """Groq: chat alone, and up to a week of time."""

    dialect = Groq()
    traits = BatchTraits(
        endpoints=frozenset({Endpoint.CHAT}),
        max_requests=50_000,
        max_bytes=100_000_000,
        windows=tuple(days * DAY for days in range(1, 8)),
    )
