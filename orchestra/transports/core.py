"""What the transports of both HTTP families share: a request becomes a call, an error of ours becomes a response.

Our errors are handed up as HTTP responses in the provider's own form rather than raised: the official SDKs turn
them into their typed errors, and do not try again where ``x-should-retry`` says so, whereas some of them retry
whatever a transport raises.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

from orchestra.call import Call, Headers, Outcome, read_json
from orchestra.errors import (
    AdmissionError,
    AdmissionTimeout,
    BudgetExceeded,
    CallError,
    CallTimeout,
    ConfigError,
    ConnectionFailed,
    DeadlineExceeded,
    InputError,
    LocalEngineError,
    OrchestraError,
    QueueFull,
    UnknownModelError,
)
from orchestra.policies.traffic import TrafficClass
from orchestra.tagging import TAG_HEADER, Tag, current_tag, parse_tag

__all__ = ["TransportCore", "decoded", "encoded"]

_FORMS: tuple[tuple[type[OrchestraError], tuple[int, str, str]], ...] = (
    # error, then status, type and code; the first that matches
    (UnknownModelError, (404, "invalid_request_error", "model_not_found")),
    (InputError, (400, "invalid_request_error", "orchestra_invalid_request")),
    (AdmissionTimeout, (429, "rate_limit_error", "orchestra_deadline")),
    (QueueFull, (429, "rate_limit_error", "orchestra_queue_full")),
    (BudgetExceeded, (429, "rate_limit_error", "orchestra_budget_exceeded")),
    (AdmissionError, (429, "rate_limit_error", "orchestra_not_admitted")),
    (LocalEngineError, (503, "service_unavailable_error", "orchestra_local_engine")),
    (DeadlineExceeded, (429, "rate_limit_error", "orchestra_deadline")),
    (CallTimeout, (504, "server_error", "orchestra_timeout")),
    (CallError, (503, "service_unavailable_error", "orchestra_no_route_answered")),
    (ConfigError, (500, "server_error", "orchestra_config")),
    (OrchestraError, (500, "server_error", "orchestra_error")),
)


class TransportCore:
    """Takes requests of either family, as plain values, to ``send``."""

    def __init__(
        self,
        send: Callable[[Call], Awaitable[Outcome]],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._send = send
        self._clock = clock
        self._wall = wall

    async def handle(
        self,
        method: str,
        url: str,
        headers: Iterable[tuple[str, str]],
        body: bytes,
        timeouts: Mapping[str, float | None],
    ) -> Outcome:
        """Answer one request. ``timeouts`` are the request's own, by ``connect`` and ``read``, in seconds.

        Our errors come back as outcomes. Raises ConnectionFailed where a call that we do not meter failed to
        connect: that is the family's own error to raise, and its SDK's to retry.
        """
        try:
            call = self._call(method, url, headers, body, timeouts)
            return await self._send(call)
        except ConnectionFailed:
            raise
        except OrchestraError as error:
            return _answer_of(error)

    def _call(
        self,
        method: str,
        url: str,
        headers: Iterable[tuple[str, str]],
        body: bytes,
        timeouts: Mapping[str, float | None],
    ) -> Call:
        lines = tuple((name.lower(), value) for name, value in headers)
        stated = next((value for name, value in lines if name == TAG_HEADER), None)
        tag = (parse_tag(stated) if stated is not None else current_tag()) or Tag(TrafficClass.INTERACTIVE)
        expires_at = tag.expires_at(self._clock(), self._wall())
        read_timeout = timeouts.get("read")
        waits_unbounded = tag.traffic is TrafficClass.BULK or expires_at is not None
        return Call(
            id=uuid.uuid4().hex,
            method=method.upper(),
            url=url,
            headers=tuple(line for line in lines if line[0] != TAG_HEADER),
            body=body,
            payload=_payload(body),
            traffic=tag.traffic,
            job=tag.job,
            expires_at=expires_at,
            queue_bound=None if waits_unbounded else read_timeout,
            read_timeout=read_timeout,
            connect_timeout=timeouts.get("connect"),
        )


def decoded(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return a family's raw header lines as ours."""
    return tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw)


def encoded(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return our header lines as a family takes them without a guess at their encoding."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def _payload(body: bytes) -> Mapping[str, Any] | None:
    """Return the body where it is a JSON object, whatever its headers call it."""
    if body.lstrip()[:1] != b"{":
        return None
    try:
        parsed = read_json(body)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _answer_of(error: OrchestraError) -> Outcome:
    status, kind, code = next(form for cls, form in _FORMS if isinstance(error, cls))
    told = {
        "message": str(error),
        "type": kind,
        "param": getattr(error, "param", None),
        "code": getattr(error, "code", None) or code,
    }
    headers: Headers = (("content-type", "application/json"), ("x-should-retry", "false"))
    return Outcome(status, headers, _once(json.dumps({"error": told}).encode()), route="")


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body
