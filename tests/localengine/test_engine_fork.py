"""A forked child of a process in which an engine ran is told so; one that was forked before has its own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from engine_lab import Bench, oracle

from orchestra.localengine import SamplingParams
from orchestra.localengine.errors import EngineForked
from orchestra.localengine.service import own_process

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
GREEDY = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)


def in_child(work: Callable[[], Awaitable[object]]) -> bool:
    """Return whether ``work`` comes to an end in a forked child."""
    if not (pid := os.fork()):
        try:
            signal.alarm(50)
            asyncio.run(work())  # type: ignore[arg-type]
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


async def is_refused(work: Awaitable[object]) -> None:
    with pytest.raises(EngineForked, match="fork first, or start processes by the 'spawn' method"):
        await work


def test_a_child_is_told_whatever_it_tries_and_the_parent_goes_on():
    bench = Bench()
    streams: list[Any] = []

    async def begin() -> None:
        await bench.engine.start()
        bench.runner.closes_at = 3  # so that its next tokens wait for the parent
        streams.append(
            bench.engine.stream([5, 6, 7], SamplingParams(max_tokens=200, temperature=0, ignore_eos=True))
        )
        await anext(streams[0])

    async def child() -> None:
        engine = bench.engine
        await is_refused(engine.start())
        await is_refused(engine.complete([5], GREEDY))
        await is_refused(anext(engine.stream([5], GREEDY)))
        await is_refused(anext(streams[0]))
        await is_refused(Bench().engine.start())  # torch has its threads in the parent, too
        for ask in (lambda: engine.encode([5]), lambda: engine.check([5])):
            with pytest.raises(EngineForked):
                ask()
        assert engine.stats() == {"state": "forked"}
        assert engine.steps() == []
        await engine.close()
        await engine.close(drain=True)

    async def go_on() -> None:
        bench.runner.gate.set()
        got = [token async for delta in streams[0] for token in delta.token_ids]
        assert got == oracle([5, 6, 7], 200)[200 - len(got) :]
        await bench.engine.close()

    asyncio.run(begin())
    assert in_child(child)
    assert bench.engine.stats()["state"] == "running"
    asyncio.run(go_on())
    assert bench.runner.closed


def test_who_forks_first_may_use_an_engine_in_parent_and_child(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(own_process, "_claimed", None)  # as if none had run in this process
    bench = Bench()

    async def use() -> None:
        async with bench.engine as engine:
            assert list((await engine.complete([5, 6], GREEDY)).token_ids) == oracle([5, 6], 5)

    assert in_child(use)
    asyncio.run(use())
    assert not in_child(use)
