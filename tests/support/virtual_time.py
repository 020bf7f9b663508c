"""An event loop whose time jumps: a day passes as soon as nobody has anything to do before its end.

What is given to a thread is done on the loop instead, a few turns later, and heard of a few turns after that. How
many, a seed says; so what happens in which order is the same every time, and another seed tries another order.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import random
import selectors
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any
from unittest import mock

EPOCH = 1.9e9
"""The unix time at which every virtual loop's clock stood at 0."""
_BEGIN = 1000.0
_LONGEST = 400 * 86_400.0
_MODULES = ("awaited.awaited", "awaited.parking", "diversion.cancelling", "job", "manager", "sending.runner")
"""What of `orchestra.jobs` looks at the clock itself."""


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Waits for nothing: where it is told to, that time has passed."""

    passes: Callable[[float | None], None]

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and (timeout is None or timeout > 0):
            self.passes(timeout)
        else:
            self.passes(1e-9)  # no turn takes no time: who waits for the last bit of a second would wait for ever
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, seed: int = 0) -> None:
        self._now = _BEGIN
        self.dice = random.Random(seed)
        selector = _Selector()
        selector.passes = self._pass
        super().__init__(selector)
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._now

    def wall(self) -> float:
        return EPOCH + self._now

    def _pass(self, seconds: float | None) -> None:
        if seconds is None:
            raise RuntimeError("everybody waits for somebody else")
        self._now += seconds
        if self._now > _LONGEST:
            raise RuntimeError("it has been going on for a year")

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        done: asyncio.Future[Any] = self.create_future()

        def settle(set_it: Callable[[Any], None], value: object) -> None:
            if not done.done():
                set_it(value)

        def work() -> None:
            if done.cancelled():
                return
            set_it: Callable[[Any], None] = done.set_result
            try:
                value: object = func(*args)
            except BaseException as error:
                set_it, value = done.set_exception, error
            later(self.dice.randrange(4), lambda: settle(set_it, value))

        def later(turns: int, then: Callable[[], None]) -> None:
            if turns:
                self.call_soon(later, turns - 1, then)
            else:
                then()

        self.call_soon(later, self.dice.randrange(4), work)
        return done


class _Clock:
    """What modules see as ``time``."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.time, self.monotonic, self.strftime = loop.wall, loop.time, time.strftime


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a `VirtualLoop`. It takes fixtures as any other; ``seed``, where it has one, is the loop's."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        in_virtual_time(lambda: test(**fixtures), seed=fixtures.get("seed", 0))

    return run


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, None]], *, seed: int = 0) -> None:
    """Run ``main`` to its end. Fails where something goes wrong that nobody hears of, or goes on behind it."""
    complaints: list[dict[str, Any]] = []
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=lambda: VirtualLoop(seed)))
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        loop.set_exception_handler(lambda loop, context: complaints.append(context))
        for name in _MODULES:
            module = importlib.import_module(f"orchestra.jobs.{name}")
            if hasattr(module, "time"):
                stack.enter_context(mock.patch.object(module, "time", _Clock(loop)))
            if hasattr(module, "wall"):
                stack.enter_context(mock.patch.object(module, "wall", loop.wall))

        async def whole() -> None:
            await main()
            await asyncio.sleep(0)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"somebody goes on: {left}"

        runner.run(whole())
    assert not complaints, complaints
