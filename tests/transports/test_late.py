"""A call whose time was up: each SDK's own timeout error, and not one try more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from orchestra.call import Call, Outcome
from orchestra.errors import AdmissionTimeout, CallTimeout, ConnectionFailed, OrchestraError, StreamInterrupted
from orchestra.transports import make_client
from orchestra.transports.anthropic_ import make_middleware
from orchestra.transports.blocking import BlockingCore
from orchestra.transports.core import TransportCore
from orchestra.transports.httpx2_ import make_sync_client
from orchestra.transports.loop_thread import LoopThread

MESSAGES: Any = [{"role": "user", "content": "hi"}]
CHAT: Any = {"model": "fast", "messages": MESSAGES}
URL = "http://x.invalid/v1/chat/completions"
TOLD = "no answer within the call's timeout of 1s"


class Late:
    """Ends every call by ``error`` and counts them."""

    def __init__(self, error: OrchestraError | None = None) -> None:
        self.error = error or CallTimeout(TOLD)
        self.calls = 0
        self.core = TransportCore(self._send)

    async def _send(self, call: Call) -> Outcome:
        self.calls += 1
        raise self.error


@pytest.fixture
def late() -> Late:
    return Late()


@pytest.fixture
def blocking(late: Late) -> Iterator[httpx2.Client]:
    loop = LoopThread("late")
    with make_sync_client(BlockingCore(late.core, loop)) as client:
        yield client
    loop.close()


def ask_openai(http: Any) -> Awaitable[object]:
    return openai.AsyncOpenAI(api_key="k", http_client=http, max_retries=5).chat.completions.create(**CHAT)


def ask_azure(http: Any) -> Awaitable[object]:
    client = openai.AsyncAzureOpenAI(
        azure_endpoint="http://x.invalid", api_version="1", api_key="k", http_client=http, max_retries=5
    )
    return client.chat.completions.create(**CHAT, extra_headers={"user-agent": "somebody's own"})


def ask_groq(http: Any) -> Awaitable[object]:
    groq = pytest.importorskip("groq")
    answer: Awaitable[object] = groq.AsyncGroq(
        api_key="k", http_client=http, max_retries=5
    ).chat.completions.create(**CHAT)
    return answer


def ask_together(http: Any) -> Awaitable[object]:
    together = pytest.importorskip("together")
    answer: Awaitable[object] = together.AsyncTogether(
        api_key="k", http_client=http, max_retries=5
    ).chat.completions.create(**CHAT)
    return answer


def ask_anthropic(http: Any) -> Awaitable[object]:
    client = anthropic.AsyncAnthropic(api_key="k", http_client=http, max_retries=5)
    return client.messages.create(**CHAT, max_tokens=8)


def ask_by_middleware(http: Any) -> Awaitable[object]:
    ours = make_middleware(lambda: http, lambda: http)
    client = anthropic.AsyncAnthropic(api_key="k", middleware=[ours], max_retries=5)
    return client.messages.create(**CHAT, max_tokens=8)


def ask_mistral(http: Any) -> Awaitable[object]:
    module = pytest.importorskip("mistralai.client")
    answer: Awaitable[object] = module.Mistral(api_key="k", async_client=http).chat.complete_async(**CHAT)
    return answer


def ask_gemini(http: Any) -> Awaitable[object]:
    genai = pytest.importorskip("google.genai")
    options = genai.types.HttpOptions(httpx_async_client=http)
    client = genai.Client(api_key="k", http_options=options)
    answer: Awaitable[object] = client.aio.models.generate_content(model="fast", contents="hi")
    return answer


@pytest.mark.parametrize(
    ("family", "ask", "error"),
    [
        ("httpx2", ask_openai, "openai.APITimeoutError"),
        ("httpx", ask_openai, "openai.APITimeoutError"),
        ("httpx2", ask_azure, "openai.APITimeoutError"),
        ("httpx", ask_groq, "groq.APITimeoutError"),
        ("httpx", ask_together, "together.APITimeoutError"),
        ("httpx2", ask_anthropic, "anthropic.APITimeoutError"),
        ("httpx2", ask_by_middleware, "anthropic.APITimeoutError"),
        ("httpx2", ask_mistral, "httpx2.ReadTimeout"),
        ("httpx2", ask_gemini, "httpx2.ReadTimeout"),
    ],
)
async def test_each_sdk_raises_its_own_timeout_at_once(
    late: Late, family: Any, ask: Callable[[Any], Awaitable[object]], error: str
):
    client: Any = make_client(family, late.core)
    async with client:
        with pytest.raises(Exception, match=TOLD) as caught:
            await ask(client)
    assert f"{type(caught.value).__module__.partition('.')[0]}.{type(caught.value).__name__}" == error
    assert caught.value.__cause__ is late.error
    assert late.calls == 1


@pytest.mark.parametrize("sdk", [openai, anthropic])
def test_so_do_the_synchronous_clients(late: Late, blocking: httpx2.Client, sdk: Any):
    if sdk is openai:
        create = openai.OpenAI(api_key="k", http_client=blocking, max_retries=5).chat.completions.create
    else:
        create = anthropic.Anthropic(api_key="k", http_client=blocking, max_retries=5).messages.create
    with pytest.raises(sdk.APITimeoutError, match=TOLD):
        create(**CHAT, max_tokens=8)
    assert late.calls == 1


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (CallTimeout("late"), "ReadTimeout"),
        (AdmissionTimeout("late"), "PoolTimeout"),
        (ConnectionFailed("late", sent=True, timed_out=True), "ReadTimeout"),
        (ConnectionFailed("late", sent=False, timed_out=True), "ConnectTimeout"),
        (ConnectionFailed("reset", sent=True), "ReadError"),
    ],
)
@pytest.mark.parametrize("family", ["httpx", "httpx2"])
async def test_a_client_of_ones_own_raises_what_its_library_does(family: Any, error: OrchestraError, raised: str):
    client: Any = make_client(family, Late(error).core)
    async with client:
        with pytest.raises((httpx.TransportError, httpx2.TransportError)) as caught:
            await client.post(URL, json=CHAT)
    assert type(caught.value).__name__ == raised


async def test_an_sdk_that_nobody_knows_is_answered(late: Late):
    headers = {"x-stainless-lang": "python", "x-stainless-package-version": "0.0.0"}
    async with make_client("httpx2", late.core) as client:
        response = await client.post(URL, json=CHAT, headers=headers)
    assert (response.status_code, response.headers["x-should-retry"]) == (504, "false")
    assert (response.json()["error"]["message"], response.text != "") == (TOLD, True)
    with pytest.raises(httpx2.HTTPStatusError):
        response.raise_for_status()


@pytest.mark.parametrize(("timed_out", "raised"), [(True, "ReadTimeout"), (False, "RemoteProtocolError")])
@pytest.mark.parametrize("family", ["httpx", "httpx2"])
async def test_a_stream_says_whether_time_broke_it_off(family: Any, timed_out: bool, raised: str):
    async def pieces() -> AsyncIterator[bytes]:
        yield b"data: {}\n\n"
        raise StreamInterrupted("broke off", timed_out=timed_out)

    async def send(call: Call) -> Outcome:
        return Outcome(200, (("content-type", "text/event-stream"),), pieces(), "")

    client: Any = make_client(family, TransportCore(send))
    async with client:
        with pytest.raises((httpx.TransportError, httpx2.TransportError), match="broke off") as caught:
            await client.post(URL, json=CHAT)
    assert type(caught.value).__name__ == raised
