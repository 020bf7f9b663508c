"""One pool of connections an event loop, wherever calls come from."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["PerLoop", "Pool"]


class Pool(Protocol):
    """The connections of one loop. ``busy`` is how many requests are under way."""

    @property
    def busy(self) -> int: ...

    async def retire(self) -> None:
        """Close as soon as nothing is under way, and take no more."""

    async def aclose(self) -> None:
        """Close at once."""


P = TypeVar("P", bound=Pool)


class PerLoop(Generic[P]):
    """Pools by event loop, each opened by ``open_pool`` when its loop first asks, and closed with it.

    A suspended asynchronous generator holds a pool: a loop that shuts down (``asyncio.run`` does it in order)
    finishes its generators, and so closes the connections while it still can. May be used from several loops and
    threads at once. A forked child forgets what its parent has open.
    """

    def __init__(self, open_pool: Callable[[], P]) -> None:
        self._open = open_pool
        self._lock = threading.Lock()
        self._pools: dict[asyncio.AbstractEventLoop, tuple[P, AsyncGenerator[None]]] = {}
        self._retired: list[tuple[P, AsyncGenerator[None]]] = []  # held until nothing is under way
        _everybody.add(self)

    async def get(self) -> P:
        """Return the running loop's pool."""
        loop = asyncio.get_running_loop()
        held = self._pools.get(loop)
        if held is None:
            pool = self._open()
            held = pool, self._hold(loop, pool)
            with self._lock:
                for dead in [one for one in self._pools if one.is_closed()]:
                    del self._pools[dead]
                self._pools[loop] = held
                self._retired = [one for one in self._retired if one[0].busy]
            await anext(held[1])
        return held[0]

    async def aclose(self) -> None:
        """Retire the pools of all loops. May be called again; a later `get` opens a new one."""
        with self._lock:
            pools, self._pools = self._pools, {}
            self._retired = [one for one in (*self._retired, *pools.values()) if one[0].busy]
        here = asyncio.get_running_loop()
        for loop, (pool, _) in pools.items():
            if loop is here:
                await pool.retire()
            elif loop.is_running():
                with contextlib.suppress(RuntimeError):  # it may close just now, and its pool with it
                    asyncio.run_coroutine_threadsafe(pool.retire(), loop)

    def busy(self) -> int:
        """Return how many requests are under way, on all loops."""
        return sum(pool.busy for pool, _ in [*self._pools.values(), *self._retired])

    def leave_to_parent(self) -> None:
        """Forget all pools, in a forked child: their connections, and the loops they live on, are the parent's."""
        self._lock = threading.Lock()
        _stranded.append((self._pools, self._retired))  # kept, since to collect them would close them
        self._pools, self._retired = {}, []

    async def _hold(self, loop: asyncio.AbstractEventLoop, pool: P) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            with self._lock:
                held = self._pools.get(loop)
                if held is not None and held[0] is pool:  # not one that was opened after this was closed
                    del self._pools[loop]
            await pool.aclose()


_everybody: weakref.WeakSet[PerLoop[Any]] = weakref.WeakSet()
_stranded: list[Any] = []


def _leave_all_to_parent() -> None:
    for one in list(_everybody):
        one.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all_to_parent)
