"""Proxies and certificates from the environment, as the SDKs' own clients take them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from dispatch_lab import config_for, running

from orchestra.errors import ConfigError
from orchestra.testing import ScriptedProvider
from orchestra.transports import make_client
from orchestra.wire import HttpWire
from orchestra.wire.base import certificates

MESSAGES: Any = [{"role": "user", "content": "hi"}]
NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    certificates.cache_clear()
    yield
    certificates.cache_clear()


class Proxy:
    """Forwards plain requests, and what comes after CONNECT, to ``target``, whatever host was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.url = ""
        self.target = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.split(b"\r\n")[0].decode())
        there = await asyncio.open_connection("127.0.0.1", self.target)
        if head.startswith(b"CONNECT"):
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            method, url, rest = head.split(b" ", 2)
            path = b"/" + url.split(b"/", 3)[3]
            there[1].write(b" ".join((method, path, rest)))
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def proxied(target: int) -> AsyncIterator[Proxy]:
    proxy = Proxy()
    proxy.target = target
    server = await asyncio.start_server(proxy.handle, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()


async def ask(base_url: str) -> str | None:
    async with running(config_for({"one": base_url})) as lab:
        http: Any = make_client("httpx2", lab.core)
        async with openai.AsyncOpenAI(http_client=http, base_url="http://nobody.invalid", api_key="k") as client:
            answer = await client.chat.completions.create(model="fast", messages=MESSAGES)
            return answer.choices[0].message.content


def port_of(provider: ScriptedProvider) -> int:
    return int(provider.origin.rpartition(":")[2])


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY", "http_proxy"])
async def test_plain_requests_go_through_the_proxy(monkeypatch: pytest.MonkeyPatch, variable: str):
    async with ScriptedProvider() as provider, proxied(port_of(provider)) as proxy:
        monkeypatch.setenv(variable, proxy.url)
        assert await ask("http://far.invalid/v1") == "Hello, world."
        assert proxy.asked == ["POST http://far.invalid/v1/chat/completions HTTP/1.1"]


@pytest.mark.parametrize("exempt", ["127.0.0.1", "*", "example.com,127.0.0.1"])
async def test_who_is_exempt_is_asked_directly(monkeypatch: pytest.MonkeyPatch, exempt: str):
    async with ScriptedProvider() as provider, proxied(port_of(provider)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", exempt)
        assert await ask(provider.base_url) == "Hello, world."
        assert proxy.asked == []


async def test_a_proxy_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ALL_PROXY", "gopher://127.0.0.1:1")
    wire = HttpWire()
    with pytest.raises(ConfigError, match="ALL_PROXY"):
        await wire.send("GET", "http://far.invalid/", (), b"", connect_timeout=1, read_timeout=1)
    await wire.aclose()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Return a self-signed certificate for far.invalid, its key in the same file."""
    path = tmp_path / "far.pem"
    asked = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=far.invalid"]
    asked += ["-addext", "subjectAltName=DNS:far.invalid", "-keyout", str(tmp_path / "key.pem"), "-out", str(path)]
    try:
        subprocess.run(asked, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl here")
    path.write_bytes((tmp_path / "key.pem").read_bytes() + path.read_bytes())
    return path


async def test_a_tunnel_to_a_host_whose_certificate_the_environment_trusts(
    monkeypatch: pytest.MonkeyPatch, certificate: Path
):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with ScriptedProvider() as provider:

        async def tunnelled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = await asyncio.open_connection("127.0.0.1", port_of(provider))
            await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

        secure = await asyncio.start_server(tunnelled, "127.0.0.1", 0, ssl=context)
        async with proxied(secure.sockets[0].getsockname()[1]) as proxy:
            monkeypatch.setenv("HTTPS_PROXY", proxy.url)
            with pytest.raises(openai.InternalServerError, match="CERTIFICATE_VERIFY_FAILED"):
                await ask("https://far.invalid/v1")
            certificates.cache_clear()
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            assert await ask("https://far.invalid/v1") == "Hello, world."
            assert set(proxy.asked) == {"CONNECT far.invalid:443 HTTP/1.1"}
        secure.close()
