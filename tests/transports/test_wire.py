"""The network side."""

from __future__ import annotations

import asyncio
import gc
import gzip
from collections.abc import AsyncIterator

import pytest
from dispatch_lab import eventually
from holding_provider import HoldingProvider

from orchestra.errors import ConnectionFailed, InputError
from orchestra.testing import Reply, ScriptedProvider, StreamScript
from orchestra.wire import HttpWire, WireResponse, httpx2_

BOUNDS = {"connect_timeout": 30.0, "read_timeout": 30.0}


@pytest.fixture(params=["aiohttp", "httpx2"])
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[HttpWire]:
    """The wire on either library, closed in the end."""
    wire = HttpWire(request.param)
    yield wire
    await wire.aclose()


async def whole(response: WireResponse) -> bytes:
    return b"".join([chunk async for chunk in response.body])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_refused_connection_is_told_as_one(wire: HttpWire, host: str):
    async with ScriptedProvider() as provider:
        port = provider.origin.rpartition(":")[2]
    with pytest.raises(ConnectionFailed, match=f"^connection to {host}:{port} refused$") as refused:
        await wire.send("GET", f"http://{host}:{port}/v1?key=secret", (), b"", **BOUNDS)
    assert not refused.value.sent


async def test_a_compressed_body_is_decoded_once_and_its_headers_say_so(wire: HttpWire):
    packed = Reply(headers={"content-encoding": "gzip", "x-kept": "1"}, body=gzip.compress(b"hello" * 100))
    async with ScriptedProvider([packed]) as provider:
        response = await wire.send("GET", provider.base_url, (("accept-encoding", "br"),), b"", **BOUNDS)
        headers = dict(response.headers)
        assert await whole(response) == b"hello" * 100
        assert "content-encoding" not in headers
        assert "content-length" not in headers
        assert headers["x-kept"] == "1"
        assert "gzip" in provider.log[0].headers["accept-encoding"]


async def test_an_encoding_that_was_not_offered_is_left_alone(wire: HttpWire):
    packed = Reply(headers={"content-encoding": "rot13"}, body=b"uryyb")
    async with ScriptedProvider([packed]) as provider:
        response = await wire.send("GET", provider.base_url, (), b"", **BOUNDS)
        assert dict(response.headers)["content-encoding"] == "rot13"
        assert await whole(response) == b"uryyb"


async def test_redirects_are_not_followed_and_cookies_not_kept(wire: HttpWire):
    moved = Reply(307, {"location": "/elsewhere", "set-cookie": "a=b"}, b"")
    async with ScriptedProvider([moved]) as provider:
        response = await wire.send("GET", provider.base_url, (), b"", **BOUNDS)
        assert (response.status, dict(response.headers)["set-cookie"]) == (307, "a=b")
        await response.aclose()
        await (await wire.send("GET", provider.base_url, (), b"", **BOUNDS)).aclose()
        assert "cookie" not in provider.log[1].headers


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "http://nobody.invalid/"])
async def test_what_never_left_us_is_told_apart(wire: HttpWire, url: str):
    with pytest.raises(ConnectionFailed) as caught:
        await wire.send("GET", url, (), b"", **BOUNDS)
    assert not caught.value.sent


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("ftp://127.0.0.1/", ()),
        ("http://[::1", ()),
        ("", (("authorization", "Bearer top-secret\nx-evil: 1"),)),
        ("", (("authorization", "Bearer top-secret\u20ac"),)),
        ("", (("x evil", "top-secret"),)),
    ],
)
async def test_what_cannot_be_sent_is_the_callers_fault(
    wire: HttpWire, url: str, headers: tuple[tuple[str, str], ...]
):
    async with ScriptedProvider() as provider:
        with pytest.raises(InputError) as caught:
            await wire.send("GET", url or provider.base_url, headers, b"", **BOUNDS)
        assert "top-secret" not in repr(caught.value)
        assert provider.log == []


@pytest.mark.parametrize("fault", [Reply(drop=True), Reply(delay=60)])
async def test_what_may_have_arrived_is_told_apart(wire: HttpWire, fault: Reply):
    async with ScriptedProvider([fault]) as provider:
        with pytest.raises(ConnectionFailed) as caught:
            await wire.send("POST", provider.base_url, (), b"{}", connect_timeout=30, read_timeout=0.1)
        assert caught.value.sent


async def test_hundreds_at_once_need_no_pool_timeout(wire: HttpWire):
    async with HoldingProvider() as provider:

        async def one() -> int:
            url = f"{provider.base_url}/models"
            response = await wire.send("GET", url, (), b"", connect_timeout=30, read_timeout=30)
            await whole(response)
            return response.status

        gate = provider.hold(101)
        calls = asyncio.gather(*(one() for _ in range(200)))
        await eventually(lambda: provider.in_flight > 100)
        gate.set()
        assert await calls == [200] * 200


async def test_it_may_be_closed_twice_and_used_again(wire: HttpWire):
    async with ScriptedProvider() as provider:
        for _ in range(2):
            await whole(await wire.send("GET", provider.base_url, (), b"", **BOUNDS))
            await wire.aclose()
            await wire.aclose()


async def test_many_requests_are_spread_over_clients_and_idle_clients_closed(monkeypatch: pytest.MonkeyPatch):
    pool = httpx2_._Pool()
    slots = [await pool.take() for _ in range(40)]
    clients = list(dict.fromkeys(slot.client for slot in slots))
    assert len(clients) == 3
    for slot in slots[1:]:
        await slot.release()
        await slot.release()
    busy = [slots[0], await pool.take()]
    monkeypatch.setattr(httpx2_, "KEEP_ALIVE", -1.0)
    busy.append(await pool.take())
    assert {slot.client for slot in busy} == {clients[0]}
    assert [client.is_closed for client in clients] == [False, True, True]
    await pool.retire()
    assert not clients[0].is_closed, "what is under way comes to its end first"
    for slot in busy:
        await slot.release()
    assert clients[0].is_closed


async def test_every_request_gives_its_room_back(wire: HttpWire):
    replies = [Reply(drop=True), Reply(status=503), Reply(), Reply(delay=60)]
    async with ScriptedProvider(replies) as provider:
        with pytest.raises(ConnectionFailed):
            await wire.send("GET", provider.base_url, (), b"", **BOUNDS)
        with pytest.raises(ConnectionFailed):
            await wire.send("GET", "http://nobody.invalid/", (), b"", **BOUNDS)
        await (await wire.send("GET", provider.base_url, (), b"", **BOUNDS)).aclose()
        await whole(await wire.send("GET", provider.base_url, (), b"", **BOUNDS))
        hanging = asyncio.ensure_future(wire.send("GET", provider.base_url, (), b"", **BOUNDS))
        await eventually(lambda: len(provider.log) == 4)
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        assert wire.busy() == 0


async def test_collecting_what_was_closed_does_not_touch_what_was_opened_since(wire: HttpWire):
    slow = Reply(stream=StreamScript(chunks=["x"] * 10, gap=0.01))
    async with ScriptedProvider(default=slow) as provider:
        await whole(await wire.send("GET", provider.base_url, (), b"", **BOUNDS))
        await wire.aclose()
        url = provider.base_url + "/chat/completions"
        response = await wire.send("POST", url, (), b'{"stream": true}', **BOUNDS)
        body = b""
        async for chunk in response.body:
            body += chunk
            gc.collect()  # the closed pool is a cycle, which the loop finishes when it is found
        assert body.endswith(b"[DONE]\n\n")
