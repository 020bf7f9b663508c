"""Event loops, threads, connection pools, memory and exits. Each test names where the fault was reported."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from faults_lab import MESSAGES, Front, assert_paced, fronted, opened, sdk_over, settings, until
from holding_provider import HoldingProvider
from openai.types.chat import ChatCompletion
from run_lab import wait_for

from orchestra import bulk
from orchestra.testing import Reply, ScriptedProvider, StreamScript

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("stream", [False, True])
def test_one_sdk_client_serves_one_loop_after_another(stream: bool):
    """BerriAI/litellm#7667: a cached client that is used by a second asyncio.run finds its loop closed."""
    with ScriptedProvider() as provider:
        orc = opened(settings(provider, requests_per_minute=1, burst_seconds=540))
        front = Front(orc, sdk_over(orc), provider)

        async def main() -> None:
            async def one() -> None:
                answered = await front.ask(stream=stream)
                if stream:
                    assert [chunk async for chunk in answered]

            await asyncio.gather(*(one() for _ in range(3)))

        for _ in range(3):
            asyncio.run(main())
        asyncio.run(front.refuse())  # what the earlier loops spent is spent
        assert len(provider.log) == 9
        asyncio.run(orc.aclose())
    gc.collect()


@pytest.mark.parametrize("stream", [False, True])
def test_loops_in_threads_share_one_client_and_one_rate(stream: bool):
    """langchain-ai/langchain#35783, openai/openai-python#769: one client, several loops in threads."""
    with ScriptedProvider() as provider:
        orc = opened(settings(provider, requests_per_minute=6000, burst_seconds=0.1))
        front = Front(orc, sdk_over(orc), provider)

        async def main() -> None:
            async def one() -> None:
                answered = await front.ask(stream=stream)
                if stream:
                    assert [chunk async for chunk in answered]

            await asyncio.gather(*(one() for _ in range(12)))

        start = time.monotonic()
        with ThreadPoolExecutor(4) as threads:
            for future in [threads.submit(asyncio.run, main()) for _ in range(4)]:
                future.result(timeout=50)
        assert len(provider.log) == 48
        assert_paced(provider.log, start, burst=10, per_second=100)
        assert front.in_flight() == front.waiting() == 0
        asyncio.run(orc.aclose())


def test_a_limit_of_calls_at_once_is_not_one_a_loop():
    """bytedance/deer-flow PR 4294: a semaphore for each loop makes a "global" limit one a loop."""
    with HoldingProvider() as provider:
        orc = opened(settings(provider, max_concurrency=3))
        front = Front(orc, sdk_over(orc), provider)

        async def main() -> None:
            await asyncio.gather(*(front.ask() for _ in range(15)))

        def one_by_one() -> None:
            for _ in range(10):
                asyncio.run(front.ask())  # as a synchronous program would

        gate = provider.hold(3)
        with ThreadPoolExecutor(3) as threads:
            futures = [threads.submit(asyncio.run, main()) for _ in range(2)] + [threads.submit(one_by_one)]
            wait_for(lambda: provider.in_flight == 3)
            gate.set()
            for future in futures:
                future.result(timeout=50)
        assert (len(provider.log), provider.peak) == (40, 3)
        asyncio.run(orc.aclose())


async def test_slow_calls_never_time_out_for_want_of_a_connection():
    """openai/openai-python#821, #2539: pool timeouts at a few calls a second, once calls are slow."""
    timeout = openai.Timeout(20, pool=0.01)
    async with (
        HoldingProvider() as provider,
        fronted(provider, sdk={"timeout": timeout, "max_retries": 0}, max_concurrency=50) as front,
    ):
        gate = provider.hold(50)
        calls = asyncio.gather(*(front.ask() for _ in range(150)))
        await until(lambda: provider.in_flight == 50)
        gate.set()
        await calls
        assert len(provider.log) == 150
        assert provider.peak == 50


async def test_time_in_the_queue_is_no_time_of_the_call():
    """openai/openai-python#1195: fifty documents at once, and thousands of timeouts, slower than one by one."""
    async with (
        ScriptedProvider(service_time=0.5) as provider,
        fronted(provider, sdk={"timeout": 4.0, "max_retries": 2}, max_concurrency=4) as front,
    ):
        with bulk():
            await asyncio.gather(*(front.ask() for _ in range(40)))  # the last one waits longer than its timeout
        assert provider.log[-1].at - provider.log[0].at > 4.0
        assert len(provider.log) == 40, "none is sent twice"
        assert provider.peak == 4


async def test_a_long_job_is_not_a_task_a_line(tmp_path: Path):
    """Tiendil/feeds.fun#539, apecloud/ApeRAG PR 1809: every task is created up front."""
    most = 0
    async with ScriptedProvider() as provider, fronted(provider, store=tmp_path, max_concurrency=4) as front:
        before = len(asyncio.all_tasks())
        job = await front.orc.submit(({"messages": MESSAGES} for _ in range(1500)), model="fast")
        answered = 0
        async for _ in job:
            answered += 1
            most = max(most, len(asyncio.all_tasks()) - before)
            if answered == 40:
                break
        assert 4 <= most < 600, "a task a line were 1500"
        await job.cancel()


EXIT = """
import asyncio, sys, tempfile
import openai
from orchestra import Orchestra, bulk

async def main():
    global kept
    orc = Orchestra.from_config({
        "providers": {"one": {"kind": "openai-compatible", "base_url": sys.argv[1], "api_key": "k",
                              "limits": [{"max_concurrency": 2}]}},
        "models": {"fast": {"routes": ["one/m"]}},
        "traffic": {"interactive_reserve": 0.0},
        "bulk": {"store": tempfile.mkdtemp() + "/jobs.db"},
    })
    sdk = openai.AsyncOpenAI(http_client=orc.http_client(), base_url="http://nobody.invalid/v1", api_key="k")
    ask = [{"role": "user", "content": "hi"}]
    stream = await sdk.chat.completions.create(model="fast", messages=ask, stream=True)
    await anext(aiter(stream))
    async def read():
        async with orc.stream("fast", ask) as deltas:
            async for _ in deltas:
                opened.set()
    opened = asyncio.Event()
    other = asyncio.create_task(read())
    await opened.wait()
    with bulk():
        create = sdk.chat.completions.create
        tasks = [asyncio.create_task(create(model="fast", messages=ask)) for _ in range(50)]
    job = await orc.submit([{"messages": ask}] * 20, model="fast")
    await asyncio.sleep(0.1)
    kept = orc, sdk, stream, other, tasks, job
    print("leaving", flush=True)

asyncio.run(main())
"""


GENERATOR = """
import asyncio, sys
from orchestra import Orchestra

async def main():
    global kept
    orc = Orchestra.from_config({
        "providers": {"one": {"kind": "openai-compatible", "base_url": sys.argv[1], "api_key": "k"}},
        "models": {"fast": {"routes": ["one/m"]}},
    })

    async def texts():
        async with orc.stream("fast", [{"role": "user", "content": "hi"}]) as deltas:
            async for text in deltas:
                yield text

    kept = texts()
    await anext(kept)
    print("leaving", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "program",
    [pytest.param(EXIT, id="everything open"), pytest.param(GENERATOR, id="a generator around a stream")],
)
def test_a_program_that_closes_nothing_ends_at_once_and_quietly(program: str):
    """bespokelabsai/curator PR 141: a client that is torn down on another loop at exit throws."""
    with ScriptedProvider(default=Reply(stream=StreamScript(gap=600))) as provider:
        process = subprocess.Popen(
            [sys.executable, "-c", program, provider.base_url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "leaving\n", process.communicate()[1]
        start = time.monotonic()
        _, told = process.communicate(timeout=50)
        assert time.monotonic() - start < 20
        assert process.returncode == 0
        assert "Traceback" not in told
        assert "Error" not in told


def test_closing_from_another_loop_and_twice_harms_nobody():
    """bespokelabsai/curator PR 141, its kin: close on another loop than the one that is at work."""
    with ScriptedProvider(default=Reply(delay=0.1)) as provider:
        orc = opened(settings(provider, max_concurrency=2))
        front = Front(orc, sdk_over(orc), provider)
        begun = threading.Event()

        async def work() -> list[Any]:
            tasks = [asyncio.create_task(front.ask()) for _ in range(4)]
            await asyncio.sleep(0.05)
            begun.set()
            return await asyncio.gather(*tasks, return_exceptions=True)

        with ThreadPoolExecutor(1) as threads:
            future = threads.submit(asyncio.run, work())
            assert begun.wait(30)
            asyncio.run(orc.aclose())
            asyncio.run(orc.aclose())
            results = future.result(timeout=50)
        assert all(isinstance(one, ChatCompletion | openai.APIError) for one in results), results
        asyncio.run(front.ask())
        assert front.in_flight() == front.waiting() == 0
        asyncio.run(orc.aclose())
