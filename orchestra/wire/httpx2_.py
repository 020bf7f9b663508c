"""The wire on httpx2."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx2

from orchestra.call import Body, Headers
from orchestra.errors import ConfigError, ConnectionFailed
from orchestra.wire.base import (
    AGENT,
    BODILESS,
    HOP_BY_HOP,
    KEEP_ALIVE,
    WireResponse,
    certificates,
    chunks,
    failure_at,
    sendable,
    unsendable,
)
from orchestra.wire.loops import PerLoop

__all__ = ["Httpx2Wire"]

_NEVER_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
)
_UNSENDABLE = (
    httpx2.UnsupportedProtocol,
    httpx2.LocalProtocolError,  # a header with a line end in it
    httpx2.InvalidURL,
    ValueError,  # a header that is none
)
_SHARD = 16
"""Requests at once that one client carries."""
_ERRORS = (httpx2.HTTPError, httpx2.StreamError)


class Httpx2Wire:
    """A `Wire` on httpx2. May be used from several event loops and threads at once."""

    def __init__(self) -> None:
        self._pools = PerLoop(_Pool)

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
        slot = await (await self._pools.get()).take()
        timeout = httpx2.Timeout(connect=connect_timeout, read=read_timeout, write=read_timeout, pool=None)
        try:
            request = slot.client.build_request(
                method,
                url,
                headers=[
                    (name.encode("latin-1"), value.encode("latin-1")) for name, value in sendable(headers, body)
                ],
                content=(body or None) if isinstance(body, bytes) else chunks(body),
                timeout=timeout,
            )
            response = await slot.client.send(request, stream=True)
        except BaseException as error:
            await slot.release()
            if isinstance(error, _UNSENDABLE):
                raise unsendable(error, url) from None
            if isinstance(error, _ERRORS):
                raise _failure(error, url) from None
            raise
        return _wire_response(response, slot, url)

    async def aclose(self) -> None:
        await self._pools.aclose()

    def busy(self) -> int:
        return self._pools.busy()


class _Pool:
    """One loop's connections.

    They are spread over as many clients as are needed, since a client's own work for a request grows with the
    connections that it holds: it looks at each, and asks the system about those that are idle. The first client
    that has room is taken, so that the last ones fall idle, and are closed.
    """

    def __init__(self) -> None:
        self._shards = [_Shard()]

    @property
    def busy(self) -> int:
        return sum(shard.busy for shard in self._shards)

    async def take(self) -> _Slot:
        """Take room for one request."""
        while len(self._shards) > 1 and self._shards[-1].idle():
            await self._shards.pop().client.aclose()
        shard = next((one for one in self._shards if one.busy < _SHARD), None)
        if shard is None:
            self._shards.append(shard := _Shard())
        return _Slot(shard)

    async def retire(self) -> None:
        for shard in self._shards:
            await shard.retire()

    async def aclose(self) -> None:
        for shard in self._shards:
            await shard.client.aclose()


class _Shard:
    """A client, and how many requests it has under way."""

    def __init__(self) -> None:
        self.busy = 0
        self.idle_since = 0.0
        self._retired = False
        self.client = _open_client()

    def idle(self) -> bool:
        """Return whether it has been of no use for so long that its connections are not worth keeping."""
        return not self.busy and time.monotonic() - self.idle_since > KEEP_ALIVE

    async def retire(self) -> None:
        """Close it as soon as nothing is under way: a connection that opened after the close would stay open."""
        self._retired = True
        if not self.busy:
            await self.client.aclose()

    async def released(self) -> None:
        """Note that a request is over."""
        self.busy -= 1
        self.idle_since = time.monotonic()
        if self._retired:
            await self.retire()


class _Slot:
    """Room for one request. Whoever has it releases it; more than once does nothing."""

    def __init__(self, shard: _Shard) -> None:
        shard.busy += 1
        self.client = shard.client
        self._shard: _Shard | None = shard

    async def release(self) -> None:
        shard, self._shard = self._shard, None
        if shard is not None:
            await shard.released()


def _open_client() -> httpx2.AsyncClient:
    """Return a client with as many connections as are asked for: it is the budget that limits them.

    Raises ConfigError where the environment names a proxy that cannot be used.
    """
    try:
        return httpx2.AsyncClient(
            verify=certificates(),
            limits=httpx2.Limits(
                max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEP_ALIVE
            ),
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            headers={"user-agent": AGENT},
        )
    except (ImportError, ValueError, httpx2.InvalidURL) as error:  # SOCKS without its package, no URL at all
        raise ConfigError(
            f"the proxy that HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names cannot be used: {error}"
        ) from None


def _wire_response(response: httpx2.Response, slot: _Slot, url: str) -> WireResponse:
    """Return the answer with a body as its headers say: decoded, unless its encoding was not offered."""

    async def close() -> None:
        try:
            await response.aclose()
        finally:
            await slot.release()

    bare = response.request.method == "HEAD" or response.status_code in BODILESS
    offered = slot.client.headers["accept-encoding"]
    codings = {coding.strip() for coding in response.headers.get("content-encoding", "").lower().split(",")} - {""}
    decode = not bare and bool(codings) and codings <= {coding.strip() for coding in offered.split(",")}
    dropped = HOP_BY_HOP | ({"content-encoding", "content-length"} if decode else set())
    headers = tuple((name, value) for name, value in _lines(response) if name not in dropped)
    return WireResponse(response.status_code, headers, _body(response, close, decode, url), close)


def _lines(response: httpx2.Response) -> list[tuple[str, str]]:
    return [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in response.headers.raw]


async def _body(
    response: httpx2.Response, close: Callable[[], Awaitable[None]], decode: bool, url: str
) -> AsyncGenerator[bytes]:
    try:
        async for chunk in response.aiter_bytes() if decode else response.aiter_raw():
            if chunk:
                yield chunk
    except _ERRORS as error:
        raise _failure(error, url) from None
    finally:
        await close()


def _failure(error: Exception, url: str) -> ConnectionFailed:
    """Return our error for one of httpx2's. Its text may quote a header, so only a connect error's is told."""
    told = f" ({error})" if isinstance(error, httpx2.ConnectError) and str(error) else ""
    return ConnectionFailed(
        failure_at(url, error, told),
        sent=not isinstance(error, _NEVER_SENT),
        timed_out=isinstance(error, httpx2.TimeoutException),
    )
