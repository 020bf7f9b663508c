"""The network side: requests out, answers in, nothing decided.

One connection pool an event loop, opened on first use and closed with its loop. Redirects are not followed, since
one must never carry a key to another host; cookies are not kept, since they are their caller's own. Proxies are
taken from the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache, partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Protocol

import httpx2

from orchestra.call import Headers
from orchestra.errors import ConnectionFailed, InputError

__all__ = ["HttpWire", "Wire", "WireResponse"]

_HOP_BY_HOP = frozenset(
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
_OURS = frozenset({"host", "content-length", "accept-encoding", "proxy-authorization"})
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
    UnicodeError,  # a header that is not Latin-1
)
_SHARD = 16
"""Requests at once that one client carries."""
_KEEP_ALIVE = 30.0
"""Seconds for which a connection is kept that nothing uses."""
_ERRORS = (httpx2.HTTPError, httpx2.StreamError)


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
    """

    async def send(
        self,
        method: str,
        url: str,
        headers: Headers,
        body: bytes,
        *,
        connect_timeout: float | None,
        read_timeout: float | None,
    ) -> WireResponse:
        """Send one request and return when the answer's head is in. Timeouts are seconds, None is none."""
        ...

    async def aclose(self) -> None: ...


class HttpWire:
    """A `Wire` on httpx2. May be used from several event loops and threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}

    async def send(
        self,
        method: str,
        url: str,
        headers: Headers,
        body: bytes,
        *,
        connect_timeout: float | None,
        read_timeout: float | None,
    ) -> WireResponse:
        slot = await (await self._pool()).take()
        timeout = httpx2.Timeout(connect=connect_timeout, read=read_timeout, write=read_timeout, pool=None)
        try:
            request = slot.client.build_request(
                method,
                url,
                headers=[
                    (name.encode("latin-1"), value.encode("latin-1"))
                    for name, value in headers
                    if name not in _HOP_BY_HOP | _OURS
                ],
                content=body or None,
                timeout=timeout,
            )
            response = await slot.client.send(request, stream=True)
        except BaseException as error:
            slot.release()
            if isinstance(error, _UNSENDABLE):
                told = f"{type(error).__name__} at {_host(url)}"
                raise InputError(f"the request's address or one of its headers cannot be sent ({told})") from None
            if isinstance(error, _ERRORS):
                raise _failure(error, url) from None
            raise
        return _wire_response(response, slot, url)

    async def aclose(self) -> None:
        """Close the pools of all loops. May be called again; a later `send` opens a new one."""
        with self._lock:
            pools = list(self._pools.items())
            self._pools.clear()
        here = asyncio.get_running_loop()
        for loop, pool in pools:
            if loop is here:
                await pool.aclose()
            elif loop.is_running():
                with contextlib.suppress(RuntimeError):  # it may close just now, and its pool with it
                    asyncio.run_coroutine_threadsafe(pool.aclose(), loop)

    async def _pool(self) -> _Pool:
        loop = asyncio.get_running_loop()
        with self._lock:
            pool = self._pools.get(loop)
            if pool is None:
                for dead in [one for one in self._pools if one.is_closed()]:
                    del self._pools[dead]
                pool = self._pools[loop] = _Pool(partial(self._forget, loop))
        await pool.hold()
        return pool

    def _forget(self, loop: asyncio.AbstractEventLoop, pool: _Pool) -> None:
        with self._lock:
            if self._pools.get(loop) is pool:  # not one that was opened after this was closed
                del self._pools[loop]


class _Pool:
    """One loop's connections.

    They are spread over as many clients as are needed, since a client's own work for a request grows with the
    connections that it holds: it looks at each, and asks the system about those that are idle. The first client
    that has room is taken, so that the last ones fall idle, and are closed.

    A suspended asynchronous generator holds them: a loop that shuts down (``asyncio.run`` does it in order)
    finishes its generators, and so closes the connections while it still can.
    """

    def __init__(self, on_close: Callable[[_Pool], None]) -> None:
        self._shards = [_Shard()]
        self._on_close = on_close
        self._holder = self._hold()
        self._held = False

    async def hold(self) -> None:
        """Let the loop hold it from now on."""
        if not self._held:
            self._held = True
            await anext(self._holder)

    async def take(self) -> _Slot:
        """Take room for one request."""
        while len(self._shards) > 1 and self._shards[-1].idle():
            await self._shards.pop().client.aclose()
        shard = next((one for one in self._shards if one.busy < _SHARD), None)
        if shard is None:
            self._shards.append(shard := _Shard())
        return _Slot(shard)

    async def aclose(self) -> None:
        # The holder is left to the loop, which may be finishing it just now.
        for shard in self._shards:
            await shard.client.aclose()

    async def _hold(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self._on_close(self)
            await self.aclose()


class _Shard:
    """A client, and how many requests it has under way."""

    def __init__(self) -> None:
        self.busy = 0
        self.idle_since = 0.0
        self.client = httpx2.AsyncClient(
            verify=_certificates(),
            limits=httpx2.Limits(
                max_connections=None, max_keepalive_connections=None, keepalive_expiry=_KEEP_ALIVE
            ),
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            headers={"user-agent": "orchestra-llm"},
        )

    def idle(self) -> bool:
        """Return whether it has been of no use for so long that its connections are not worth keeping."""
        return not self.busy and time.monotonic() - self.idle_since > _KEEP_ALIVE


class _Slot:
    """Room for one request. Whoever has it releases it; more than once does nothing."""

    def __init__(self, shard: _Shard) -> None:
        shard.busy += 1
        self.client = shard.client
        self._shard: _Shard | None = shard

    def release(self) -> None:
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.busy -= 1
            shard.idle_since = time.monotonic()


@cache
def _certificates() -> ssl.SSLContext:
    """Return the one set of trusted certificates: reading them takes tens of milliseconds."""
    return httpx2.create_ssl_context()


def _wire_response(response: httpx2.Response, slot: _Slot, url: str) -> WireResponse:
    """Return the answer with a body as its headers say: decoded, unless its encoding was not offered."""

    async def close() -> None:
        try:
            await response.aclose()
        finally:
            slot.release()

    offered = slot.client.headers["accept-encoding"]
    codings = {coding.strip() for coding in response.headers.get("content-encoding", "").lower().split(",")} - {""}
    decode = bool(codings) and codings <= {coding.strip() for coding in offered.split(",")}
    dropped = _HOP_BY_HOP | ({"content-encoding", "content-length"} if decode else set())
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
    return ConnectionFailed(f"{_host(url)}: {type(error).__name__}{told}", sent=not isinstance(error, _NEVER_SENT))


def _host(url: str) -> str:
    return url.split("://")[-1].split("/")[0].split("@")[-1]
