"""The caller's timeouts, where the answer is made in this process."""

import asyncio
from typing import Any

import openai
import pytest

import orchestra
from orchestra import Orchestra, interactive

from .fake_engine import FakeEngine

ASK: Any = [{"role": "user", "content": "Colour of a ripe banana?"}]


def sdk(orc: Orchestra, timeout: float) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="unused", http_client=orc.http_client(), timeout=timeout, max_retries=2)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_callers_timeout_bounds_the_wait_for_an_answer(
    orc: Orchestra, engine: FakeEngine, stream: bool
) -> None:
    engine.pieces = [None]
    with pytest.raises(openai.APITimeoutError, match=r"no answer within the caller's timeout of 1s") as caught:
        await sdk(orc, 1.0).chat.completions.create(model="fast", messages=ASK, stream=stream)
    assert "starting" not in str(caught.value)
    assert (len(engine.asked), engine.open_streams) == (1, 0)


async def test_the_load_of_the_engine_counts(
    orc: Orchestra, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(engine, "start", start)
    monkeypatch.setattr(engine, "stats", lambda: {"state": "loading"})
    with pytest.raises(openai.APITimeoutError, match=r"1s: the engine of local/small was still starting"):
        await sdk(orc, 1.0).chat.completions.create(model="fast", messages=ASK)


async def test_the_callers_timeout_bounds_each_gap_of_a_stream(orc: Orchestra, engine: FakeEngine) -> None:
    engine.pieces = ["Yel", None]
    stream = await sdk(orc, 1.0).chat.completions.create(model="fast", messages=ASK, stream=True)
    with pytest.raises(openai.APITimeoutError) as caught:
        async for _ in stream:
            pass
    assert "no more within the caller's timeout of 1s" in str(caught.value.__cause__)
    assert engine.open_streams == 0


async def test_the_calls_own_timeout_is_told_as_such(orc: Orchestra, engine: FakeEngine) -> None:
    engine.pieces = [None]
    with interactive(timeout=0.1):
        with pytest.raises(openai.APITimeoutError, match="no answer within the call's timeout of 100ms"):
            await sdk(orc, 60).chat.completions.create(model="fast", messages=ASK)
        with pytest.raises(orchestra.DeadlineExceeded, match="the call's timeout of 100ms"):
            await orc.chat("fast", ASK)
    assert engine.open_streams == 0
