"""Calls of the unmodified SDKs inside ``bulk(deadline=...)`` ride in batches, over real sockets."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from batch_lab import last_message
from run_lab import Hurry

from orchestra import Orchestra, bulk
from orchestra.testing import BatchScript, Reply, ScriptedProvider

QUICK = {"window_seconds": 1.0, "window_max_seconds": 60.0, "poll_seconds": 0.05, "poll_max_seconds": 0.2}
SOON = BatchScript(running=0.5)


def settings(provider: ScriptedProvider, store: Path) -> dict[str, Any]:
    one = {"kind": "openai", "base_url": provider.base_url, "api_key": "our-key-0123456789", "batch": QUICK}
    two = {"kind": "anthropic", "base_url": provider.origin, "api_key": "our-key-9876543210", "batch": QUICK}
    return {
        "providers": {"one": one, "two": two},
        "models": {"fast": {"routes": ["one/m"]}, "wise": {"routes": ["two/m"]}},
        "bulk": {"store": str(store / "jobs.db")},
    }


def messages(text: str) -> Any:
    return [{"role": "user", "content": text}]


def asking(orc: Orchestra, kind: str, **options: Any) -> Any:
    """Return what asks as an application does, over one client of the unmodified SDK."""
    if kind == "anthropic":
        wise = anthropic.AsyncAnthropic(api_key="callers-own", http_client=orc.http_client(), **options)

        async def ask(text: str) -> str:
            answer = await wise.messages.create(model="wise", messages=messages(text), max_tokens=8)
            return str(answer.content[0].text)  # type: ignore[union-attr]

        return ask
    client = openai.AsyncOpenAI(api_key="callers-own", http_client=orc.http_client(), **options)

    async def ask_openai(text: str) -> str:
        answer = await client.chat.completions.create(model="fast", messages=messages(text), max_tokens=8)
        return str(answer.choices[0].message.content)

    return ask_openai


def asking_sync(orc: Orchestra, kind: str) -> Any:
    if kind == "anthropic":
        wise = anthropic.Anthropic(api_key="callers-own", http_client=orc.sync_http_client())
        return lambda text: str(
            wise.messages.create(model="wise", messages=messages(text), max_tokens=8).content[0].text  # type: ignore[union-attr]
        )
    client = openai.OpenAI(api_key="callers-own", http_client=orc.sync_http_client())
    return lambda text: str(
        client.chat.completions.create(model="fast", messages=messages(text), max_tokens=8)
        .choices[0]
        .message.content
    )


def creates(provider: ScriptedProvider) -> int:
    return sum(hit.method == "POST" and hit.path.endswith("/batches") for hit in provider.log)


def uploads(provider: ScriptedProvider) -> int:
    return sum(hit.method == "POST" and hit.path.endswith("/files") for hit in provider.log)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_five_hundred_calls_of_an_sdk_are_a_batch_or_two(tmp_path: Path, kind: str):
    async with (
        ScriptedProvider(batch_default=SOON, text=last_message) as provider,
        Orchestra.from_config(settings(provider, tmp_path)) as orc,
    ):
        ask = asking(orc, kind)
        with bulk(deadline="24h"):
            answers = await asyncio.gather(*(ask(f"q{n}") for n in range(500)))
        assert answers == [f"q{n}" for n in range(500)]
        assert creates(provider) in (1, 2)
        assert provider.billed.all.batch == 500
        assert provider.billed.requests_paid_twice() == {}


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_synchronous_clients_in_threads_ride_too(tmp_path: Path, kind: str):
    with (
        ScriptedProvider(batch_default=SOON, text=last_message) as provider,
        Orchestra.from_config(settings(provider, tmp_path)) as orc,
    ):
        ask = asking_sync(orc, kind)

        def one(number: int) -> str:
            with bulk(deadline="24h", job="nightly"):
                return str(ask(f"q{number}"))

        with ThreadPoolExecutor(30) as threads:
            assert list(threads.map(one, range(30))) == [f"q{n}" for n in range(30)]
        assert creates(provider) in (1, 2)
        assert provider.billed.all.batch == 30


async def test_two_loops_and_a_thread_share_a_batch(tmp_path: Path):
    with ScriptedProvider(batch_default=SOON, text=last_message) as provider:
        orc = Orchestra.from_config(settings(provider, tmp_path))
        ask_sync = asking_sync(orc, "openai")
        start = threading.Barrier(3)

        async def several(prefix: str) -> list[str]:
            ask = asking(orc, "openai")
            with bulk(deadline="24h"):
                return await asyncio.gather(*(ask(f"{prefix}{n}") for n in range(10)))

        def loop(prefix: str) -> list[str]:
            start.wait(timeout=30)
            return asyncio.run(several(prefix))

        def thread() -> str:
            start.wait(timeout=30)
            with bulk(deadline="24h"):
                return str(ask_sync("t"))

        told = await asyncio.gather(
            asyncio.to_thread(loop, "a"), asyncio.to_thread(loop, "b"), asyncio.to_thread(thread)
        )
        assert told == [[f"a{n}" for n in range(10)], [f"b{n}" for n in range(10)], "t"]
        assert creates(provider) in (1, 2)
        assert provider.billed.all.batch == 21
        await orc.aclose()


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_refused_line_is_the_sdks_own_typed_error(tmp_path: Path, kind: str):
    if kind == "anthropic":
        refusal = Reply.anthropic_error(400, "invalid_request_error", "not so")
    else:
        refusal = Reply.error(400, "bad_thing", kind="invalid_request_error", message="not so")
    script = BatchScript(running=0.2, replies={0: refusal})
    async with (
        ScriptedProvider(batch_default=script) as provider,
        Orchestra.from_config(settings(provider, tmp_path)) as orc,
    ):
        ask = asking(orc, kind)
        expected = anthropic.BadRequestError if kind == "anthropic" else openai.BadRequestError
        with bulk(deadline="24h"), pytest.raises(expected, match="not so"):
            await ask("q")
        assert creates(provider) == 1


async def test_a_stream_goes_at_once(tmp_path: Path):
    async with (
        ScriptedProvider(batch_default=SOON) as provider,
        Orchestra.from_config(settings(provider, tmp_path)) as orc,
    ):
        client = openai.AsyncOpenAI(api_key="x", http_client=orc.http_client())
        with bulk(deadline="24h"):
            stream = await client.chat.completions.create(model="fast", messages=messages("q"), stream=True)
            assert [chunk async for chunk in stream]
        assert uploads(provider) == 0


async def test_an_sdks_timeout_bounds_no_wait_in_a_batch(tmp_path: Path):
    """It is for an answer that does not come from a server; here the deadline bounds."""
    async with (
        ScriptedProvider(batch_default=BatchScript(running=1.0), text=last_message) as provider,
        Orchestra.from_config(settings(provider, tmp_path)) as orc,
    ):
        ask = asking(orc, "openai", timeout=0.5, max_retries=2)
        with bulk(deadline="24h"):
            assert await ask("q") == "q"
        assert creates(provider) == 1


async def test_closing_one_client_leaves_the_others_waiting(tmp_path: Path):
    async with (
        ScriptedProvider(batch_default=SOON, text=last_message) as provider,
        Orchestra.from_config(settings(provider, tmp_path)) as orc,
    ):
        ask, other = asking(orc, "openai"), openai.AsyncOpenAI(api_key="x", http_client=orc.http_client())
        with bulk(deadline="24h"):
            waiting = [asyncio.create_task(ask(f"q{n}")) for n in range(3)]
            await asyncio.sleep(0.3)
            await other.close()
            assert await asyncio.gather(*waiting) == ["q0", "q1", "q2"]


async def test_closing_it_all_tells_each_caller_at_once(tmp_path: Path):
    async with ScriptedProvider(batch_default=BatchScript(running=3600.0)) as provider:
        orc = Orchestra.from_config(settings(provider, tmp_path))
        ask = asking(orc, "openai")
        with bulk(deadline="24h", job="nightly"):
            waiting = [asyncio.create_task(ask(f"q{n}")) for n in range(5)]
            while not creates(provider):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            began = time.monotonic()
            await orc.aclose()
            told = await asyncio.gather(*waiting, return_exceptions=True)
        assert time.monotonic() - began < 30, "it waited for the batch, or for one of its timeouts"
        assert all(isinstance(one, openai.APIStatusError) and "run this again" in str(one) for one in told), told
        assert creates(provider) == 1


async def test_a_job_that_another_program_runs_is_a_conflict(tmp_path: Path):
    hurry = Hurry()
    script = BatchScript(running=1000.0)
    async with (
        ScriptedProvider(batch_default=script, text=last_message, clock=hurry) as provider,
        Orchestra.from_config(settings(provider, tmp_path)) as orc,
        Orchestra.from_config(settings(provider, tmp_path)) as other,
    ):
        ask, late = asking(orc, "openai"), asking(other, "openai")
        with bulk(deadline="24h", job="nightly"):
            first = asyncio.create_task(ask("q"))
            while not creates(provider):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            with pytest.raises(openai.ConflictError, match="nightly"):
                await late("q")
            hurry.by += 2000.0
            assert await first == "q"


PROGRAM = """
import asyncio, json, os, sys
import openai, orchestra
config, job, dies = json.loads(sys.argv[1]), sys.argv[2] or None, sys.argv[3] == "dies"

async def main():
    async with orchestra.Orchestra.from_config(config) as orc:
        client = openai.AsyncOpenAI(api_key="callers-own", http_client=orc.http_client())

        async def ask(n):
            messages = [{"role": "user", "content": f"q{n}"}]
            return await client.chat.completions.create(model="fast", messages=messages, max_tokens=8)

        with orchestra.bulk(deadline="24h", job=job):
            task = asyncio.gather(*(ask(n) for n in range(50)))
            if dies:
                await asyncio.to_thread(sys.stdin.readline)
                os._exit(9)
            answers = await task
            assert [a.choices[0].message.content for a in answers] == [f"q{n}" for n in range(50)]

asyncio.run(main())
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("job", ["", "nightly"])
def test_a_killed_script_that_is_run_again_uploads_nothing_new(tmp_path: Path, job: str):
    """CultivateLabs/raif PR 474: polls are lost with the process, and results are found a day late."""
    with ScriptedProvider(batch_default=BatchScript(running=2.0), text=last_message) as provider:
        program = [sys.executable, "-c", PROGRAM, json.dumps(settings(provider, tmp_path)), job]
        with subprocess.Popen([*program, "dies"], stdin=subprocess.PIPE) as first:
            limit = time.monotonic() + 100
            while not creates(provider) and time.monotonic() < limit:
                time.sleep(0.02)
            time.sleep(0.2)
            first.communicate(b"now\n")
        again = subprocess.run([*program, "lives"], capture_output=True, text=True, timeout=150)
        assert again.returncode == 0, again.stderr
        assert (uploads(provider), creates(provider)) == (1, 1)
        assert provider.billed.all.batch == 50
        assert provider.billed.requests_paid_twice() == {}
