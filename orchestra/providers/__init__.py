"""The providers' wires: one file a dialect, found by the ``kind`` of the settings."""

from __future__ import annotations

import importlib
from functools import cache

from orchestra.kinds import KINDS
from orchestra.providers.base import Endpoint, FormatError, Provider, StreamReader, endpoint_at, operation_at
from orchestra.providers.expected import expected_usage

__all__ = [
    "Endpoint",
    "FormatError",
    "Provider",
    "StreamReader",
    "endpoint_at",
    "expected_usage",
    "operation_at",
    "provider_of_kind",
]


@cache
def provider_of_kind(kind: str) -> Provider:
    """Return the dialect of that kind; its module is loaded when it is first asked for."""
    module, _, name = KINDS[kind].dialect.partition(":")
    dialect: type[Provider] = getattr(importlib.import_module(f"orchestra.providers.{module}"), name)
    return dialect()
