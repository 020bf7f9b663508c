"""Synchronous clients: the unmodified openai SDK from plain threads, on the budget that tasks use."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import httpx2
import openai
import pytest
from faults_lab import NOBODY, opened, settings
from holding_provider import HoldingProvider

import orchestra
from orchestra.call import Call, Outcome
from orchestra.testing import Reply, ScriptedProvider, StreamScript
from orchestra.transports import Family, make_sync_client, make_sync_transport
from orchestra.transports.blocking import BlockingCore
from orchestra.transports.core import TransportCore
from orchestra.transports.loop_thread import LoopThread

MESSAGES: Any = [{"role": "user", "content": "hi"}]
ENDLESS = Reply(stream=StreamScript(chunks=["word "] * 2000, gap=0.02))
FAMILIES: dict[Family, Any] = {"httpx2": httpx2, "httpx": httpx}


@pytest.fixture(params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> Family:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def provider() -> Iterator[HoldingProvider]:
    with HoldingProvider() as serving:
        yield serving


@contextmanager
def sdk(
    provider: ScriptedProvider | str,
    family: Family = "httpx2",
    *,
    sdk: dict[str, Any] | None = None,
    **limits: Any,
) -> Iterator[tuple[openai.OpenAI, orchestra.Orchestra]]:
    """Yield the SDK's synchronous client, which points at nobody."""
    options = {"base_url": NOBODY, "api_key": "callers-own", **(sdk or {})}
    with ExitStack() as stack:
        orc = stack.enter_context(opened(settings(provider, **limits)))
        http: Any = orc.sync_http_client(family)
        yield stack.enter_context(openai.OpenAI(http_client=http, **options)), orc


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": "fast", "messages": MESSAGES, **fields})


def in_flight(orc: orchestra.Orchestra) -> int:
    return sum(sum(pool["in_use"].values()) for pool in orc.snapshot()["pools"])


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until, "it never came to hold"
        time.sleep(0.005)


def test_plain_and_stream(family: Family, provider: ScriptedProvider):
    with sdk(provider, family) as (client, orc):
        assert ask(client).choices[0].message.content == "Hello, world."
        with ask(client, stream=True) as stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == "Hello, world."
        assert in_flight(orc) == 0
        assert {hit.headers["authorization"] for hit in provider.log} == {"Bearer our-key"}


def test_errors_are_typed_and_tried_by_our_count_alone(family: Family, provider: ScriptedProvider):
    provider.default = Reply.error(
        429, "rate_limit_exceeded", headers={"retry-after": "0.01"}, message="look here"
    )
    with sdk(provider, family, sdk={"max_retries": 5}) as (client, _):
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError, match="look here"):
                ask(client, stream=stream)
        assert len(provider.log) == 6


def test_a_break_after_content_is_a_typed_error(family: Family, provider: ScriptedProvider):
    provider.default = Reply(stream=StreamScript(drop_after=3, gap=0.01))
    with sdk(provider, family, sdk={"max_retries": 5}) as (client, orc):
        seen = []
        with pytest.raises(openai.APIConnectionError):  # noqa: PT012
            for chunk in ask(client, stream=True):
                seen.append(chunk.choices[0].delta.content)
        assert [text for text in seen if text] == ["Hello", ", ", "world"]
        assert (len(provider.log), in_flight(orc)) == (1, 0)


def test_an_unmetered_host_that_cannot_be_reached_is_the_sdks_to_retry(family: Family):
    options = {"base_url": "http://127.0.0.1:9/v1", "max_retries": 0}
    with sdk(NOBODY, family, sdk=options) as (client, _), pytest.raises(openai.APIConnectionError):
        ask(client, model="any")


def test_the_threads_tag_holds(provider: ScriptedProvider):
    with sdk(provider) as (client, orc):
        heard: list[str] = []
        orc._dispatcher.events.subscribe(lambda event: heard.append(f"{event.kind} {event.traffic}"))
        with orchestra.bulk():
            ask(client)
        ask(client, extra_body={"x-orchestra-traffic": "bulk"})
        assert {word for word in heard if word.startswith("sent")} == {"sent bulk"}
        ask(client)
        assert "sent interactive" in heard
        assert all("x-orchestra-traffic" not in hit.json for hit in provider.log)


def test_a_bound_of_the_block_ends_the_wait(provider: ScriptedProvider):
    with sdk(provider, requests_per_minute=1, burst_seconds=60) as (client, _):
        ask(client)
        with orchestra.interactive(timeout=0.1), pytest.raises(openai.RateLimitError) as caught:
            ask(client)
        assert caught.value.code == "orchestra_deadline"
        assert len(provider.log) == 1


def test_threads_and_loops_share_one_budget(provider: HoldingProvider):
    gate = provider.hold(3)
    with sdk(provider, max_concurrency=3) as (client, orc):
        answers: list[str] = []

        def blocking() -> None:
            answers.extend(ask(client).choices[0].message.content for _ in range(8))

        async def several() -> None:
            options: Any = {"base_url": NOBODY, "api_key": "k", "http_client": orc.http_client()}
            async with openai.AsyncOpenAI(**options) as one:
                asked = (one.chat.completions.create(model="fast", messages=MESSAGES) for _ in range(8))
                answers.extend([str(answer.choices[0].message.content) for answer in await asyncio.gather(*asked)])

        threads = [threading.Thread(target=blocking) for _ in range(3)]
        threads += [threading.Thread(target=lambda: asyncio.run(several())) for _ in range(2)]
        for thread in threads:
            thread.start()
        eventually(lambda: provider.in_flight == 3)
        gate.set()
        for thread in threads:
            thread.join(50)
        assert answers == ["Hello, world."] * 40
        assert provider.peak == 3
        assert in_flight(orc) == 0


async def test_within_a_running_loop_it_blocks_but_finishes(provider: ScriptedProvider):
    async with opened(settings(provider, max_concurrency=1)) as orc:
        with openai.OpenAI(base_url=NOBODY, api_key="k", http_client=orc.sync_http_client()) as client:
            assert ask(client).choices[0].message.content == "Hello, world."
            assert "".join(c.choices[0].delta.content or "" for c in ask(client, stream=True)) == "Hello, world."
        with pytest.raises(RuntimeError, match=r"await orc\.aclose"):
            orc.close()
        with pytest.raises(RuntimeError, match="async with"), orc:
            pass


@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_stream_given_up_returns_its_lease(family: Family, provider: ScriptedProvider, how: str):
    provider.default = ENDLESS
    with sdk(provider, family) as (client, orc):
        stream = ask(client, stream=True)
        next(stream)
        assert in_flight(orc) == 1
        if how == "close":
            stream.close()
            assert in_flight(orc) == 0
        del stream

        def ended() -> bool:
            gc.collect()
            return in_flight(orc) == 0 and provider.in_flight == 0

        eventually(ended)


@pytest.mark.parametrize("stream", [False, True])
def test_an_interrupt_cancels_the_work(provider: ScriptedProvider, stream: bool):
    provider.default = Reply(delay=0.0 if stream else 600.0, stream=StreamScript(gap=600.0))
    with sdk(provider) as (client, orc):

        def interrupt() -> None:
            eventually(lambda: provider.in_flight == 1)
            time.sleep(0.3)  # so that the caller waits, most likely
            os.kill(os.getpid(), signal.SIGINT)

        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            for _ in ask(client, stream=stream):
                pass
        interrupting.join()
        eventually(lambda: in_flight(orc) == 0 and provider.in_flight == 0)
        provider.default = Reply()
        assert ask(client).choices[0].message.content == "Hello, world."


def test_what_is_closed_can_be_used_anew(provider: ScriptedProvider):
    with sdk(provider) as (client, orc):
        for _ in range(3):
            assert ask(client).choices[0].message.content == "Hello, world."
            assert "orchestra" in {thread.name for thread in threading.enumerate()}
            orc.close()
            orc.close()
            assert "orchestra" not in {thread.name for thread in threading.enumerate()}


def test_closing_ends_the_calls_that_are_under_way(provider: ScriptedProvider):
    provider.default = Reply(delay=600.0)
    with sdk(provider, sdk={"max_retries": 0}) as (client, orc):
        raised: list[BaseException] = []

        def call() -> None:
            try:
                ask(client)
            except openai.APIConnectionError as error:
                raised.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        eventually(lambda: provider.in_flight == 1)
        orc.close()
        thread.join(30)
        assert len(raised) == 1
        assert in_flight(orc) == 0


def test_a_stream_outlives_no_close(provider: ScriptedProvider):
    provider.default = ENDLESS
    with sdk(provider) as (client, orc):
        stream = ask(client, stream=True)
        next(stream)
        orc.close()
        with pytest.raises(openai.APIConnectionError):
            list(stream)
        stream.close()
        assert in_flight(orc) == 0


def test_an_upload_is_read_in_the_callers_thread(family: Family):
    async def send(call: Call) -> Outcome:
        assert not isinstance(call.body, bytes)
        body = b"".join([chunk async for chunk in call.body])
        return Outcome(200, (), _pieces(body), "")

    readers: set[int] = set()

    def upload() -> Iterator[bytes]:
        for number in range(3):
            readers.add(threading.get_ident())
            yield str(number).encode()

    def broken() -> Iterator[bytes]:
        yield b"x"
        raise LookupError("the disk is gone")

    loop = LoopThread("test")
    with make_sync_client(family, BlockingCore(TransportCore(send), loop)) as client:
        assert client.post("http://x.invalid/files", content=upload()).content == b"012"
        assert readers == {threading.get_ident()}
        with pytest.raises(LookupError, match="the disk is gone"):
            client.post("http://x.invalid/files", content=broken())
        form = client.post("http://x.invalid/files", files={"file": b"data"}).content
        assert b"data" in form
    loop.close()


async def _pieces(body: bytes) -> Any:
    yield body


def test_the_sdks_uploads_arrive(family: Family, provider: ScriptedProvider):
    with sdk(provider, family, sdk={"base_url": provider.base_url}) as (client, _):
        line = b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m"}}\n'
        file = client.files.create(file=("lines.jsonl", line), purpose="batch")
        assert client.files.content(file.id).content == line


def test_the_default_client_and_a_transport_of_ones_own(family: Family, provider: ScriptedProvider):
    with opened(settings(provider)) as orc:
        default: Any = orc.sync_http_client(family)
        assert default.timeout == FAMILIES[family].Timeout(600, connect=5)
        assert default.follow_redirects
        transport: Any = orc.sync_transport(family)
        assert isinstance(transport, FAMILIES[family].BaseTransport)
        with FAMILIES[family].Client(transport=transport, base_url=f"{NOBODY}/", headers={"x-mine": "1"}) as own:
            answer = own.post("chat/completions", json={"model": "fast", "messages": MESSAGES})
        assert answer.json()["choices"][0]["message"]["content"] == "Hello, world."
        if family == "httpx2":
            http = openai.DefaultHttpxClient(transport=transport)
            with openai.OpenAI(base_url=NOBODY, api_key="k", http_client=http) as client:
                assert ask(client).choices[0].message.content == "Hello, world."
        for make in (make_sync_client, make_sync_transport):
            with pytest.raises(ValueError, match="requests"):
                make("requests", orc._blocking)  # type: ignore[call-overload]


def test_groq(provider: ScriptedProvider):
    groq = pytest.importorskip("groq")
    with (
        opened(settings(provider, kind="groq")) as orc,
        groq.Groq(base_url="http://nobody.invalid", api_key="k", http_client=orc.sync_http_client("httpx")) as one,
    ):
        answer = one.chat.completions.create(model="fast", messages=MESSAGES)
        assert answer.choices[0].message.content == "Hello, world."
        stream = one.chat.completions.create(model="fast", messages=MESSAGES, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Hello, world."


def test_mistral(provider: ScriptedProvider):
    mistral = pytest.importorskip("mistralai.client")
    with (
        opened(settings(provider, kind="mistral")) as orc,
        mistral.Mistral(api_key="k", server_url="http://nobody.invalid", client=orc.sync_http_client()) as one,
    ):
        answer = one.chat.complete(model="fast", messages=MESSAGES)
        assert answer.choices[0].message.content == "Hello, world."
        events = one.chat.stream(model="fast", messages=MESSAGES)
        assert "".join(event.data.choices[0].delta.content or "" for event in events) == "Hello, world."


def test_the_process_has_one_of_its_own(provider: ScriptedProvider):
    with orchestra.sync_http_client() as http:
        client = openai.OpenAI(base_url=provider.base_url, api_key="k", http_client=http)
        assert ask(client, model="any").choices[0].message.content == "Hello, world."


def test_a_call_from_the_loops_own_thread_is_refused_rather_than_waiting_for_itself():
    loop = LoopThread("test")

    async def nested(_: object) -> None:
        loop.session().run(nested)

    with pytest.raises(RuntimeError, match="wait for ever"):
        loop.session().run(nested)
    loop.close()


def test_a_loop_that_cannot_start_says_so(monkeypatch: pytest.MonkeyPatch):
    def refuse() -> None:
        raise OSError("too many open files")

    loop = LoopThread("test")
    gc.collect()  # an SDK's client that was dropped closes itself on a loop of its own, which it would not get
    with monkeypatch.context() as patched:
        patched.setattr("asyncio.new_event_loop", refuse)
        patched.setattr("asyncio.runners.events.new_event_loop", refuse)
        with pytest.raises(OSError, match="too many open files"):
            loop.session()
    assert loop.session().run(nothing) is None
    loop.close()


async def nothing(_: object) -> None:
    return None


def test_a_loop_ends_with_whoever_held_it():
    loop = LoopThread("forgotten")
    loop.session()
    del loop
    gc.collect()
    eventually(lambda: "forgotten" not in {thread.name for thread in threading.enumerate()})


PROGRAM = """
    import os, sys
    import openai, orchestra
    url = sys.argv[1]
    orc = orchestra.Orchestra.from_config({
        "providers": {"one": {"kind": "openai-compatible", "base_url": url, "api_key": "k"}},
        "models": {"fast": {"routes": ["one/m"]}},
    })
    client = openai.OpenAI(base_url=url, api_key="k", http_client=orc.sync_http_client())
    def ask(**fields):
        return client.chat.completions.create(model="fast", messages=[{"role": "user", "content": "x"}], **fields)
"""


def program(provider: ScriptedProvider, code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` behind `PROGRAM`, with every warning shown."""
    whole = textwrap.dedent(PROGRAM) + textwrap.dedent(code)
    arguments = [sys.executable, "-W", "default", "-c", whole, provider.base_url]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=50, check=False)


def test_a_program_ends_at_once_and_says_nothing(provider: ScriptedProvider):
    provider.default = ENDLESS
    code = """
        import time
        streams = [ask(stream=True) for _ in range(3)]
        for stream in streams:
            next(stream)
        import threading
        threading.Thread(target=lambda: [None for _ in ask(stream=True)], daemon=True).start()
        time.sleep(0.2)
        import atexit
        began = time.monotonic()
        atexit.register(lambda: print("waited", time.monotonic() - began > 0.9))
        """
    for _ in range(3):  # how long it takes, a busy machine has a say in as well: one of three is enough
        ran = program(provider, code)
        assert (ran.returncode, ran.stderr) == (0, "")
        if ran.stdout == "waited False\n":
            return
    raise AssertionError(ran.stdout)


def test_a_forked_child_has_a_loop_of_its_own(provider: ScriptedProvider):
    ran = program(
        provider,
        """
        import threading, warnings
        stop = threading.Event()
        def work():
            while not stop.is_set():
                ask()
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        ask()
        for _ in range(10):
            child = os.fork()
            if not child:
                text = "".join(chunk.choices[0].delta.content or "" for chunk in ask(stream=True))
                orc.close()
                os._exit(0 if text == ask().choices[0].message.content == "Hello, world." else 1)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), end="")
        stop.set()
        for thread in threads:
            thread.join()
        ask()
        orc.close()
        """,
    )
    assert (ran.stdout, ran.stderr) == ("0" * 10, "")


def test_the_families_are_twins():
    """What is mended in one is mended in the other."""
    from orchestra.transports import httpx2_, httpx_

    sources = [inspect.getsource(module) for module in (httpx2_, httpx_)]
    assert sources[0].replace("httpx2", "httpx") == sources[1]
