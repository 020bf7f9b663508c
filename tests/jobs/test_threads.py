"""Work of jobs is done in threads of their own, and heard of to its end."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import pytest

from orchestra.jobs.ledger.threads import in_thread

_TAG: ContextVar[str] = ContextVar("_TAG", default="")


async def test_where_jobs_are_kept_waiting_the_programs_own_threads_are_free():
    release = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(2))
    waiting = [asyncio.create_task(in_thread(release.wait, 50.0)) for _ in range(4)]
    try:
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 30.0) == "free"
    finally:
        release.set()
    assert await asyncio.gather(*waiting) == [True] * 4


async def test_it_sees_the_callers_context():
    _TAG.set("mine")
    assert await in_thread(_TAG.get) == "mine"


async def test_cancelled_it_is_waited_for():
    began, release, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        release.wait(50.0)
        ended.set()

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(began.wait)
    task.cancel()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_threads_too():
    asyncio.run(in_thread(int))
    child = os.fork()
    if not child:
        try:
            os._exit(asyncio.run(asyncio.wait_for(in_thread(lambda: 7), 50.0)))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
