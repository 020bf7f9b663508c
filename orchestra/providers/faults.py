"""What the dialects share in reading errors: finding the error in a body, and what its status means by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestra.call import read_json
from orchestra.policies.fault import Fault, Recovery

__all__ = ["as_error", "error_object", "status_fault"]

_PAYMENT_REQUIRED = 402
_TOO_MANY_REQUESTS = 429
_RETRYABLE = frozenset({408, 409, 425, 429, 498, 500})
_OVERLOADED = frozenset({502, 503, 504, 520, 521, 522, 523, 524, 529})


def as_error(error: Any) -> Mapping[str, Any]:
    """Return what stands where an error object should, as one: some servers put only its message there."""
    if isinstance(error, str):
        return {"message": error}
    return error if isinstance(error, Mapping) else {}


def error_object(body: bytes) -> Mapping[str, Any]:
    """Return the error object of an error body; empty where there is none.

    It may stand in its wrapper or without, and the whole in a list of one.
    """
    try:
        parsed = read_json(body)
    except ValueError:
        return {}
    if isinstance(parsed, list) and len(parsed) == 1:
        parsed = parsed[0]
    return as_error(parsed.get("error", parsed)) if isinstance(parsed, dict) else {}


def status_fault(
    status: int, reason: str, *, wait: float | None = None, demanded: float | None = None, of_tier: bool = False
) -> Fault:
    """Return what a status means on any wire, where nothing in the answer says otherwise.

    ``wait`` is how long to stay away, in seconds, as far as the answer tells; ``demanded`` what it demands in so
    many words. A 429 means that the account asked for too much, unless it is ``of_tier``: a service tier that has
    no room is nothing that the account did, and no illness of the provider's.
    """
    if 300 <= status < 400:
        return Fault(Recovery.NONE, f"{reason} redirect: base_url does not name the endpoint", elsewhere=True)
    if status == _PAYMENT_REQUIRED:
        return Fault(Recovery.PAUSE, reason, elsewhere=True)
    if status not in _RETRYABLE and status not in _OVERLOADED:
        return Fault(Recovery.NONE, reason)
    throttled = status == _TOO_MANY_REQUESTS and not of_tier
    return Fault(
        Recovery.RETRY,
        reason,
        retry_after=wait,
        elsewhere=status in _OVERLOADED,
        unhealthy=status >= 500 and not of_tier,
        throttled=throttled,
        pause=demanded if throttled else None,
        of_tier=of_tier,
    )
