"""The wire that is used, on one library or the other."""

from __future__ import annotations

from typing import Literal

from orchestra.call import Body, Headers
from orchestra.wire.base import Wire, WireResponse

__all__ = ["HttpWire"]


class HttpWire:
    """A `Wire` on the library ``client``, which is loaded with the first request.

    On aiohttp a request costs the client a quarter of the CPU time, and connections do not get dearer with their
    number (``benchmarks/overhead.py``). httpx2 knows SOCKS proxies, which aiohttp does not.
    """

    def __init__(self, client: Literal["aiohttp", "httpx2"] = "aiohttp") -> None:
        self._client = client
        self._wire: Wire | None = None

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
        if self._wire is None:
            self._wire = _open(self._client)
        return await self._wire.send(
            method, url, headers, body, connect_timeout=connect_timeout, read_timeout=read_timeout
        )

    async def aclose(self) -> None:
        if self._wire is not None:
            await self._wire.aclose()

    def busy(self) -> int:
        return 0 if self._wire is None else self._wire.busy()


def _open(client: Literal["aiohttp", "httpx2"]) -> Wire:
    if client == "aiohttp":
        from orchestra.wire.aiohttp_ import AiohttpWire

        return AiohttpWire()
    from orchestra.wire.httpx2_ import Httpx2Wire

    return Httpx2Wire()
