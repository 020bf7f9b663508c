"""The wire on aiohttp: a request costs the client a quarter of what httpx2 takes, however many are under way."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from contextlib import suppress
from urllib.request import getproxies, proxy_bypass

import aiohttp
from multidict import CIMultiDict
from yarl import URL

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

__all__ = ["AiohttpWire"]

_CODINGS = frozenset({"gzip", "deflate", "br", "zstd"})
_NEVER_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)
_UNSENDABLE = (ValueError, aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError)
_ERRORS = (aiohttp.ClientError, TimeoutError, ConnectionError)
_LONGEST_HEADER = 65_536
_PIECE = 65_536
"""Bytes of a body that are written at once."""


class AiohttpWire:
    """A `Wire` on aiohttp. May be used from several event loops and threads at once.

    A header's characters are bytes; those beyond ASCII must be UTF-8, or there is no way to send them.
    """

    def __init__(self) -> None:
        self._sessions = PerLoop(_Session)

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
        session = await self._sessions.get()
        session.busy += 1
        upload: _Upload | None = None
        try:
            lines = CIMultiDict((name, _as_text(value)) for name, value in sendable(headers, body))
            target = URL(url, encoded=True)
            if "authorization" in lines and target.user is not None:
                target = target.with_user(None)  # which the header has said already
            for _ in range(2):  # turns of the loop, in which it sees what servers have closed while it was busy
                await asyncio.sleep(0)
            async with asyncio.timeout(None) as clock:
                if not isinstance(body, bytes):
                    upload = _Upload(body, clock, read_timeout)
                elif len(body) > _PIECE:
                    upload = _Upload(_pieces(body), clock, read_timeout)
                    lines["content-length"] = str(len(body))
                response = await session.client.request(
                    method,
                    target,
                    headers=lines,
                    data=body or None if upload is None else upload.chunks(),
                    allow_redirects=False,
                    proxy=session.proxy_for(url),
                    timeout=aiohttp.ClientTimeout(sock_connect=connect_timeout, sock_read=read_timeout),
                )
        except BaseException as error:
            await session.released()
            if upload is not None and upload.error is not None:
                raise upload.error from None
            if isinstance(error, _UNSENDABLE) and not isinstance(error, aiohttp.ClientConnectorError):
                raise unsendable(error, url) from None
            if isinstance(error, _ERRORS):
                raise _failure(error, url) from None
            raise
        return _wire_response(response, session, url)

    async def aclose(self) -> None:
        await self._sessions.aclose()

    def busy(self) -> int:
        return self._sessions.busy()


class _Session:
    """One loop's connections, and how many requests are under way."""

    def __init__(self) -> None:
        self.busy = 0
        self._retired = False
        self._proxies: dict[str, str | None] = {}
        self.client = aiohttp.ClientSession(
            # As many connections as are asked for: it is the budget that limits them.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE, ssl=certificates()),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"user-agent": AGENT},
            skip_auto_headers=("accept", "content-type"),
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
        )
        # aiohttp sends a GET again by itself where its connection is lost; who tries again is decided elsewhere.
        self.client._retry_connection = False
        weakref.finalize(self, _leave, self.client, asyncio.get_running_loop()).atexit = False

    def proxy_for(self, url: str) -> str | None:
        """Return the proxy that the environment names for the host of ``url``."""
        origin = "/".join(url.split("/", 3)[:3])
        if origin not in self._proxies:
            self._proxies[origin] = _proxy_of(origin)
        return self._proxies[origin]

    async def released(self) -> None:
        """Note that a request is over."""
        self.busy -= 1
        if self._retired:
            await self.retire()

    async def retire(self) -> None:
        """Close it as soon as nothing is under way."""
        self._retired = True
        if not self.busy:
            await self.client.close()

    async def aclose(self) -> None:
        await self.client.close()


def _leave(client: aiohttp.ClientSession, loop: asyncio.AbstractEventLoop) -> None:
    """Let go of connections that a loop took with it, which was closed without finishing its generators."""
    connector = client.connector
    if connector is not None and loop.is_closed():
        client.detach()
        with suppress(StopIteration):  # there is no loop that it could wait on
            next(connector.close().__await__())


class _Upload:
    """A body that comes piece by piece, and what its source raised: aiohttp would tell of the connection only.

    ``clock`` is set to end the request where a piece is not taken off our hands within ``timeout`` seconds.
    """

    def __init__(self, source: AsyncIterable[bytes], clock: asyncio.Timeout, timeout: float | None) -> None:
        self._source = source
        self._clock = clock
        self._timeout = timeout
        self.error: Exception | None = None

    async def chunks(self) -> AsyncGenerator[bytes]:
        try:
            async for chunk in chunks(self._source):
                self._wind(self._timeout)
                yield chunk
                self._wind(None)
        except Exception as error:
            self.error = error
            raise

    def _wind(self, timeout: float | None) -> None:
        try:
            self._clock.reschedule(None if timeout is None else asyncio.get_running_loop().time() + timeout)
        except RuntimeError:  # the answer came before the body was over
            self._timeout = None


async def _pieces(body: bytes) -> AsyncGenerator[bytes]:
    for start in range(0, len(body), _PIECE):
        yield body[start : start + _PIECE]


def _wire_response(response: aiohttp.ClientResponse, session: _Session, url: str) -> WireResponse:
    over = False

    async def close() -> None:
        nonlocal over
        if not over:
            over = True
            response.close()  # a connection that was read to its end is back in the pool already
            await session.released()

    lines = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in response.raw_headers]
    bare = response.method == "HEAD" or response.status in BODILESS
    decoded = not bare and response.headers.get("content-encoding", "").strip().lower() in _CODINGS
    dropped = HOP_BY_HOP | ({"content-encoding", "content-length"} if decoded else set())
    headers = tuple(line for line in lines if line[0] not in dropped)
    return WireResponse(response.status, headers, _body(response, close, url), close)


async def _body(
    response: aiohttp.ClientResponse, close: Callable[[], Awaitable[None]], url: str
) -> AsyncGenerator[bytes]:
    try:
        while chunk := await response.content.readany():
            yield chunk
    except _ERRORS as error:
        raise _failure(error, url) from None
    finally:
        await close()


def _as_text(value: str) -> str:
    """Return a header's value so that aiohttp, which writes UTF-8, writes the bytes that are meant."""
    return value if value.isascii() else value.encode("latin-1").decode()


def _proxy_of(origin: str) -> str | None:
    url = URL(origin)
    proxies = getproxies()
    named = proxies.get(url.scheme) or proxies.get("all")
    if not named or proxy_bypass(url.host or ""):
        return None
    proxy = named if "://" in named else f"http://{named}"
    if URL(proxy).scheme not in ("http", "https"):
        raise ConfigError(
            f"the proxy that {url.scheme.upper()}_PROXY or ALL_PROXY names is of a kind that aiohttp does not "
            'know: set [network] client = "httpx2", which knows SOCKS too'
        )
    return proxy


def _failure(error: BaseException, url: str) -> ConnectionFailed:
    """Return our error for one of aiohttp's. Its text may quote a header, so only a connect error's is told."""
    told = f" ({error})" if isinstance(error, aiohttp.ClientConnectorError) else ""
    return ConnectionFailed(
        failure_at(url, error, told),
        sent=not isinstance(error, _NEVER_SENT),
        timed_out=isinstance(error, TimeoutError),
    )
