"""Work is brought to a loop in another thread, many pieces by one wake-up, and each is heard of to its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextvars import ContextVar
from typing import Any

import pytest

from orchestra.jobs.awaited.post import Post

_TAG: ContextVar[str] = ContextVar("_TAG", default="")


class Loop:
    """A loop in a thread. Where it is ``stuck``, it takes nothing before `release` is set."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.begun: list[Future[Any]] = []
        self.release = threading.Event()
        self.has_ended = False

    def stick(self) -> None:
        self.loop.call_soon_threadsafe(self.release.wait, 50.0)

    async def _idle(self) -> None:
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)

    def begin(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Future[Any]:
        if self.has_ended:
            raise RuntimeError("it has ended")
        self.begun.append(asyncio.run_coroutine_threadsafe(work(), self.loop))
        return self.begun[-1]

    def close(self) -> None:
        self.release.set()
        asyncio.run_coroutine_threadsafe(self._idle(), self.loop).result(30.0)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(30.0)
        self.loop.close()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


async def answer(value: Any) -> Any:
    await asyncio.sleep(0)
    if isinstance(value, Exception):
        raise value
    return value, _TAG.get()


def test_one_wake_up_brings_all_there_is(loop: Loop) -> None:
    post = Post(loop)
    loop.stick()
    told = []
    for number in range(100):
        _TAG.set(str(number))
        told.append(post.bring(lambda number=number: answer(number)))  # type: ignore[misc]
    assert len(loop.begun) == 1
    loop.release.set()
    assert [one.result(30.0) for one in told] == [(n, str(n)) for n in range(100)]
    assert post.bring(lambda: answer("later")).result(30.0)[0] == "later"
    assert len(loop.begun) == 2


def test_a_fault_is_told(loop: Loop) -> None:
    with pytest.raises(ValueError, match="so it is"):
        Post(loop).bring(lambda: answer(ValueError("so it is"))).result(30.0)


@pytest.mark.parametrize("before", [True, False])
def test_cancelling_it_cancels_the_work_and_no_other(loop: Loop, before: bool) -> None:
    post = Post(loop)
    began, over = threading.Event(), threading.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.sleep(60.0)
        finally:
            over.set()

    if before:
        loop.stick()
    told, other = post.bring(work), post.bring(lambda: answer(1))
    if not before:
        assert began.wait(30.0)
    assert told.cancel()
    loop.release.set()
    assert other.result(30.0)[0] == 1
    assert before or over.wait(30.0)
    assert began.is_set() is not before


def test_what_nobody_takes_is_given_back(loop: Loop) -> None:
    post = Post(loop)
    loop.stick()
    told = [post.bring(lambda: answer(1)) for _ in range(3)]
    loop.begun[0].cancel()  # as the end of the loop does
    loop.release.set()
    for one in told:
        with pytest.raises(CancelledError):
            one.result(30.0)
    loop.has_ended = True
    for _ in range(2):
        with pytest.raises(RuntimeError):
            post.bring(lambda: answer(1))
