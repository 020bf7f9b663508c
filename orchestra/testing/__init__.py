"""A scripted provider for testing applications, and ourselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestra.testing.batch_faults import BatchFaults
from orchestra.testing.batch_script import BatchLimits, BatchScript
from orchestra.testing.bills import Bill, Bills, request_key
from orchestra.testing.limiter import Limits, Tenant
from orchestra.testing.script import Hit, Reply, StreamScript

if TYPE_CHECKING:
    from orchestra.testing.provider import ScriptedProvider

__all__ = [
    "BatchFaults",
    "BatchLimits",
    "BatchScript",
    "Bill",
    "Bills",
    "Hit",
    "Limits",
    "Reply",
    "ScriptedProvider",
    "StreamScript",
    "Tenant",
    "request_key",
]


def __getattr__(name: str) -> Any:
    """Load the server when it is first used: its limits and scripts need none."""
    if name != "ScriptedProvider":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from orchestra.testing.provider import ScriptedProvider

    globals()[name] = ScriptedProvider
    return ScriptedProvider
