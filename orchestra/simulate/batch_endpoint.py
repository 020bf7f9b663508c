"""A provider's files and batches in virtual time: those of the scripted provider, without its sockets."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl

from orchestra.call import Body, Headers
from orchestra.simulate.times import Times
from orchestra.simulate.virtual_loop import VirtualLoop
from orchestra.simulate.wording import told_in
from orchestra.testing import BatchScript, ScriptedProvider
from orchestra.testing.content import Content, Spool
from orchestra.testing.script import Hit, Reply
from orchestra.wire import WireResponse

__all__ = ["BatchEndpoint"]

_OWN_FILES = frozenset({"mistral", "together"})
"""Kinds whose forms the scripted provider tells from OpenAI's by a path of their own."""
_SMALL = 1 << 20
_PIECE = 64 << 10
_TOKEN = "word"


class BatchEndpoint:
    """Takes batches as a ``kind`` of provider does, each of which takes as long as ``times`` say, by lot."""

    def __init__(self, kind: str, times: Times, loop: VirtualLoop) -> None:
        self._root = f"/{kind}" if kind in _OWN_FILES else ""
        self._times = times
        self._dice = random.Random(loop.dice.random())
        self._loop = loop
        self._provider = ScriptedProvider(text=_text, clock=loop.time, epoch=loop.wall() - loop.time())

    async def send(self, method: str, parts: SplitResult, headers: Headers, body: Body) -> WireResponse:
        """Answer a request about files or batches; 404 where it is about neither."""
        content = await _content(body)
        small = content.read() if content.size <= _SMALL else b""
        query = dict(parse_qsl(parts.query))
        hit = Hit(self._loop.time(), method, self._root + parts.path, dict(headers), small, 1, query)
        hit.size = content.size
        if method == "POST":  # a batch may be made of it, and the next has a duration of its own
            self._provider.batch_default = BatchScript(running=self._times.draw(self._dice))
        reply = await self._provider.answer_about_batches(hit, content)
        return _response(reply or Reply.error(404, "not_found"))


def _text(payload: Mapping[str, Any]) -> str:
    """Return a text of as many tokens as the request is to be answered with."""
    return _TOKEN * told_in(payload).output


async def _content(body: Body) -> Content:
    spool = Spool()
    if isinstance(body, bytes):
        spool.write(body)
    else:
        async for piece in body:
            spool.write(piece)
    return spool.content()


def _response(reply: Reply) -> WireResponse:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in _pieces(reply.body):
            yield piece

    async def close() -> None:
        pass

    told = (
        ("content-type", "application/json"),
        *((name.lower(), value) for name, value in reply.headers.items()),
    )
    return WireResponse(reply.status, told, pieces(), close)


def _pieces(body: Any) -> Iterator[bytes]:
    if isinstance(body, str):
        body = body.encode()
    elif not isinstance(body, bytes):
        if hasattr(body, "__next__"):
            yield from body
            return
        body = json.dumps(body).encode()
    for at in range(0, len(body), _PIECE):
        yield body[at : at + _PIECE]
