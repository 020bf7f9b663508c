"""The providers' rate-limit APIs: what an account may use, as an administrator's key is told. One file a provider,
found by the ``kind`` of the settings."""

from __future__ import annotations

import importlib
from functools import cache

from orchestra.kinds import KINDS
from orchestra.providers.rate_limits.base import LimitGroup, RateLimitApi, Remark

__all__ = ["LimitGroup", "RateLimitApi", "Remark", "rate_limits_of_kind"]


@cache
def rate_limits_of_kind(kind: str) -> RateLimitApi | None:
    """Return what reads the limits of that kind's accounts, or None where nobody tells them."""
    named = KINDS[kind].rate_limits
    if named is None:
        return None
    module, _, name = named.partition(":")
    api: type[RateLimitApi] = getattr(importlib.import_module(f"orchestra.providers.rate_limits.{module}"), name)
    return api()
