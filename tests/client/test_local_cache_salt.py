"""``cache_salt``, by vLLM's name, on every wire of the local route: only requests of one salt share a prefix."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest
from token_lab import TinyBench

from orchestra import Orchestra

from .fake_engine import FakeEngine

ASK: Any = [{"role": "user", "content": "Colour of a ripe banana?"}]
WIRES = ("chat", "completions", "responses", "messages")


async def send(orc: Orchestra, wire: str, salt: Any, *, stream: bool = False) -> Any:
    """Ask with an official SDK; a stream is read to its end."""
    options: Any = {"model": "fast", "stream": stream}
    if salt is not None:
        options["extra_body"] = {"cache_salt": salt}
    if wire == "messages":
        claude = anthropic.AsyncAnthropic(api_key="unused", http_client=orc.http_client())
        reply: Any = await claude.messages.create(messages=ASK, max_tokens=4, **options)
    else:
        gpt = openai.AsyncOpenAI(api_key="unused", http_client=orc.http_client())
        match wire:
            case "chat":
                reply = await gpt.chat.completions.create(messages=ASK, max_tokens=4, **options)
            case "completions":
                reply = await gpt.completions.create(prompt=ASK[0]["content"], max_tokens=4, **options)
            case _:
                reply = await gpt.responses.create(input=ASK, max_output_tokens=4, **options)
    return [event async for event in reply] if stream else reply


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_salt_comes_to_the_engine(orc: Orchestra, engine: FakeEngine, wire: str, stream: bool) -> None:
    for salt in ("tenant 7", None):
        await send(orc, wire, salt, stream=stream)
    assert engine.salts == ["tenant 7", None]


@pytest.mark.parametrize(
    ("salt", "told"), [(7, "must be a string, not 7"), ("", "must not be empty"), (["a"], "must be a string")]
)
@pytest.mark.parametrize("wire", WIRES)
async def test_what_is_no_salt_is_refused_by_name(
    orc: Orchestra, engine: FakeEngine, wire: str, salt: Any, told: str
) -> None:
    with pytest.raises((openai.BadRequestError, anthropic.BadRequestError), match=f"cache_salt {told}"):
        await send(orc, wire, salt)
    assert engine.asked == []


@pytest.fixture
async def tiny(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Orchestra]:
    """Over a real engine."""
    bench = TinyBench()
    monkeypatch.setattr("orchestra.localengine.LocalEngine.load", lambda weights, config: bench.engine)
    async with Orchestra.from_config(settings) as made:
        yield made


async def test_only_requests_of_one_salt_share_what_was_computed(tiny: Orchestra) -> None:
    cached = []
    for salt in (None, None, "a", "b", "a", None):
        reply = await send(tiny, "chat", salt)
        cached.append(reply.usage.prompt_tokens_details.cached_tokens)
    shared = 4 * ((len(ASK[0]["content"]) - 1) // 4)  # whole blocks, and never the last token
    assert cached == [0, shared, 0, 0, shared, shared]
