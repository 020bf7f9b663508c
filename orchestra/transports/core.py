"""What the transports of both HTTP families share: a request becomes a call, an error of ours an answer."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from orchestra.call import Body, Call, Headers, Outcome, new_id, read_json
from orchestra.clock import wall
from orchestra.errors import ConnectionFailed, InputError, OrchestraError
from orchestra.policies.traffic import TrafficClass
from orchestra.providers import Endpoint, endpoint_at
from orchestra.tagging import TAG_HEADER, Tag, current_tag, parse_tag
from orchestra.transports.late import TimeIsUp
from orchestra.transports.synthetic import answer_of

__all__ = ["TransportCore", "decoded", "encoded", "is_read_whole"]


class TransportCore:
    """Takes requests of either family, as plain values, to ``send``."""

    def __init__(
        self,
        send: Callable[[Call], Awaitable[Outcome]],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = wall,
    ) -> None:
        self._send = send
        self._clock = clock
        self._wall = wall

    async def handle(
        self,
        method: str,
        url: str,
        headers: Iterable[tuple[str, str]],
        body: Body,
        timeouts: Mapping[str, float | None],
    ) -> Outcome:
        """Answer one request. ``timeouts`` are the request's own, by ``connect`` and ``read``, in seconds.

        Our errors come back as outcomes. Raises TimeIsUp where the caller's own bound ended the call, and
        ConnectionFailed where a call that we do not meter failed to connect: that is the family's own error to
        raise, and its SDK's to retry.
        """
        lines = tuple((name.lower(), value) for name, value in headers)
        try:
            call = self._call(method, url, lines, body, timeouts)
            return await self._send(call)
        except ConnectionFailed:
            raise
        except OrchestraError as error:
            answer = answer_of(error, url, lines)
            if not error.timed_out:
                return answer
            raise TimeIsUp(error, lines, answer.status, answer.headers, await answer.read()) from error

    def _call(
        self, method: str, url: str, headers: Headers, body: Body, timeouts: Mapping[str, float | None]
    ) -> Call:
        payload = _payload(body) if isinstance(body, bytes) else None
        stated: object = next((value for name, value in headers if name == TAG_HEADER), None)
        if payload is not None and TAG_HEADER in payload:
            payload = dict(payload)
            field = payload.pop(TAG_HEADER)
            stated = stated if field is None else field
            body = json.dumps(payload, separators=(",", ":")).encode()
        tag = (_stated(stated) if stated is not None else current_tag()) or Tag(TrafficClass.INTERACTIVE)
        expires_at = tag.expires_at(self._clock(), self._wall())
        read_timeout = timeouts.get("read")
        waits_unbounded = tag.traffic is TrafficClass.BULK or expires_at is not None
        return Call(
            id=new_id(),
            method=method.upper(),
            url=url,
            headers=tuple(line for line in headers if line[0] != TAG_HEADER),
            body=body,
            payload=payload,
            traffic=tag.traffic,
            job=tag.job,
            expires_at=expires_at,
            queue_bound=None if waits_unbounded else read_timeout,
            read_timeout=read_timeout,
            connect_timeout=timeouts.get("connect"),
        )


def is_read_whole(url: str, headers: Headers) -> bool:
    """Return whether a body that comes piece by piece is read before the call is sent, since it may be JSON.

    Such a body names the model, and what it costs; and the call can be sent again. Any other (a file, a form) goes
    on as it comes, and can be sent only once.
    """
    kind = next((value for name, value in headers if name == "content-type"), "").partition(";")[0].strip().lower()
    if kind:
        return kind == "application/json" or kind.endswith("+json")
    return endpoint_at(urlsplit(url).path) is not Endpoint.OTHER


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


def _stated(tag: object) -> Tag:
    if isinstance(tag, str):
        return parse_tag(tag)
    raise InputError(f'{TAG_HEADER} must be a text like "bulk; job=nightly"', param=TAG_HEADER)
