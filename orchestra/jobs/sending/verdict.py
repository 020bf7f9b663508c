"""What an answer, or the lack of one, says about a line. Pure.

A line ends when the provider answered it, or refused it for what it asks. What would have met any other line too
(no connection, a spent account, a wrong key, a missing price) says nothing about this one: it stays as it was, and
the job pauses or stops.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from orchestra.call import Outcome
from orchestra.errors import (
    AdmissionTimeout,
    AllRoutesFailed,
    ConfigError,
    ConnectionFailed,
    DeadlineExceeded,
    InputError,
    LocalEngineError,
    OrchestraError,
    PriceUnknown,
    ProviderError,
    QueueFull,
    StreamInterrupted,
)
from orchestra.jobs.intake.line_parser import encode_json
from orchestra.jobs.ledger.record import End, LineError

__all__ = ["Blocked", "judge_answer", "judge_error"]

_ACCOUNT_STATUSES = frozenset({401, 402, 403})
_PASSING_STATUSES = frozenset({408, 409, 425, 429})
_SPENT_CODES = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "access_terminated"}
)


@dataclass(frozen=True, slots=True)
class Blocked:
    """The call met a fault that is not plainly its line's own.

    ``suspect`` says that the line may be to blame after all, if others are answered meanwhile: a provider that
    breaks down on one request answers it with a 500, or not at all. ``hopeless`` says that otherwise waiting does
    not help (a wrong key, a spent account, an engine that does not start).
    """

    error: LineError
    retry_after: float = 0.0
    hopeless: bool = False
    suspect: bool = False
    status_code: int | None = None


def judge_answer(number: int, outcome: Outcome, body: bytes) -> End | Blocked:
    """Judge an answer whose ``body`` has been read to its end."""
    status = outcome.status
    parsed = _parse(body)
    if status >= 400:
        code, message = _said(parsed, status)
        fault = _judge_status(status, code, message, _seconds(outcome.header("retry-after")))
        if fault is not None:
            return fault
        error: LineError | None = LineError(code, message)
    elif status >= 300 or parsed is None:
        error = LineError("not_an_answer", f"the provider answered with status {status} and no JSON")
    else:
        error = None
    return End(
        number,
        error,
        status_code=status,
        request_id=outcome.header("x-request-id") or outcome.header("request-id"),
        response=_response(parsed, body),
        input_tokens=outcome.usage.input_tokens,
        output_tokens=outcome.usage.output_tokens,
        route=outcome.route,
        via="local" if outcome.route.startswith("local/") else "sync",
    )


def judge_error(number: int, error: OrchestraError) -> End | Blocked:
    """Judge a call that has no answer."""
    message = str(error)
    match error:
        case ProviderError():
            parsed = _parse(error.body)
            code = error.code or _said(parsed, error.status)[0]
            fault = _judge_status(error.status, code, message, error.retry_after or 0.0)
            if fault is not None:
                return fault
            return End(
                number,
                LineError(code, message),
                status_code=error.status,
                response=_response(parsed, error.body) if error.body else None,
            )
        case AllRoutesFailed():
            verdicts = [
                judge_error(number, cause) for _, cause in error.attempts if isinstance(cause, OrchestraError)
            ]
            if verdicts and all(isinstance(verdict, End) for verdict in verdicts):
                return verdicts[-1]
            blocks = [verdict for verdict in verdicts if isinstance(verdict, Blocked)]
            # each fault once, though it was met at every try
            told = "; ".join(dict.fromkeys(f"{route}: {cause}" for route, cause in error.attempts))
            return Blocked(
                LineError("all_routes_failed", told or message),
                retry_after=min((block.retry_after for block in blocks), default=0.0),
                hopeless=bool(blocks) and all(block.hopeless for block in blocks),
                suspect=bool(blocks) and all(block.suspect for block in blocks),
            )
        case AdmissionTimeout() | DeadlineExceeded():
            return End(number, LineError("expired", message))
        case QueueFull():
            return Blocked(LineError("queue_full", message), retry_after=error.expected_wait or 0.0)
        case ConnectionFailed() | StreamInterrupted():
            return Blocked(LineError("connection_failed", message), suspect=True)
        case LocalEngineError():
            return Blocked(LineError("local_engine", message), hopeless=True, suspect=True)
        case ConfigError():
            return Blocked(LineError("config", message), hopeless=True)
        case PriceUnknown():  # so would every line be that asks for this model, until the price is set
            return Blocked(LineError("price_unknown", message), hopeless=True)
        case InputError():
            return End(number, LineError(error.code or "invalid_request", message))
        case _:
            return End(number, LineError(_snake(type(error).__name__), message))


def _judge_status(status: int, code: str, message: str, retry_after: float) -> Blocked | None:
    """Return the block that an error status stands for, or None where it is about the line."""
    error = LineError(code, f"{message} (status {status})")
    if status in _ACCOUNT_STATUSES:
        # a gateway may forbid one text and let others pass
        return Blocked(error, hopeless=status != 403, suspect=status == 403, status_code=status)
    if code in _SPENT_CODES:
        return Blocked(error, hopeless=True, status_code=status)
    if status in _PASSING_STATUSES:
        return Blocked(error, retry_after=retry_after, status_code=status)
    if status >= 500:
        return Blocked(error, retry_after=retry_after, suspect=True, status_code=status)
    return None


def _said(parsed: Any, status: int) -> tuple[str, str]:
    """Return the code and the message of an error body, whatever its shape."""
    error = parsed.get("error", parsed) if isinstance(parsed, dict) else parsed
    if isinstance(error, str) and error:
        return f"http_{status}", error
    if not isinstance(error, dict):
        error = {}
    code = next((word for key in ("code", "type") if isinstance(word := error.get(key), str) and word), None)
    message = next(
        (text for key in ("message", "detail") if isinstance(text := error.get(key), str) and text), None
    )
    return code or f"http_{status}", message or f"the provider answered with status {status}"


def _parse(body: bytes) -> Any:
    """Return the body as JSON, or None where it is none."""
    try:
        return json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _response(parsed: Any, body: bytes) -> bytes:
    """Return the body as JSON in one line; as the message of an error where it is not JSON."""
    if parsed is None:
        text = body[:2000].decode(errors="replace")
        parsed = {"error": {"message": text, "type": "not_json"}}
    with suppress(InputError):
        return encode_json(parsed)
    try:  # half of a character, which only an escape can say
        return json.dumps(parsed, allow_nan=False).encode()
    except (ValueError, RecursionError):  # a number beyond all bounds (1e999), or nested as deep as we can read
        return _response(None, body)


def _seconds(text: str | None) -> float:
    try:
        seconds = float(text or 0)
    except ValueError:
        return 0.0
    return seconds if 0 <= seconds < 1e9 else 0.0


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
