"""How a `ScriptedProvider`'s requests are read."""

from __future__ import annotations

import hashlib

from aiohttp import web

from orchestra.testing.content import Content, Spool
from orchestra.testing.script import Hit

__all__ = ["read_request"]

_LONG_BODY = 1 << 20


async def read_request(request: web.BaseRequest, at: float, in_flight: int) -> tuple[Hit, Content]:
    """Return what arrived, and its body, which is on disk where it is long. ``at`` is when it began to."""
    spool, digest = Spool(), hashlib.sha256()
    async for piece in request.content.iter_any():
        spool.write(piece)
        digest.update(piece)
    content = spool.content()
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    hit = Hit(
        at=at,
        method=request.method,
        path=request.path,
        headers={name.lower(): value for name, value in request.headers.items()},
        body=content.read() if content.size <= _LONG_BODY else b"",
        in_flight=in_flight,
        query=dict(request.query),
        connection=":".join(str(part) for part in peer or ()),
    )
    hit.size, hit.body_hash = content.size, digest.hexdigest()
    return hit, content
