"""Tests on an event loop whose time jumps: see `VirtualLoop`."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from orchestra.simulate.virtual_loop import VirtualLoop

__all__ = ["EPOCH", "VirtualLoop", "in_virtual_time", "virtual"]

EPOCH = 1.9e9
"""The unix time at which every virtual loop's clock stood at 0."""


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a `VirtualLoop`. It takes fixtures as any other; ``seed``, where it has one, is the loop's."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        in_virtual_time(lambda: test(**fixtures), seed=fixtures.get("seed", 0))

    return run


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, None]], *, seed: int = 0) -> None:
    """Run ``main`` to its end. Fails where something goes wrong that nobody hears of, or goes on behind it."""
    complaints: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(seed)) as runner:
        runner.get_loop().set_exception_handler(lambda loop, context: complaints.append(context))

        async def whole() -> None:
            await main()
            await asyncio.sleep(0)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"somebody goes on: {left}"

        runner.run(whole())
    assert not complaints, complaints
