"""Work in a thread whose end is always waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["in_thread"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def in_thread(function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call ``function`` in a thread. Cancelled, wait for its end before that is passed on.

    `asyncio.to_thread` leaves the thread running: what it still writes would come after its caller has given up
    the right to write.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        if not work.cancelled():
            work.exception()  # nobody is left to hear of it
        raise
