"""The lines of batches whose requests stand in the body that creates them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from orchestra.testing.batches import Desk
from orchestra.testing.content import Content, Spool
from orchestra.testing.encoding import compact
from orchestra.testing.roll import BREATH, Line, Roll

__all__ = ["inline_roll", "jsonl"]


def jsonl(requests: Sequence[object]) -> Content:
    """Return the file that these requests would be."""
    spool = Spool()
    for request in requests:
        spool.write(compact(request).encode() + b"\n")
    return spool.content()


async def inline_roll(
    requests: Sequence[Mapping[str, Any]],
    line_of: Callable[[Mapping[str, Any]], Line],
    marked: Collection[str],
    desk: Desk,
) -> Roll:
    """Return the roll of requests that are kept from now on, one a line."""
    spool, places = Spool(), []
    for number, request in enumerate(requests):
        if number % BREATH == 0:
            await asyncio.sleep(0)
        raw = compact(request).encode()
        places.append((spool.size, len(raw)))
        spool.write(raw)
    roll = Roll(spool.content(), lambda raw: line_of(json.loads(raw)), marked)
    for number, ((start, size), request) in enumerate(zip(places, requests, strict=True)):
        if number % BREATH == 0:
            await asyncio.sleep(0)
        line = line_of(request)
        roll.add(start, size, line, *desk.count(line.payload))
    return roll
