"""Groq.

Sources: its documentation, "Rate limits", "Flex processing", "API reference"; groq 1.7.0. A stream tells its usage
in its last chunk, under ``x_groq``, unasked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestra.call import Charge, Headers, RateLimit, Usage
from orchestra.policies.fault import Fault, Recovery
from orchestra.providers.hints import demanded_wait
from orchestra.providers.openai import OpenAICompatible, used_by

__all__ = ["Groq"]

_DAY = 86400.0
_PER_DAY = re.compile(r"\b(?:tokens|requests) per day\b|\((?:TPD|RPD)\)", re.IGNORECASE)


class Groq(OpenAICompatible):
    """Groq. Cached tokens do not count. Limits are an organisation's, for each model apart."""

    root = "/openai/v1"
    asks_for_usage = False

    def settle(self, charge: Charge, usage: Usage) -> Charge:
        used = used_by(charge, usage)
        cached = min(usage.cached_tokens, usage.input_tokens)
        return replace(used, tokens=used.tokens - cached, input_tokens=used.input_tokens - cached)

    def limits(self, headers: Headers, now: float) -> list[RateLimit]:
        # Its limit of requests is one a day, and its limit of tokens one a minute.
        return [
            replace(limit, window=_DAY, name="requests_per_day") if limit.name == "requests" else limit
            for limit in super().limits(headers, now)
        ]

    def error_fault(self, status: int, headers: Headers, error: Mapping[str, Any], now: float) -> Fault:
        """Read an error. Only its text tells which limit was hit; a day's is used up until the time it says."""
        fault = super().error_fault(status, headers, error, now)
        if status != 429 or not _PER_DAY.search(str(error.get("message", ""))):
            return fault
        wait = demanded_wait(headers, error, now)
        return Fault(
            Recovery.PAUSE, f"{fault.reason}: a day's limit", retry_after=wait, elsewhere=True, of_model=True
        )
