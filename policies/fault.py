"""What a failed attempt is worth another try for, in the words that all of retrying, routing and budgets share."""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

__all__ = ["Fault", "Recovery", "fault_of"]

_RETRYABLE = frozenset({408, 409, 425, 429, 498})
_LOST = frozenset({"APIConnectionError", "ConnectionFailed", "TransportError"})
"""What the SDKs, the HTTP libraries and we call a connection that failed. The rest are OSErrors without a file."""
_SPENT = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "billing_error"})


class Recovery(enum.StrEnum):
    """What helps against a fault."""

    RETRY = "retry"
    """The same call may succeed later, on the same route."""
    PAUSE = "pause"
    """The account is spent: nothing of it succeeds until someone acts. Its calls wait, they are not retried."""
    NONE = "none"
    """The same call fails again on this route, however long one waits."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an attempt failed.

    ``retry_after`` is the wait that the provider demands, in seconds, a floor under any delay of ours; None where
    it demands none. ``elsewhere`` says that another route is the better bet. ``unhealthy`` counts against the
    route's breaker: a refusal to serve this caller just now does not, a failure to answer does. ``throttled`` says
    that the account asked for more than it may have; ``pause`` is then for how many seconds the provider said, in
    so many words, that it should ask for nothing. ``of_model`` says that only this model of the account is spent;
    ``of_tier``, that only the service tier that the call asked for has no room.
    """

    recovery: Recovery
    reason: str
    retry_after: float | None = None
    elsewhere: bool = False
    unhealthy: bool = False
    throttled: bool = False
    pause: float | None = None
    of_model: bool = False
    of_tier: bool = False


def fault_of(error: BaseException) -> Fault:
    """Read an exception of any HTTP client, official SDK, or of `orchestra.errors` as a fault.

    Nothing of theirs is imported: an error that has a status (``status_code``, ``status``, or that of its
    ``response``) is judged by it, and by its ``code`` where that says that the account is spent. One without is
    worth another try where it is, or was caused by, the loss of a connection or the end of a wait. The demanded
    is the error's ``retry_after``, or the header of its response. A response that says ``x-should-retry: false``
    is not tried again: whoever gave it has done that already.
    """
    name = type(error).__name__
    headers = _headers(error)
    if headers.get("x-should-retry") == "false":
        return Fault(Recovery.NONE, f"{name}: it was tried enough")
    status = _status(error)
    if status is None:
        lost = _was_lost(error)
        wait = _number(getattr(error, "expected_wait", None))
        if lost or wait is not None:
            return Fault(Recovery.RETRY, name, retry_after=wait, elsewhere=lost, unhealthy=lost)
        return Fault(Recovery.NONE, name)
    reason = f"{name} {status}"
    if getattr(error, "code", None) in _SPENT or status == 402:
        return Fault(Recovery.PAUSE, reason, elsewhere=True)
    if status not in _RETRYABLE and status < 500:
        return Fault(Recovery.NONE, reason)
    wait = _number(getattr(error, "retry_after", None))
    wait = _demanded(headers) if wait is None else wait
    return Fault(
        Recovery.RETRY,
        reason,
        retry_after=wait,
        elsewhere=status > 500,
        unhealthy=status >= 500,
        throttled=status == 429,
    )


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    for owner, name in ((error, "status_code"), (error, "status"), (response, "status_code")):
        value = getattr(owner, name, None)
        if isinstance(value, int) and 400 <= value < 600:
            return value
    return None


def _headers(error: BaseException) -> Mapping[str, str]:
    given = getattr(getattr(error, "response", None), "headers", None)
    try:
        return {str(name).lower(): str(value) for name, value in given.items()} if given is not None else {}
    except (AttributeError, TypeError, ValueError):
        return {}


def _demanded(headers: Mapping[str, str]) -> float | None:
    """Return the demanded wait in seconds: ``retry-after-ms``, or ``retry-after`` in seconds or as a date."""
    if (millis := _number(headers.get("retry-after-ms"))) is not None:
        return millis / 1000
    told = headers.get("retry-after")
    if (seconds := _number(told)) is not None or told is None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(told).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _number(value: object) -> float | None:
    if not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < 1e9 else None


def _was_lost(error: BaseException) -> bool:
    """Return whether a lost connection, or the end of a wait for one, is at the ground of ``error``."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        names = {one.__name__ for one in type(cause).__mro__}
        if names & _LOST or (isinstance(cause, OSError) and cause.filename is None):
            return True
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False
