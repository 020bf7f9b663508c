"""How a `ScriptedProvider`'s answers are written, and broken off."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

from aiohttp import web

from orchestra.testing.script import Hit, Reply

__all__ = ["drop", "write_stream", "write_whole"]


async def write_whole(
    request: web.BaseRequest, hit: Hit, reply: Reply, clock: Callable[[], float]
) -> web.StreamResponse:
    """Write an answer with a body. It is noted as answered before the first byte leaves."""
    body = reply.body
    if isinstance(body, Iterator):
        return await _write_pieces(request, hit, reply, body, clock)
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
    await cut.write(data[: min(reply.cut_after, len(data) - 1)])
    await drop(request)
    return cut


async def _write_pieces(
    request: web.BaseRequest, hit: Hit, reply: Reply, pieces: Iterator[bytes], clock: Callable[[], float]
) -> web.StreamResponse:
    """Write a body that is made as it is written. What is not longer than a piece is announced with its length."""
    first = next(pieces, b"")
    following = next(pieces, None)
    if following is None:
        return await write_whole(request, hit, replace(reply, body=first), clock)
    hit.status, hit.answered_at = reply.status, clock()
    response = web.StreamResponse(status=reply.status, headers=reply.headers)
    await response.prepare(request)
    left = math.inf if reply.cut_after is None else reply.cut_after
    for piece in chain((first, following), pieces):
        if len(piece) >= left:
            await response.write(piece[: int(left)])
            await drop(request)
        left -= len(piece)
        await response.write(piece)
        await asyncio.sleep(0)  # others are to be served meanwhile
    await response.write_eof()
    return response


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
