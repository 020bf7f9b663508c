"""What servers that people run themselves have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from orchestra.call import Headers
from orchestra.policies.fault import Fault
from orchestra.providers.hints import demanded_wait
from orchestra.providers.openai import OpenAICompatible

__all__ = ["SelfHosted"]


class SelfHosted(OpenAICompatible):
    """A server without an account: what it can bear is calls at once.

    Tokens are counted for the books. A server that holds as many calls as it was told to says so with 503: that is
    no failure of it, and tells the controller of calls at once what a 429 would.
    """

    tiered = frozenset()
    is_full: ClassVar[re.Pattern[str]] = re.compile(r"\bqueue\b.*\bfull\b", re.IGNORECASE)
    """What the message of a refusal for want of room says."""

    def error_fault(self, status: int, headers: Headers, error: Mapping[str, Any], now: float) -> Fault:
        fault = super().error_fault(status, headers, error, now)
        if status == 503 and self.is_full.search(str(error.get("message", ""))):
            pause = demanded_wait(headers, error, now)
            return replace(fault, unhealthy=False, throttled=True, pause=pause)
        return fault
