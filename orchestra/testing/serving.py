"""Serving on a thread of its own, for tests and applications that have no event loop."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AbstractAsyncContextManager

__all__ = ["ServingThread"]


class ServingThread(threading.Thread):
    """Holds a server open on a loop of its own."""

    def __init__(self, server: AbstractAsyncContextManager[object]) -> None:
        super().__init__(name="scripted-provider", daemon=True)
        self._server = server
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._failure: BaseException | None = None

    def start_serving(self) -> None:
        self.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def stop_serving(self) -> None:
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self.join()

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        async with self._server:
            self._ready.set()
            await self._stopping.wait()
