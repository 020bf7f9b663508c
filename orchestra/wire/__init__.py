"""The network side: requests out, answers in, nothing decided."""

from __future__ import annotations

from orchestra.wire.base import Wire, WireResponse
from orchestra.wire.http import HttpWire

__all__ = ["HttpWire", "Wire", "WireResponse"]
