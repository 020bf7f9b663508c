"""A scripted provider whose answers wait for the test instead of for a time."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from orchestra.testing import ScriptedProvider

__all__ = ["HoldingProvider"]


class HoldingProvider(ScriptedProvider):
    """A `ScriptedProvider` that can `hold` answers back, on whatever loop or thread it serves.

    What is to be seen while calls are under way is then seen, however slow the machine is.
    """

    def __init__(self, *script: Any, **options: Any) -> None:
        super().__init__(*script, **options)
        self._gates: dict[int, threading.Event] = {}

    def hold(self, count: int = 1) -> threading.Event:
        """Answer the next ``count`` requests, beside those that are held already, once the event is set.

        They have arrived (`log`, `in_flight`), and nothing of the script is used up for them before.
        """
        first = max(len(self.log), *self._gates, 0) + 1
        gate = threading.Event()
        self._gates.update(dict.fromkeys(range(first, first + count), gate))
        return gate

    async def _answer(self, request: Any, hit: Any, body: Any) -> Any:
        gate = self._gates.get(len(self.log))  # the last in the log is this one
        while gate is not None and not gate.is_set():  # noqa: ASYNC110 - whoever sets it may be in another thread
            await asyncio.sleep(0.002)
        return await super()._answer(request, hit, body)
