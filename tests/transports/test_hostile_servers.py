"""Servers and usages that bring a network side to its knees."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator

import openai
import pytest
from dispatch_lab import config_for
from raw_server import read_request, saying

from orchestra import Orchestra
from orchestra.errors import ConnectionFailed
from orchestra.testing import Reply, ScriptedProvider, StreamScript
from orchestra.wire import HttpWire
from orchestra.wire.base import host_of

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
BOUNDS = {"connect_timeout": 30.0, "read_timeout": 30.0}
SLOW = Reply(stream=StreamScript(chunks=["x"] * 20, gap=0.01))
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(params=["aiohttp", "httpx2"])
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[HttpWire]:
    wire = HttpWire(request.param)
    yield wire
    await wire.aclose()


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_server_that_takes_no_more_of_a_body_is_left_after_the_timeout(wire: HttpWire, streamed: bool):
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(600)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield bytes(100_000)

    async with saying(deaf) as url, asyncio.timeout(40):
        body = pieces() if streamed else bytes(20_000_000)
        with pytest.raises(ConnectionFailed) as caught:
            await wire.send("POST", url, (), body, connect_timeout=30, read_timeout=0.2)
        assert caught.value.sent
        assert wire.busy() == 0


async def test_a_source_that_takes_its_time_is_no_slow_server(wire: HttpWire):
    async def pieces() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(3.0)
        yield b"}"

    async with ScriptedProvider() as provider:
        url = f"{provider.base_url}/files"
        response = await wire.send("POST", url, (), pieces(), connect_timeout=30, read_timeout=2.5)
        await response.aclose()
        assert provider.log[0].body == b"{}"


async def test_a_long_body_arrives_whole_and_with_its_length(wire: HttpWire):
    body = bytes(range(256)) * 1200
    async with ScriptedProvider() as provider:
        await (await wire.send("POST", f"{provider.base_url}/files", (), body, **BOUNDS)).aclose()
        assert provider.log[0].body == body
        assert provider.log[0].headers["content-length"] == str(len(body))


async def test_connections_that_closed_while_the_loop_was_busy_are_not_used(wire: HttpWire):
    """A program that computes between its calls finds that its server has closed the connection meanwhile."""
    here: list[str] = []
    stop: list[asyncio.Event] = []
    ready = threading.Event()

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await writer.drain()
        writer.write_eof()
        await reader.read()

    async def serve() -> None:
        stop.append(asyncio.Event())
        async with saying(once) as url:
            here.append(url)
            ready.set()
            await stop[0].wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        ready.wait()
        for _ in range(10):
            response = await wire.send("POST", here[0], (), b"{}", **BOUNDS)
            assert b"".join([chunk async for chunk in response.body]) == b"{}"
            time.sleep(0.02)  # noqa: ASYNC251 - so that the loop sees nothing
    finally:
        loop.call_soon_threadsafe(stop[0].set)
        thread.join()
        loop.close()


async def test_what_is_under_way_when_the_wire_is_closed_comes_to_its_end(wire: HttpWire):
    async with ScriptedProvider(default=SLOW) as provider:
        url = f"{provider.base_url}/chat/completions"
        response = await wire.send("POST", url, (), b'{"stream": true}', **BOUNDS)
        await wire.aclose()
        gc.collect()
        assert wire.busy() == 1
        async with asyncio.timeout(30):
            body = b"".join([chunk async for chunk in response.body])
        assert body.endswith(b"[DONE]\n\n")
        assert wire.busy() == 0


async def test_a_callers_expectation_is_not_waited_for(wire: HttpWire):
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"expect" not in (await read_request(reader)).lower()
        writer.write(OK)
        await writer.drain()

    async with saying(plain) as url, asyncio.timeout(30):
        response = await wire.send("POST", url, (("expect", "100-continue"),), b"{}", **BOUNDS)
        await response.aclose()
        assert response.status == 200


async def test_a_user_in_the_address_that_the_header_has_told_is_no_fault(wire: HttpWire):
    async with ScriptedProvider() as provider:
        url = provider.base_url.replace("//", "//user:word@")
        response = await wire.send("GET", f"{url}/models", (("authorization", "Basic abc"),), b"", **BOUNDS)
        await response.aclose()
        assert provider.log[0].headers["authorization"].startswith("Basic ")


@pytest.mark.parametrize(
    "url",
    [
        "http://host:1/x?key=top-secret",
        "http://host:1?key=top-secret",
        "http://host:1#top-secret",
        "http://host:1/x?u=http://a&key=top-secret",
        "http://me:top-secret@host:1/x@y",
    ],
)
def test_of_an_address_only_its_host_is_told(url: str):
    assert host_of(url) == "host:1"


def test_a_stream_that_the_loops_own_thread_collects_is_closed_without_complaint(recwarn: pytest.WarningsRecorder):
    """An SDK's stream is a cycle: the garbage collector finds it in whatever thread it happens to run."""
    troubles: list[object] = []
    hook, sys.unraisablehook = sys.unraisablehook, troubles.append
    try:
        with (
            ScriptedProvider(default=SLOW) as provider,
            Orchestra.from_config(config_for({"one": provider})) as orc,
        ):
            sdk = openai.OpenAI(base_url=provider.base_url, api_key="k", http_client=orc.sync_http_client())
            gc.disable()
            for _ in range(3):
                for _ in sdk.chat.completions.create(model="fast", messages=MESSAGES, stream=True):
                    break

            async def collect(caller: object) -> None:
                gc.collect()

            orc._loop.session().run(collect)
            end = time.monotonic() + 30
            while sum(orc.snapshot()["pools"][0]["in_use"].values()):
                assert time.monotonic() < end
                time.sleep(0.01)
    finally:
        gc.enable()
        sys.unraisablehook = hook
    assert troubles == []


_LEFT = """
import asyncio, gc
from orchestra.testing import ScriptedProvider
from orchestra.wire import HttpWire
loop = asyncio.new_event_loop()
async def main():
    wire = HttpWire()
    async with ScriptedProvider() as provider:
        await (await wire.send("GET", provider.base_url, (), b"", connect_timeout=30, read_timeout=30)).aclose()
loop.run_until_complete(main())
loop.close()
gc.collect()
"""


def test_a_loop_that_is_closed_without_more_ado_brings_no_complaint():
    done = subprocess.run([sys.executable, "-c", _LEFT], capture_output=True, text=True, timeout=50, check=True)
    assert "Unclosed" not in done.stderr
