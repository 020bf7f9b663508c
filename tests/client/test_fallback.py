"""The provider dies in the middle of everything; the engine in this process takes over what can be taken over."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

import orchestra
from orchestra import Orchestra
from orchestra.testing import Reply, ScriptedProvider, StreamScript

ASK: Any = [{"role": "user", "content": "What is the capital of France?"}]
MANY = 20
ENDLESS = Reply(stream=StreamScript(["word "] * 10_000, gap=0.05))
SLOW = Reply(delay=60)


@pytest.fixture(params=["scripted", pytest.param("real", marks=[pytest.mark.model, pytest.mark.timeout(900)])])
def weights(request: pytest.FixtureRequest) -> str:
    request.getfixturevalue("engine" if request.param == "scripted" else "model_read_once")
    return "smollm2-135m"


@pytest.fixture
async def provider() -> AsyncIterator[ScriptedProvider]:
    """Streams at first, then answers that take their time."""
    async with ScriptedProvider([ENDLESS] * MANY, default=SLOW) as made:
        yield made


@pytest.fixture
async def orc(provider: ScriptedProvider, weights: str) -> AsyncIterator[Orchestra]:
    settings = {
        "providers": {"cloud": {"kind": "openai-compatible", "base_url": provider.base_url}},
        "models": {"fast": {"routes": ["cloud/big", "local/small"]}},
        "local": {"small": {"weights": weights}},
    }
    async with Orchestra.from_config(settings) as made:
        await made.engine("small")
        yield made


class Shown:
    """Streams that have shown content, and what became of them."""

    def __init__(self) -> None:
        self.count = 0
        self.all = asyncio.Event()

    def note(self) -> None:
        self.count += 1
        if self.count == MANY:
            self.all.set()


async def in_flight(provider: ScriptedProvider, count: int) -> None:
    while provider.in_flight < count:  # noqa: ASYNC110 - the server tells nobody
        await asyncio.sleep(0.01)


async def test_our_own_client(orc: Orchestra, provider: ScriptedProvider) -> None:
    shown = Shown()

    async def stream() -> str:
        async with orc.stream("fast", ASK, max_tokens=4) as deltas:
            async for _ in deltas:
                if deltas.text == "word ":
                    shown.note()
        return deltas.route

    async def plain() -> str:
        return (await orc.chat("fast", ASK, max_tokens=4)).model

    await die_in_the_middle(provider, shown, stream, plain, orchestra.StreamInterrupted)


async def test_the_openai_sdk(orc: Orchestra, provider: ScriptedProvider) -> None:
    client = openai.AsyncOpenAI(api_key="unused", base_url=provider.base_url, http_client=orc.http_client())
    shown = Shown()

    async def stream() -> str:
        first = True
        chunk = None
        async for chunk in await client.chat.completions.create(
            model="fast", messages=ASK, max_tokens=4, stream=True
        ):
            if first and chunk.choices[0].delta.content:
                first = False
                shown.note()
        assert chunk is not None
        return chunk.model

    async def plain() -> str:
        return (await client.chat.completions.create(model="fast", messages=ASK, max_tokens=4)).model

    await die_in_the_middle(provider, shown, stream, plain, openai.APIConnectionError)


async def die_in_the_middle(
    provider: ScriptedProvider, shown: Shown, stream: Any, plain: Any, typed: type[Exception]
) -> None:
    async with asyncio.timeout(800):
        streams = [asyncio.create_task(stream()) for _ in range(MANY)]
        await shown.all.wait()
        plains = [asyncio.create_task(plain()) for _ in range(MANY)]
        silent = [asyncio.create_task(stream()) for _ in range(3)]  # these have shown nothing yet
        await in_flight(provider, 2 * MANY + 3)
        await provider.kill()
        ends = await asyncio.gather(*streams, return_exceptions=True)
        answers = await asyncio.gather(*plains)
        late = await asyncio.gather(*silent)
    assert [type(end) for end in ends] == [typed] * MANY
    assert answers == ["local/small"] * MANY
    assert late == ["local/small"] * 3
