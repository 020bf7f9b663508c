"""How a `ScriptedProvider`'s answers are written, and broken off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web

from orchestra.testing.script import Hit, Reply

__all__ = ["drop", "large_request", "write_stream", "write_whole"]

_LARGEST_BODY = 1 << 30


def large_request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    """Return a request of up to a gigabyte: files of batches are larger than what aiohttp takes by itself."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=_LARGEST_BODY)


async def write_whole(
    request: web.BaseRequest, hit: Hit, reply: Reply, clock: Callable[[], float]
) -> web.StreamResponse:
    """Write an answer with a body. It is noted as answered before the first byte leaves."""
    body = reply.body
    if isinstance(body, str | bytes):
        data, kind = body if isinstance(body, bytes) else body.encode(), "text/html; charset=utf-8"
    else:
        data, kind = json.dumps(body).encode(), "application/json"
    hit.status, hit.answered_at = reply.status, clock()
    headers = {"content-type": kind, **reply.headers}
    if reply.cut_after is None:
        whole = web.Response(status=reply.status, body=data, headers=headers)
        await whole.prepare(request)
        await whole.write_eof()
        return whole
    cut = web.StreamResponse(status=reply.status, headers={**headers, "content-length": str(len(data))})
    await cut.prepare(request)
    await cut.write(data[: reply.cut_after])
    await drop(request)
    return cut


async def write_stream(
    request: web.BaseRequest, hit: Hit, reply: Reply, events: Iterator[bytes | None], clock: Callable[[], float]
) -> web.StreamResponse:
    """Write a streamed answer; None among the events drops the connection."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream", **reply.headers})
    hit.status, hit.answered_at = response.status, clock()
    await response.prepare(request)
    for index, event in enumerate(events):
        if reply.stream.gap and 1 < index <= len(reply.stream.chunks):  # what opens and ends it comes at once
            await asyncio.sleep(reply.stream.gap)
        if event is None:
            await drop(request)
            break
        await response.write(event)
    await response.write_eof()
    return response


async def drop(request: web.BaseRequest) -> None:
    """Close the connection after what has been written. The server cancels us when it is gone."""
    if request.transport is not None:
        request.transport.close()
    await asyncio.Event().wait()
