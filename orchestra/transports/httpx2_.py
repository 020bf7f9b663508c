"""The transports for ``httpx2``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import cast

import httpx2

from orchestra.call import Outcome
from orchestra.errors import AdmissionError, ConnectionFailed, OrchestraError, StreamInterrupted
from orchestra.transports.blocking import BlockingCore, BlockingOutcome
from orchestra.transports.core import TransportCore, decoded, encoded, is_read_whole
from orchestra.transports.late import LateAnswer, TimeIsUp

__all__ = ["AsyncOrchestraTransport", "OrchestraTransport", "make_client", "make_sync_client"]

TIMEOUT = httpx2.Timeout(600, connect=5)
"""The official SDKs' own."""


class AsyncOrchestraTransport(httpx2.AsyncBaseTransport):
    """Puts what is behind ``core`` underneath an ``httpx2.AsyncClient``.

    Closing it, or its client, closes nothing else.
    """

    def __init__(self, core: TransportCore) -> None:
        self._core = core

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url, headers, stream = str(request.url), decoded(request.headers.raw), request.stream
        whole = isinstance(stream, httpx2.ByteStream) or is_read_whole(url, headers)
        timeouts = request.extensions.get("timeout", {})
        try:
            body = await request.aread() if whole else cast("httpx2.AsyncByteStream", stream)
            outcome = await self._core.handle(request.method, url, headers, body, timeouts)
        except ConnectionFailed as error:
            raise _failure(error, request) from error
        except TimeIsUp as up:
            return _late(up, request)
        return httpx2.Response(
            outcome.status, headers=encoded(outcome.headers), stream=_AsyncBody(outcome, request)
        )


class OrchestraTransport(httpx2.BaseTransport):
    """Puts what is behind ``core`` underneath an ``httpx2.Client``.

    Closing it, or its client, closes nothing else.
    """

    def __init__(self, core: BlockingCore) -> None:
        self._core = core

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        url, headers, stream = str(request.url), decoded(request.headers.raw), request.stream
        whole = isinstance(stream, httpx2.ByteStream) or is_read_whole(url, headers)
        timeouts = request.extensions.get("timeout", {})
        try:
            body = request.read() if whole else cast("httpx2.SyncByteStream", stream)
            outcome = self._core.handle(request.method, url, headers, body, timeouts)
        except ConnectionFailed as error:
            raise _failure(error, request) from error
        except TimeIsUp as up:
            return _late(up, request)
        return httpx2.Response(outcome.status, headers=encoded(outcome.headers), stream=_Body(outcome, request))


class _AsyncBody(httpx2.AsyncByteStream):
    def __init__(self, outcome: Outcome, request: httpx2.Request) -> None:
        self._outcome = outcome
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._outcome.body:
                yield chunk
        except (StreamInterrupted, ConnectionFailed) as error:
            raise _break(error, self._request) from error

    async def aclose(self) -> None:
        await self._outcome.aclose()


class _Body(httpx2.SyncByteStream):
    def __init__(self, outcome: BlockingOutcome, request: httpx2.Request) -> None:
        self._outcome = outcome
        self._request = request

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._outcome
        except (StreamInterrupted, ConnectionFailed) as error:
            raise _break(error, self._request) from error

    def close(self) -> None:
        self._outcome.close()


def make_client(core: TransportCore) -> httpx2.AsyncClient:
    """Return a client with the defaults of the official SDKs: 600 s, 5 s to connect, redirects followed."""
    return httpx2.AsyncClient(transport=AsyncOrchestraTransport(core), timeout=TIMEOUT, follow_redirects=True)


def make_sync_client(core: BlockingCore) -> httpx2.Client:
    """Return a synchronous client with the same defaults."""
    return httpx2.Client(transport=OrchestraTransport(core), timeout=TIMEOUT, follow_redirects=True)


class _LateResponse(LateAnswer, httpx2.Response):
    pass


def _late(up: TimeIsUp, request: httpx2.Request) -> httpx2.Response:
    """Return what an SDK makes its own timeout error of. Raises the family's where none asked that retries it."""
    if not up.is_retried:
        failure = httpx2.PoolTimeout if isinstance(up.error, AdmissionError) else httpx2.ReadTimeout
        raise failure(str(up), request=request) from up.error
    response = _LateResponse(up.status, headers=encoded(up.headers), content=up.body)
    response.late = up.sdk_error(request)
    return response


def _failure(error: ConnectionFailed, request: httpx2.Request) -> httpx2.TransportError:
    if error.timed_out:
        return (httpx2.ReadTimeout if error.sent else httpx2.ConnectTimeout)(str(error), request=request)
    return (httpx2.ReadError if error.sent else httpx2.ConnectError)(str(error), request=request)


def _break(error: OrchestraError, request: httpx2.Request) -> httpx2.TransportError:
    failure = httpx2.ReadTimeout if error.timed_out else httpx2.RemoteProtocolError
    return failure(str(error), request=request)
