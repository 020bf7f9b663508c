"""The engine behind a route: what its settings come to, and what of its queue is told as events."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from dispatch_lab import eventually
from engine_lab import Bench

from orchestra import Orchestra
from orchestra.call import Call
from orchestra.config import Config, LocalConfig, TrafficConfig, parse_config
from orchestra.errors import LocalEngineError, QueueFull
from orchestra.local_route.route import engine_config
from orchestra.localengine import EngineConfig
from orchestra.localengine.settled_config import SettledConfig

ASK: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def benches(monkeypatch: pytest.MonkeyPatch) -> list[Bench]:
    """The engines that were opened: real ones, over a model without a network."""
    opened: list[Bench] = []

    def load(weights: str, config: EngineConfig) -> Any:
        opened.append(Bench(config, blocks=256))
        return opened[-1].engine

    monkeypatch.setattr("orchestra.localengine.LocalEngine.load", load)
    return opened


@pytest.fixture
async def orc(settings: dict[str, Any], benches: list[Bench]) -> AsyncIterator[Orchestra]:
    async with Orchestra.from_config(settings) as made:
        yield made


# Settings


def test_what_is_not_set_is_the_engines_choice() -> None:
    assert engine_config(LocalConfig(weights="w"), TrafficConfig()) == EngineConfig()


def test_every_setting_reaches_the_engine() -> None:
    values: dict[str, Any] = {
        "max_num_seqs": 32,
        "kv_bytes": 1_000_000,
        "threads": 3,
        "ttft_target_ms": 90,
        "tpot_target_ms": 40.5,
        "interactive_slots": 0,
        "interactive_cache": 0.0,
        "prefix_cache": False,
        "device": "cpu",
        "precision": "int8",
        "kv_dtype": "float8",
        "strict": True,
    }
    config = engine_config(
        LocalConfig(weights="w", dollars_per_hour=1.0, **values), TrafficConfig(bulk_min_share=0.2, max_waiting=7)
    )
    assert {name: getattr(config, name) for name in values} == values
    assert (config.bulk_min_share, config.max_waiting) == (0.2, 7)
    assert values.keys() == LocalConfig.model_fields.keys() - {"weights", "dollars_per_hour"}


def test_a_call_may_always_wait_for_the_next_step() -> None:
    assert engine_config(LocalConfig(weights="w"), TrafficConfig(max_waiting=0)).max_waiting == 1


@pytest.mark.parametrize("seqs", [1, 2, 300])
def test_what_depends_on_the_number_of_sequences_follows_it(seqs: int) -> None:
    config = SettledConfig.on_cpu(engine_config(LocalConfig(weights="w", max_num_seqs=seqs), TrafficConfig()))
    assert (config.max_num_seqs, config.interactive_slots) == (seqs, min(2, seqs - 1))
    assert config.step_tokens == max(256, seqs)


async def test_settings_that_do_not_fit_together_are_told_with_the_first_call(settings: dict[str, Any]) -> None:
    settings["local"]["small"]["interactive_slots"] = 5000
    async with Orchestra.from_config(settings) as orc:
        with pytest.raises(LocalEngineError, match="do not fit together: interactive_slots must be from 0 to"):
            await orc.engine("small")


async def test_both_classes_settings_hold_for_the_engine(settings: dict[str, Any], benches: list[Bench]) -> None:
    settings["traffic"] = {"bulk_min_share": 0.3, "max_waiting": 2}
    async with Orchestra.from_config(settings) as orc:
        engine = await orc.engine("small")
        assert (engine.config.bulk_min_share, engine.config.max_waiting) == (0.3, 2)
        (bench,) = benches
        await orc.chat("fast", ASK, max_tokens=1)
        bench.runner.gate.clear()
        calls = [asyncio.create_task(orc.chat("local/small", ASK, max_tokens=4)) for _ in range(40)]
        done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
        assert isinstance(done.pop().exception(), QueueFull)
        bench.runner.gate.set()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert any(not isinstance(end, Exception) for end in ends)
    assert all(isinstance(end, QueueFull) for end in ends if isinstance(end, Exception))


def test_a_place_is_left_for_bulk() -> None:
    config = parse_config({"local": {"x": {"weights": "w", "interactive_slots": 3, "max_num_seqs": 4}}})
    assert isinstance(config, Config)


async def test_an_engine_does_not_survive_a_fork(
    orc: Orchestra, benches: list[Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    await orc.chat("fast", ASK, max_tokens=1)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        with pytest.raises(LocalEngineError, match="fork first"):
            await orc.chat("local/small", ASK, max_tokens=1)
        assert orc.snapshot()["local"]["small"]["state"] == "forked"
        await orc._local["small"].aclose()
        with pytest.raises(LocalEngineError, match="fork first"):
            await orc.engine("small")  # nor may there be another
    assert not benches[0].runner.closed  # it is its parent's


# Events


async def test_the_engines_queue_is_told_as_that_of_the_budget_is(orc: Orchestra) -> None:
    events: list[Any] = []
    await orc.chat("fast", ASK, max_tokens=1)
    stop = orc.events.subscribe(events.append)
    await orc.chat("fast", ASK, max_tokens=3)
    assert [event.kind for event in events] == ["sent", "queued", "admitted", "settled"]
    assert len({(event.call, event.route, event.attempt, event.model) for event in events}) == 1
    assert events[2].waited >= 0
    assert events[3].cached_tokens is not None
    events.clear()
    async with orc.stream("fast", ASK, max_tokens=3) as deltas:
        async for _ in deltas:
            pass
    assert [event.kind for event in events] == ["sent", "queued", "admitted", "first_byte", "settled"]
    events.clear()
    await orc.chat("fast", ASK, max_tokens=3, n=3)
    assert [event.kind for event in events] == ["sent", "queued", "admitted", "settled"]
    stop()


@pytest.mark.parametrize("read", [False, True])
async def test_a_stream_that_is_dropped_has_its_end_told(orc: Orchestra, read: bool) -> None:
    events: list[Any] = []
    orc.events.subscribe(events.append)
    asked = {"model": "fast", "messages": ASK, "max_tokens": 200, "stream": True}
    outcome = await orc._dispatcher.send(Call.originate("/v1/chat/completions", asked))
    if read:
        await anext(outcome.body)
    del outcome
    await eventually(lambda: events[-1].kind == "interrupted")
    assert (events[-1].reason, events[-1].attempt) == ("dropped", 1)
    assert [event.kind for event in events].count("interrupted") == 1


async def test_where_nobody_listens_the_engine_is_asked_for_no_event(
    orc: Orchestra, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*_: object) -> None:
        raise AssertionError("nobody listens")

    monkeypatch.setattr("orchestra.local_route.route._relay", made)
    await orc.chat("fast", ASK, max_tokens=1)


async def test_the_snapshot_has_the_engines_figures(orc: Orchestra) -> None:
    await orc.chat("fast", ASK, max_tokens=3)
    told = orc.snapshot()["local"]["small"]
    assert told["ttft"]["interactive"]["count"] == 1
    assert told["per_token"]["interactive"]["count"] == 2
    assert told["cache_hit_rate"] == {"interactive": 0.0, "bulk": None}
