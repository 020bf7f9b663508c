"""Bodies up and down: as they come, of any size, with headers that fit them."""

from __future__ import annotations

import asyncio
import io
import json
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import openai
import pytest
from dispatch_lab import config_for, eventually, running
from holding_provider import HoldingProvider
from plain_server import CHUNK, PlainServer, serving

from orchestra.testing import ScriptedProvider
from orchestra.transports import Family, make_client
from orchestra.wire import HttpWire

MEGABYTES = 64
CHUNKS = MEGABYTES * (1 << 20) // len(CHUNK)


@pytest.fixture(params=["httpx2", "httpx"])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param  # type: ignore[no-any-return]


@asynccontextmanager
async def client_of(family: Family, server: PlainServer) -> AsyncIterator[Any]:
    """Yield a client whose requests go to a configured account at ``server``."""
    async with running(config_for({"one": server.url})) as lab, make_client(family, lab.core) as client:
        yield client


@contextmanager
def memory() -> Iterator[Callable[[], int]]:
    """Yield what tells how many bytes more than at first were in use at most."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield lambda: tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


async def pieces(count: int, chunk: bytes = CHUNK) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield chunk


async def test_a_streamed_upload_is_never_held_whole(family: Family):
    async with serving() as server, client_of(family, server) as client:
        with memory() as most:
            response = await client.post(f"{server.url}/files", content=pieces(CHUNKS))
            assert most() < 8 << 20
        assert response.json()["size"] == MEGABYTES << 20
        headers = server.log[0].headers
        assert headers["transfer-encoding"] == "chunked"
        assert "content-length" not in headers
        assert headers["authorization"] == "Bearer key-of-one"


async def test_a_streamed_upload_of_told_length_has_that_length(family: Family):
    async with serving() as server, client_of(family, server) as client:
        length = {"content-length": str(3 * len(CHUNK))}
        await client.put(f"{server.url}/upload", content=pieces(3), headers=length)
        assert server.log[0].headers["content-length"] == length["content-length"]
        assert "transfer-encoding" not in server.log[0].headers
        assert server.log[0].size == 3 * len(CHUNK)


class Zeros(io.RawIOBase):
    """A file of ``size`` zeros that nobody holds in memory."""

    name = "lines.jsonl"

    def __init__(self, size: int) -> None:
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = self._size - self._at
        size = left if size < 0 else min(size, left)
        self._at += size
        return bytes(size)


async def test_a_form_with_a_file_goes_through_as_it_is_read(family: Family):
    async with serving() as server, client_of(family, server) as client:
        with memory() as most:
            await client.post(
                f"{server.url}/files", files={"file": Zeros(MEGABYTES << 20)}, data={"purpose": "batch"}
            )
            assert most() < 8 << 20
        (seen,) = server.log
        assert seen.headers["content-type"].startswith("multipart/form-data; boundary=")
        assert int(seen.headers["content-length"]) == seen.size > MEGABYTES << 20
        assert b'name="purpose"' in seen.body


async def test_the_sdks_uploads_arrive(family: Family):
    async with ScriptedProvider() as provider, running(config_for({"one": provider})) as lab:
        http: Any = make_client(family, lab.core)
        async with openai.AsyncOpenAI(http_client=http, base_url=provider.base_url, api_key="k") as client:
            line = b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m"}}\n'
            file = await client.files.create(file=("lines.jsonl", line), purpose="batch")
            assert (await client.files.content(file.id)).content == line
            assert lab.kinds() == []  # and nothing was metered


async def test_a_speech_is_passed_on_unmetered(family: Family):
    async with serving() as server, running(config_for({"one": server.url})) as lab:
        http: Any = make_client(family, lab.core)
        async with openai.AsyncOpenAI(http_client=http, base_url=server.url, api_key="k") as client:
            await client.audio.transcriptions.create(file=("a.wav", b"RIFF"), model="whisper-1")
        assert b'name="model"' in server.log[0].body
        assert lab.kinds() == []


@pytest.mark.parametrize("headers", [{"content-type": "application/json"}, {}])
async def test_json_that_comes_in_pieces_is_a_call_like_any_other(family: Family, headers: dict[str, str]):
    body = json.dumps({"model": "fast", "messages": [{"role": "user", "content": "hi"}]}).encode()
    async with ScriptedProvider() as provider, running(config_for({"one": provider})) as lab:
        async with make_client(family, lab.core) as client:
            halves = pieces_of(body[:20], body[20:])
            response = await client.post(
                "http://nobody.invalid/v1/chat/completions", content=halves, headers=headers
            )
        assert response.json()["choices"][0]["message"]["content"] == "Hello, world."
        assert provider.log[0].json["model"] == "one-model"
        assert "settled" in lab.kinds()


async def pieces_of(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def test_what_reading_an_upload_raises_is_the_callers_own(family: Family):
    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise LookupError("the disk is gone")

    async with serving() as server, client_of(family, server) as client:
        with pytest.raises(LookupError, match="the disk is gone"):
            await client.post(f"{server.url}/files", content=broken())
        assert (await client.post(f"{server.url}/files", content=b"next")).json()["size"] == 4


async def test_a_download_is_never_held_whole(family: Family):
    async with serving() as server, client_of(family, server) as client:
        with memory() as most:
            size = 0
            async with client.stream("GET", f"{server.url}/download?chunks={CHUNKS}") as response:
                assert int(response.headers["content-length"]) == MEGABYTES << 20
                async for chunk in response.aiter_raw():
                    size += len(chunk)
            assert size == MEGABYTES << 20
            assert most() < 8 << 20


async def test_a_head_has_the_length_and_no_body(family: Family):
    async with serving() as server, client_of(family, server) as client:
        response = await client.head(f"{server.url}/download?chunks=3")
        assert (response.status_code, response.content) == (200, b"")
        assert response.headers["content-length"] == str(3 * len(CHUNK))


@pytest.mark.parametrize("status", [204, 304])
async def test_answers_without_a_body(family: Family, status: int):
    async with serving() as server, client_of(family, server) as client:
        for _ in range(2):
            response = await client.get(f"{server.url}/{status}")
            assert (response.status_code, response.content) == (status, b"")
        assert response.headers.get("etag") == ('"x"' if status == 304 else None)


async def test_compressed_json_is_decoded_once(family: Family):
    async with serving() as server, client_of(family, server) as client:
        response = await client.get(f"{server.url}/gzip")
        assert response.json()["object"] == "chat.completion"
        assert "content-encoding" not in response.headers
        assert "content-length" not in response.headers
        async with client.stream("GET", f"{server.url}/gzip") as response:
            raw = b"".join([chunk async for chunk in response.aiter_raw()])
        assert json.loads(raw)["object"] == "chat.completion"


@pytest.mark.parametrize("path", ["three", "three-packed"])
async def test_each_chunk_is_handed_on_at_once(family: Family, path: str):
    turns = asyncio.Semaphore(0)
    async with asyncio.timeout(30), serving(turns=turns) as server, client_of(family, server) as client:
        seen = []
        async with client.stream("GET", f"{server.url}/{path}") as response:
            async for chunk in response.aiter_raw():
                seen.append(chunk)
                turns.release()  # the next comes when this one was seen
        assert [json.loads(chunk[6:])["number"] for chunk in seen] == [0, 1, 2]


@pytest.mark.parametrize("name", ["x-api-key", "api-key", "authorization"])
async def test_a_redirect_to_another_host_carries_no_key_of_ours(family: Family, name: str):
    async with serving() as elsewhere, serving() as server, client_of(family, server) as client:
        server.moved_to = f"{elsewhere.url}/files/1"
        client.follow_redirects = True
        response = await client.get(f"{server.url}/moved", headers={name: "callers-own"})
        assert response.status_code == 200
        assert "key-of-one" not in str(elsewhere.log[0].headers)
        assert "key-of-one" in server.log[0].headers["authorization"]


async def test_there_are_as_many_connections_as_calls(family: Family):
    """A client's own limit is 100."""
    async with HoldingProvider() as provider, running(config_for({"one": provider})) as lab:
        http: Any = make_client(family, lab.core)
        async with openai.AsyncOpenAI(http_client=http, base_url=provider.base_url, api_key="k") as client:
            ask = client.chat.completions.create
            messages: Any = [{"role": "user", "content": "hi"}]
            gate = provider.hold(101)
            calls = asyncio.gather(*(ask(model="fast", messages=messages) for _ in range(150)))
            await eventually(lambda: provider.in_flight > 100)
            gate.set()
            await calls


async def test_a_compressed_answer_to_head_keeps_its_headers():
    async with serving() as server:
        wire = HttpWire()
        bounds = {"connect_timeout": 30.0, "read_timeout": 30.0}
        response = await wire.send("HEAD", f"{server.url}/gzip", (), b"", **bounds)
        assert dict(response.headers)["content-encoding"] == "gzip"
        assert [chunk async for chunk in response.body] == []
        await wire.aclose()
