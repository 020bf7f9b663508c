"""Our errors as answers, each in the form of the wire that was asked in.

They are handed up as HTTP responses rather than raised: the official SDKs turn them into their typed errors, and
do not try again where ``x-should-retry`` says so, whereas some of them retry whatever a transport raises. What the
caller's own timeout ended becomes the SDK's own timeout error all the same: see `orchestra.transports.late`.

Sources: OpenAI "Error codes", Anthropic "Errors", Google's API design guide "Errors", and the SDKs of each.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from orchestra.call import Headers, Outcome
from orchestra.errors import (
    AdmissionError,
    AdmissionTimeout,
    BudgetExceeded,
    CallError,
    CallTimeout,
    ConfigError,
    DeadlineExceeded,
    InputError,
    JobError,
    JobLocked,
    LocalEngineError,
    OrchestraError,
    QueueFull,
    UnknownModelError,
)
from orchestra.providers import Endpoint, endpoint_at

__all__ = ["FORMS", "answer_of"]

FORMS: tuple[tuple[type[OrchestraError], int, str], ...] = (
    # error, then status and code; the first that matches
    (UnknownModelError, 404, "model_not_found"),
    (InputError, 400, "orchestra_invalid_request"),
    (AdmissionTimeout, 429, "orchestra_deadline"),
    (QueueFull, 429, "orchestra_queue_full"),
    (BudgetExceeded, 429, "orchestra_budget_exceeded"),
    (AdmissionError, 429, "orchestra_not_admitted"),
    (LocalEngineError, 503, "orchestra_local_engine"),
    (DeadlineExceeded, 504, "orchestra_deadline"),
    (CallTimeout, 504, "orchestra_timeout"),
    (CallError, 503, "orchestra_no_route_answered"),
    (ConfigError, 500, "orchestra_config"),
    (JobLocked, 409, "orchestra_job_locked"),
    (JobError, 503, "orchestra_job"),
    (OrchestraError, 500, "orchestra_error"),
)
"""What each error is as an answer. The last is every error's. A bound of the caller's that passed makes it 504."""
_OPENAI = {
    400: "invalid_request_error",
    404: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
_ANTHROPIC = {
    400: "invalid_request_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_GOOGLE = {
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_GOOGLES = frozenset(
    {
        Endpoint.GENERATE_CONTENT,
        Endpoint.STREAM_GENERATE_CONTENT,
        Endpoint.EMBED_CONTENT,
        Endpoint.BATCH_EMBED_CONTENTS,
    }
)


def answer_of(error: OrchestraError, url: str, headers: Headers) -> Outcome:
    """Return ``error`` as the answer to a request of that ``url`` and those ``headers`` (lower-case)."""
    status, code = next((status, code) for cls, status, code in FORMS if isinstance(error, cls))
    code = getattr(error, "code", None) or code
    if error.timed_out:
        status = 504
    body = _body(error, status, code, url, {name for name, _ in headers})
    told = [("content-type", "application/json"), ("x-should-retry", "false")]
    wait = getattr(error, "expected_wait", None)
    if wait is not None and math.isfinite(wait):
        told.append(("retry-after", str(max(1, math.ceil(wait)))))
    return Outcome(status, tuple(told), _once(json.dumps(body).encode()), route="")


def _body(error: OrchestraError, status: int, code: str, url: str, names: set[str]) -> Mapping[str, Any]:
    endpoint = endpoint_at(urlsplit(url).path)
    other = endpoint is Endpoint.OTHER
    if endpoint is Endpoint.MESSAGES or (other and "anthropic-version" in names):
        kind = _ANTHROPIC.get(status, "api_error")
        told = {"type": kind, "message": str(error), "details": {"error_code": code}}
        return {"type": "error", "error": told, "request_id": None}
    if endpoint in _GOOGLES or (other and names & {"x-goog-api-key", "x-goog-api-client"}):
        info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code.upper(), "domain": "orchestra"}
        kind = _GOOGLE.get(status, "INTERNAL")
        return {"error": {"code": status, "message": str(error), "status": kind, "details": [info]}}
    kind = _OPENAI.get(status, "server_error")
    param = getattr(error, "param", None)
    return {"error": {"message": str(error), "type": kind, "param": param, "code": code}}


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body
