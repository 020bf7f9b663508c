"""An event loop whose time jumps: a day passes as soon as nobody has anything to do before its end."""

from __future__ import annotations

import asyncio
import math
import random
import selectors
from collections.abc import Callable, Mapping
from typing import Any

from orchestra.clock import Clock

__all__ = ["LONGEST", "VirtualLoop"]

LONGEST = 400 * 86_400.0
"""Seconds for which one can go on: after that, whoever still waits does so for ever."""
_BEGIN = 1000.0
_TICK = 1e-9
_MOST_TURNS = 4
"""How many turns of the loop a thread's work may take to begin, and as many to be heard of."""


class _NobodyOutside(selectors.BaseSelector):
    """Stands where the operating system would: nothing ever comes from there, and waiting is time that passes."""

    def __init__(self, passes: Callable[[float | None], None]) -> None:
        self._passes = passes
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # no turn takes no time at all: who waits for the last bit of a second would wait for ever
        self._passes(_TICK if timeout is not None and timeout <= 0 else timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs what runs on any loop, as long as it needs no socket: `time` passes where others would wait.

    What is given to a thread is done on the loop instead, a few turns later, and heard of a few turns after that.
    How many, ``seed`` says; so what happens in which order is the same every time, and another seed tries another.
    ``dice`` are the loop's own, for whoever needs some. ``epoch`` is the unix time at which `time` stood at 0.

    Raises RuntimeError, out of whatever runs it, where everybody waits for somebody else.
    """

    def __init__(self, seed: int = 0, *, epoch: float = 1.9e9) -> None:
        self._now = _BEGIN
        self._epoch = epoch
        self.dice = random.Random(seed)
        self._rings: dict[Callable[[], object], float] = {}
        super().__init__(_NobodyOutside(self._pass))
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._now

    def wall(self) -> float:
        """Return the unix time."""
        return self._epoch + self._now

    @property
    def clock(self) -> Clock:
        """Both of its times."""
        return Clock(self.time, self.wall)

    def ring_at(self, when: float, ring: Callable[[], object]) -> None:
        """Call ``ring()`` at ``when``, unless an equal one is set to ring before: as the budget's alarm does."""
        if self._rings.get(ring, math.inf) <= when:
            return
        self._rings[ring] = when

        def due() -> None:
            if self._rings.get(ring) == when:
                del self._rings[ring]
                ring()

        self.call_at(when, due)

    def _pass(self, seconds: float | None) -> None:
        if seconds is None:
            raise RuntimeError("everybody waits for somebody else")
        self._now += seconds
        if self._now > _BEGIN + LONGEST:
            raise RuntimeError("it has been going on for a year")

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
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
            later(self.dice.randrange(_MOST_TURNS), lambda: settle(set_it, value))

        def later(turns: int, then: Callable[[], None]) -> None:
            if turns:
                self.call_soon(later, turns - 1, then)
            else:
                then()

        self.call_soon(later, self.dice.randrange(_MOST_TURNS), work)
        return done
