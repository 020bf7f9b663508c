"""What the network side is to the rest: requests out, answers in, nothing decided."""

from __future__ import annotations

import errno
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import httpx2

from orchestra.call import Body, Headers
from orchestra.errors import InputError

__all__ = [
    "AGENT",
    "BODILESS",
    "HOP_BY_HOP",
    "KEEP_ALIVE",
    "Wire",
    "WireResponse",
    "certificates",
    "chunks",
    "failure_at",
    "host_of",
    "sendable",
    "unsendable",
]

AGENT = "orchestra-llm"
KEEP_ALIVE = 30.0
"""Seconds for which a connection is kept that nothing uses."""
BODILESS = frozenset({204, 304})
HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FORBIDDEN = re.compile(r"[\x00\r\n]")
_NOT_SENT = HOP_BY_HOP | {"host", "content-length", "accept-encoding", "expect", "proxy-authorization"}


@dataclass(slots=True)
class WireResponse:
    """An answer whose body is still arriving, and is decoded. Whoever holds it ends it by `aclose`."""

    status: int
    headers: Headers
    body: AsyncIterator[bytes] = field(repr=False)
    aclose: Callable[[], Awaitable[None]] = field(repr=False)


class Wire(Protocol):
    """What sends requests. A failure is a `ConnectionFailed`, from `send` and from reading the body alike.

    A request that can be written to no wire is an `InputError`: it fails again however often it is tried.
    Redirects are not followed, since one must never carry a key to another host; cookies are not kept, since they
    are their caller's own. Proxies are taken from the environment.
    """

    async def send(
        self,
        method: str,
        url: str,
        headers: Headers,
        body: Body,
        *,
        connect_timeout: float | None,
        read_timeout: float | None,
    ) -> WireResponse:
        """Send one request and return when the answer's head is in. Timeouts are seconds, None is none.

        A ``body`` that comes piece by piece is never held whole. It is sent in chunks, or, where ``headers`` tell
        its length, as one of that length. What it raises is raised as it is.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections. May be called again; a later `send` opens new ones.

        What is under way comes to its end first, or to the end of its loop.
        """
        ...

    def busy(self) -> int:
        """Return how many requests are under way."""
        ...


def sendable(headers: Headers, body: Body) -> list[tuple[str, str]]:
    """Return the header lines that go out: not those that this hop says itself.

    Raises ValueError for what is no header line (RFC 9110, 5.1 and 5.5). It quotes none: it may hold a secret.
    """
    tells_length = not isinstance(body, bytes)
    lines = [
        line for line in headers if line[0] not in _NOT_SENT or (tells_length and line[0] == "content-length")
    ]
    if not all(_NAME.fullmatch(name) and not _FORBIDDEN.search(value) for name, value in lines):
        raise ValueError("a header is malformed")
    return lines


async def chunks(body: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    """Yield what is in a body. An empty piece would end it on the wire."""
    async for chunk in body:
        if chunk:
            yield chunk


def host_of(url: str) -> str:
    """Return what of a URL may be told: its host."""
    return re.split(r"[/?#\\]", url.partition("://")[2])[0].rpartition("@")[2]


def failure_at(url: str, error: BaseException, told: str = "") -> str:
    """Say that no answer came from a URL's host, and why: ``told`` is what of the error's text may be told."""
    host = host_of(url)
    return f"connection to {host} refused" if _is_refusal(error) else f"{host}: {type(error).__name__}{told}"


def _is_refusal(error: BaseException | None) -> bool:
    """Return whether nobody listens at any of a host's addresses, by what an error was raised for."""
    if error is None:
        return False
    if isinstance(error, BaseExceptionGroup):
        return all(_is_refusal(one) for one in error.exceptions)
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno == errno.ECONNREFUSED
    return _is_refusal(error.__cause__ or error.__context__)


def unsendable(error: BaseException, url: str) -> InputError:
    """Return our error for a request that can be written to no wire. It quotes nothing: there may be a secret."""
    told = f"{type(error).__name__} at {host_of(url)}"
    return InputError(f"the request's address or one of its headers cannot be sent ({told})")


@cache
def certificates() -> ssl.SSLContext:
    """Return the one set of trusted certificates: reading them takes tens of milliseconds."""
    return httpx2.create_ssl_context()
