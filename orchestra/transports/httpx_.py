"""The transport for ``httpx``."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx

from orchestra.call import Outcome
from orchestra.errors import ConnectionFailed, StreamInterrupted
from orchestra.transports.core import TransportCore, decoded, encoded

__all__ = ["AsyncOrchestraTransport", "make_client"]


class AsyncOrchestraTransport(httpx.AsyncBaseTransport):
    """Puts what is behind ``core`` underneath an ``httpx.AsyncClient``.

    Closing it, or its client, closes nothing else.
    """

    def __init__(self, core: TransportCore) -> None:
        self._core = core

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            outcome = await self._core.handle(
                request.method,
                str(request.url),
                decoded(request.headers.raw),
                await request.aread(),
                request.extensions.get("timeout", {}),
            )
        except ConnectionFailed as error:
            failure = httpx.ReadError if error.sent else httpx.ConnectError
            raise failure(str(error), request=request) from error
        return httpx.Response(outcome.status, headers=encoded(outcome.headers), stream=_Body(outcome, request))


class _Body(httpx.AsyncByteStream):
    def __init__(self, outcome: Outcome, request: httpx.Request) -> None:
        self._outcome = outcome
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._outcome.body:
                yield chunk
        except (StreamInterrupted, ConnectionFailed) as error:
            raise httpx.RemoteProtocolError(str(error), request=self._request) from error

    async def aclose(self) -> None:
        await self._outcome.aclose()


def make_client(core: TransportCore) -> httpx.AsyncClient:
    """Return a client with the defaults of the official SDKs: 600 s, 5 s to connect, redirects followed."""
    return httpx.AsyncClient(
        transport=AsyncOrchestraTransport(core),
        timeout=httpx.Timeout(600, connect=5),
        follow_redirects=True,
    )
