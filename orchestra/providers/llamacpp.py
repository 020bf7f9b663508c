"""The server of llama.cpp.

Source: ggml-org/llama.cpp, ``tools/server/README.md``: 503 ``unavailable_error`` while the model loads; beside the
usage, or instead of it, ``timings`` with ``cache_n`` (prompt tokens found in the cache), ``prompt_n`` (the others)
and ``predicted_n``. Calls beyond its slots wait there, without a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestra.call import Headers, Usage
from orchestra.policies.fault import Fault
from orchestra.providers.self_hosted import SelfHosted

__all__ = ["LlamaCpp"]

_LOADING_WAIT = 1.0
"""Seconds after which a server that loads its model is asked again, where it does not say when."""


class LlamaCpp(SelfHosted):
    """A llama.cpp server."""

    def error_fault(self, status: int, headers: Headers, error: Mapping[str, Any], now: float) -> Fault:
        fault = super().error_fault(status, headers, error, now)
        if status == 503 and "loading" in str(error.get("message", "")).lower():
            wait = _LOADING_WAIT if fault.retry_after is None else fault.retry_after
            return replace(fault, unhealthy=False, retry_after=wait)
        return fault

    def read_usage(self, answer: Mapping[str, Any]) -> Usage:
        usage = super().read_usage(answer)
        timings = answer.get("timings")
        if usage.certainty == "known" or not isinstance(timings, Mapping):
            return usage
        cached, prompt, output = (timings.get(name, 0) for name in ("cache_n", "prompt_n", "predicted_n"))
        if not all(type(count) is int and count >= 0 for count in (cached, prompt, output)):
            return usage
        return Usage(cached + prompt, output, cached, certainty="known")
