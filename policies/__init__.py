"""Decisions, one a file: pure functions and dataclasses with an injected clock and no I/O.

Nothing here imports anything else of ours. What applications may use on its own, retrying by the same rules, is at
hand here, and loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestra.policies.course import wait_full_jitter
    from orchestra.policies.fault import Fault, Recovery, fault_of
    from orchestra.policies.retry import RetryPolicy
    from orchestra.policies.retry_budget import RetryBudget

__all__ = ["Fault", "Recovery", "RetryBudget", "RetryPolicy", "fault_of", "wait_full_jitter"]

_HOMES = {"RetryBudget": "retry_budget", "RetryPolicy": "retry", "wait_full_jitter": "course"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'fault')}"), name)
    return value
