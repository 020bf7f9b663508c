"""What is to come, how fast the world is, and the words for both."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulate_lab import SHAPE
from virtual_time import VirtualLoop, virtual

from orchestra.call import Call
from orchestra.errors import InputError
from orchestra.policies.traffic import TrafficClass
from orchestra.providers.estimate import estimate_tokens
from orchestra.simulate.day_shape import DayShape
from orchestra.simulate.engine import SimulatedEngine
from orchestra.simulate.engine_speed import EngineSpeed
from orchestra.simulate.generated import Generated, PlannedJob
from orchestra.simulate.outside import Outage
from orchestra.simulate.times import Times
from orchestra.simulate.traffic import Size
from orchestra.simulate.wording import ask, told_in

INTERACTIVE, BULK = TrafficClass.INTERACTIVE, TrafficClass.BULK


@given(
    st.lists(st.floats(0, 100), min_size=24, max_size=24).filter(lambda weights: sum(weights) > 1),
    st.floats(0, 86_399),
    st.floats(0, 86_399),
)
def test_a_shape_keeps_the_order_and_the_day(weights: list[float], one: float, other: float):
    shape = DayShape(tuple(weights), "")
    first, second = sorted((one, other))
    assert 0 <= shape.instant(first) <= shape.instant(second) <= 86_400
    assert shape.instant(86_400 + one) == pytest.approx(86_400 + shape.instant(one))


def test_calls_come_by_the_shape_of_the_day():
    shape = DayShape.parse(",".join(["0"] * 12 + ["1"] * 6 + ["3"] * 6))
    traffic = Generated("m", 0.05, SHAPE, SHAPE, 0.25, shape=shape).traffic()
    calls = list(traffic.calls)
    assert len(calls) == pytest.approx(0.05 * 86_400, rel=0.05)
    assert [one.at for one in calls] == sorted(one.at for one in calls)
    parts = Counter(int(one.at // (6 * 3600)) for one in calls)
    assert set(parts) == {2, 3}
    assert parts[3] / parts[2] == pytest.approx(3, rel=0.15)
    assert sum(one.traffic is BULK for one in calls) / len(calls) == pytest.approx(0.25, abs=0.03)
    assert {one.time_left for one in calls if one.traffic is BULK} == {None}


@given(st.integers(20, 5000), st.integers(0, 5000), st.sampled_from(["openai", "anthropic"]))
def test_a_request_is_as_long_as_it_says_and_tells_its_answer(prompt: int, output: int, wire):
    _, body = ask(wire, "m", Size(prompt, output, None, prompt + 3, 1.25))
    assert told_in(body) == (prompt + 3, output, 1.25)
    assert estimate_tokens([body["messages"]]) == prompt


def test_times_are_read_and_drawn():
    assert Times.parse("400ms") == Times(0.4, 0.0, "400ms")
    times, draw = Times.parse("400ms:p50,2s:p95"), random.Random(1)
    drawn = sorted(times.draw(draw) for _ in range(4000))
    assert median(drawn) == pytest.approx(0.4, rel=0.1)
    assert drawn[int(0.95 * len(drawn))] == pytest.approx(2.0, rel=0.15)


def test_engines_are_as_fast_as_they_are_said_to_be():
    speed = EngineSpeed.parse("slots:8,step:20ms,row:1ms,prefill:2000")
    assert [speed.step(running) for running in (1, 4, 8)] == pytest.approx([0.021, 0.024, 0.028])
    table = EngineSpeed(8, [(1, 0.01), (2, 0.01), (8, 0.04)], 1000.0)
    assert [table.step(running) for running in (1, 2, 5, 8)] == pytest.approx([0.01, 0.01, 0.025, 0.04])


@virtual
async def test_an_engine_shares_its_steps_and_lets_people_first():
    engine = SimulatedEngine("x", EngineSpeed.parse("slots:2,step:10ms,row:5ms,prefill:1000000"))
    loop = asyncio.get_running_loop()
    began = loop.time()
    ended: dict[str, float] = {}

    async def send(name: str, traffic: TrafficClass, tokens: int) -> None:
        path, payload = ask("openai", "local/x", Size(20, tokens))
        outcome = await engine.send(Call.originate(path, payload, traffic=traffic))
        assert outcome.usage.output_tokens == tokens
        ended[name] = loop.time() - began

    async with asyncio.TaskGroup() as group:
        for name, traffic, tokens in (("a", BULK, 100), ("b", BULK, 50), ("c", BULK, 10), ("p", INTERACTIVE, 20)):
            group.create_task(send(name, traffic, tokens))
        given_up = group.create_task(send("never", INTERACTIVE, 10))
        await asyncio.sleep(0.5)
        given_up.cancel()
    # two at once take 20 ms a step: b has 50 steps, then p has 20 of them, then c 10, and a goes on beside each
    assert ended == pytest.approx({"b": 1.0, "p": 1.4, "c": 1.6, "a": 1.6 + 20 * 0.015}, abs=0.01)
    assert engine.busy_seconds == pytest.approx(ended["a"], abs=0.01)
    assert engine.snapshot()["running"] == 0


@virtual
async def test_a_ring_that_is_set_twice_rings_once_and_as_early_as_it_may():
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    rung: list[float] = []
    began = loop.time()

    def ring() -> None:
        rung.append(loop.time() - began)

    loop.ring_at(began + 5, ring)
    loop.ring_at(began + 9, ring)
    loop.ring_at(began + 2, ring)
    await asyncio.sleep(20)
    assert rung == pytest.approx([2.0], abs=1e-3)


@pytest.mark.parametrize(
    ("parse", "texts"),
    [
        (PlannedJob.parse, ["02:00", "25:00:5", "02:00:0", "02:00:5:soon", "02:00:5:6h:7"]),
        (Outage.parse, ["09:00", "09:20-09:00", "9-10", "x=24:30-25:00"]),
        (Times.parse, ["", "soon", "1s:p50,2s", "2s:p50,1s:p95", "1s:p50,2s:p200"]),
        (
            EngineSpeed.parse,
            ["fast", "slots:0,step:1ms", "slots:8", "slots:8,step:2ms,row:x", "slots:8,step:1ms,a:1"],
        ),
        (DayShape.parse, ["", "1,2", ",".join(["-1"] * 24), ",".join(["0"] * 24), ",".join(["nan"] * 24)]),
    ],
)
def test_what_cannot_be_read_is_refused_with_an_example(parse: Callable[[str], object], texts: list[str]):
    for text in texts:
        with pytest.raises(InputError, match="write"):
            parse(text)
