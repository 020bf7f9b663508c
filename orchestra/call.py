"""One request as everything between the transport and the wire sees it.

On its way a request changes shape as seldom as possible: HTTP request -> `Call` -> lease -> `Outcome` -> HTTP
response.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import unquote

from orchestra.policies.traffic import TrafficClass

__all__ = ["ORIGIN", "Body", "Call", "Charge", "Headers", "Outcome", "RateLimit", "Usage", "new_id", "read_json"]

ORIGIN = "https://orchestra.invalid"
"""The host of calls that we originate. It names nobody (RFC 6761), so nothing can be sent there by mistake."""

Body = bytes | AsyncIterable[bytes]
"""A request's body: whole, or piece by piece. What comes piece by piece can be sent once."""

Headers = tuple[tuple[str, str], ...]
"""Header lines in order. Names are lower-case. A character is a byte (Latin-1): any value stays as it is."""

_IN_URL = re.compile(
    r"/(?:models/|(?=tunedModels/))([^:?#]+):(?:(stream)[A-Z]|[a-z]+[A-Z]|predict)[A-Za-z]*(?:$|[?#])"
)
"""Google's form of a URL: a model, and a verb in camel case, which tells whether the answer is a stream."""


_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))  # `json.dumps` makes one each time


def new_id() -> str:
    """Return a name for a call, unlike all others. It is no secret, so it need not cost a system call."""
    return f"{random.getrandbits(128):032x}"


def read_json(body: bytes) -> Any:
    """Return what a body from outside says. Raises ValueError, whatever is wrong with it."""
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    ``url`` is where the caller pointed it; ``headers`` are the caller's own, without our tag; ``body`` is what
    the caller sent and ``payload`` the same parsed, where it is a JSON object; a body that has one is whole.
    ``job`` groups bulk calls for fairness. ``expires_at`` bounds the whole, queueing included, on the monotonic
    clock; ``queue_bound`` bounds the wait for admission only, in seconds. ``read_timeout`` and
    ``connect_timeout`` are the caller's HTTP timeouts in seconds, which start to count when the request is sent.
    """

    id: str
    method: str
    url: str
    headers: Headers = field(repr=False)
    body: Body = field(repr=False)
    payload: Mapping[str, Any] | None = field(repr=False)
    traffic: TrafficClass = TrafficClass.INTERACTIVE
    job: str | None = None
    expires_at: float | None = None
    queue_bound: float | None = None
    read_timeout: float | None = 600.0
    connect_timeout: float | None = 5.0

    @classmethod
    def originate(
        cls,
        path: str,
        payload: Mapping[str, Any],
        *,
        traffic: TrafficClass = TrafficClass.INTERACTIVE,
        job: str | None = None,
        expires_at: float | None = None,
        queue_bound: float | None = None,
    ) -> Call:
        """Return a call of our own making, for the endpoint at ``path`` (``/v1/chat/completions``, ...).

        It points at no host: its model's routes say where it goes. Raises TypeError or ValueError where the
        payload cannot be written as JSON.
        """
        return cls(
            id=new_id(),
            method="POST",
            url=ORIGIN + path,
            headers=(("content-type", "application/json"), ("accept", "application/json")),
            # ASCII, since half a surrogate has no UTF-8
            body=_ENCODER.encode(payload).encode(),
            payload=payload,
            traffic=traffic,
            job=job,
            expires_at=expires_at,
            queue_bound=queue_bound,
        )

    @property
    def model(self) -> str | None:
        """The model that the call names: in its URL, as ``/models/{model}:generateContent``, or in its body."""
        if (named := _named_in(self.url)) is not None:
            return unquote(named[1])
        model = self.payload.get("model") if self.payload is not None else None
        return model if isinstance(model, str) else None

    @property
    def streams(self) -> bool:
        """Whether the call asks for its answer as a stream: in its URL, or in its body."""
        if (named := _named_in(self.url)) is not None:
            return named[2] is not None
        return self.payload is not None and self.payload.get("stream") is True


@dataclass(frozen=True, slots=True)
class Charge:
    """What a call takes from its pool, by metric. ``tokens`` is what a combined limit counts, by the provider's
    own rule, and need not be the sum of the other two. ``usd`` is what it costs; None where nobody knows."""

    requests: float = 1.0
    tokens: float = 0.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    usd: float | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a call used.

    ``input_tokens`` include cached ones. ``certainty`` tells a count that the provider reported from one that we
    estimated, and both from not knowing. ``tier`` is the service tier that the answer says it was served in, which
    need not be the one asked for.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    certainty: Literal["known", "estimated", "unknown"] = "unknown"
    tier: str | None = None


@dataclass(frozen=True, slots=True)
class RateLimit:
    """What an answer said about one limit of its account, whatever the provider's spelling.

    ``limit`` units of ``metric`` are allowed in ``window`` seconds; ``remaining`` of them were left; in ``reset``
    seconds all are back. None is unknown, never zero. ``name`` tells the limit from others of its metric;
    ``resolution`` is the unit to which ``remaining`` is rounded.
    """

    metric: Literal["requests", "tokens", "input_tokens", "output_tokens"]
    limit: float | None
    remaining: float | None = None
    reset: float | None = None
    window: float = 60.0
    name: str = ""
    resolution: float = 1.0


@lru_cache(maxsize=1024)  # each event of a call asks
def _named_in(url: str) -> re.Match[str] | None:
    return _IN_URL.search(url)


async def _nothing() -> None:
    return None


@dataclass(slots=True, weakref_slot=True)
class Outcome:
    """The answer to a call, whoever gave it.

    The body is read once: by iterating ``body`` or by `read`. Whoever holds an outcome ends it, by reading to
    the end or by `aclose`; both may be called again without harm.
    ``route`` names who answered; ``usage`` is filled in by the time the body has ended.
    """

    status: int
    headers: Headers
    body: AsyncIterator[bytes] = field(repr=False)
    route: str
    usage: Usage = field(default_factory=Usage)
    close: Callable[[], Awaitable[None]] = field(default=_nothing, repr=False)

    async def read(self) -> bytes:
        """Return the whole body and end the outcome."""
        try:
            return b"".join([chunk async for chunk in self.body])
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        await self.close()

    def header(self, name: str) -> str | None:
        """Return the first header of that lower-case name."""
        return next((value for key, value in self.headers if key == name), None)
