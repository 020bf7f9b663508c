"""A small HTTP server that no provider is behind: bodies up and down, compressed, empty, moved."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

CHUNK = bytes(64 * 1024)
ANSWER = {"object": "chat.completion", "id": "c", "created": 1, "model": "m", "choices": [], "usage": None}


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    size: int = 0
    body: bytes = b""


@dataclass
class PlainServer:
    url: str = ""
    log: list[Seen] = field(default_factory=list)
    turns: asyncio.Semaphore | None = None
    """Each of three events waits for one of these, where there are any."""
    moved_to: str = ""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen = Seen(request.method, request.path, headers)
        self.log.append(seen)
        async for chunk in request.content.iter_any():
            seen.size += len(chunk)
            seen.body = (seen.body + chunk)[:4096]
        match request.path.rpartition("/")[2]:
            case "204":
                return web.Response(status=204)
            case "304":
                return web.Response(status=304, headers={"etag": '"x"'})
            case "moved":
                return web.Response(status=307, headers={"location": self.moved_to})
            case "gzip":
                body = gzip.compress(json.dumps(ANSWER).encode())
                headers = {"content-encoding": "gzip", "content-type": "application/json"}
                return web.Response(body=body, headers=headers)
            case "download":
                response = web.StreamResponse(headers={"content-type": "application/octet-stream"})
                response.content_length = int(request.query["chunks"]) * len(CHUNK)
                await response.prepare(request)
                for _ in range(int(request.query["chunks"])) if request.method != "HEAD" else ():
                    await response.write(CHUNK)
                return response
            case "three":
                return await self._three(request, packed=False)
            case "three-packed":
                return await self._three(request, packed=True)
            case _:
                return web.json_response({"id": "file-1", "object": "file", "size": seen.size})

    async def _three(self, request: web.BaseRequest, *, packed: bool) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        packer = zlib.compressobj(wbits=31)
        if packed:
            response.headers["content-encoding"] = "gzip"
        await response.prepare(request)
        for number in range(3):
            event = f'data: {{"number": {number}}}\n\n'.encode()
            await response.write(packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH) if packed else event)
            if self.turns is not None:
                await self.turns.acquire()
        if packed:
            await response.write(packer.flush())
        return response


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[PlainServer]:
    """Serve on the running loop."""
    server = PlainServer(**options)
    runner = web.ServerRunner(web.Server(server.handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
