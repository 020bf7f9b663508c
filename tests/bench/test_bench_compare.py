"""Four ways to serve one load: what tells them apart, and when nothing does."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from statistics import fmean, stdev

import pytest
from bench_lab import QueueTarget
from compare_lab import compared
from virtual_time import virtual

from orchestra.bench.contest import Calls, Contest
from orchestra.bench.load.arrivals import Arrivals
from orchestra.bench.load.burst import Burst
from orchestra.bench.load.engine_target import EngineWays, Sizes, engine_for
from orchestra.bench.load.target import Answer
from orchestra.bench.load.workload import Request, Shape
from orchestra.bench.results.comparison import Measure
from orchestra.bench.results.intervals import Interval, draws, of_draws, of_rounds, of_share
from orchestra.bench.results.lessons import lessons, times
from orchestra.bench.results.way import Way, turns
from orchestra.errors import CallError, ConnectionFailed, InputError
from orchestra.lengths import Lengths
from orchestra.localengine import EngineConfig
from orchestra.policies.traffic import TrafficClass

BULK = TrafficClass.BULK
SHORT = Shape(Lengths.parse("8"), Lengths.parse("4"))
LONG = Shape(Lengths.parse("8"), Lengths.parse("uniform:4:12"))


# between which bounds


def test_bounds_by_rounds_are_students():
    interval = of_rounds([10.0, 12.0, 11.0])
    logs = [math.log(value) for value in (10, 12, 11)]
    reach = 4.303 * stdev(logs) / math.sqrt(3)
    assert interval.value == pytest.approx(math.exp(fmean(logs)))
    assert math.log(interval.high / interval.value) == pytest.approx(reach)
    assert math.log(interval.value / interval.low) == pytest.approx(reach)
    assert of_rounds([10.0]).low is None
    assert not of_rounds([10.0]).above_one


def test_bounds_by_draws_are_those_of_a_mean_and_grow_where_rounds_differ():
    lot = random.Random(3)
    alike = [[lot.gauss(10, 2) for _ in range(50)] for _ in range(8)]
    apart = [[value + 3 * (number % 2) for value in one] for number, one in enumerate(alike)]

    def width(rounds: list[list[float]]) -> float:
        means = [fmean(rounds[r][p] for r, p in each) for each in draws([50] * 8, "seed", 200)]
        interval = of_draws(fmean(value for one in rounds for value in one), means, 8)
        return interval.high - interval.low

    assert width(alike) == pytest.approx(2 * 2.365 * 2 / math.sqrt(400), rel=0.6)
    student = of_rounds([math.exp(fmean(one)) for one in apart])
    assert width(apart) == pytest.approx(math.log(student.high / student.low), rel=0.15)
    assert of_draws(1.0, [0.9, 1.1], 1).low is None
    assert draws([5, 3], "a", 2) == draws([5, 3], "a", 2) != draws([5, 3], "b", 2)


def test_a_share_that_never_differed_is_bounded_all_the_same():
    """Wilson's bounds of 90 in 90 are 95.9 and 100 %."""
    all_kept, none_kept = of_share(1.0, [1.0] * 9, 3, 90), of_share(0.0, [0.0] * 9, 3, 90)
    assert (all_kept.low, all_kept.high) == (pytest.approx(0.959, abs=5e-4), 1.0)
    assert (none_kept.low, none_kept.high) == (0.0, pytest.approx(0.041, abs=5e-4))
    assert of_share(1.0, [1.0], 1, 90).low is None
    assert of_share(0.95, [0.8, 1.0, 0.95], 3, 90).high == 1.0


# what tells ways apart


def test_the_same_in_all_ways_shows_no_difference():
    same = compared(noise=0.05)
    for measure in Measure:
        assert not any(better for _, better in same.order(measure)), measure
    said = " ".join(lesson.text for lesson in lessons(same))
    assert said.count("no difference is shown") == 5  # all but that to calls alone
    assert same.figures[Way.STATIC][Measure.GOODPUT].value == pytest.approx(
        same.figures[Way.STATIC][Measure.KEPT].value
    )


def test_pairing_leaves_no_doubt_where_each_call_takes_twice_as_long():
    twice = compared({Way.STATIC: 2.0})
    ratio = twice.ratio(Measure.TTFT_P50, Way.STATIC, Way.CLASSES)
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((2.0, 2.0, 2.0))
    spread = twice.figures[Way.CLASSES][Measure.TTFT_P50]
    assert spread.high > 1.3 * spread.low  # of which the calls' own difference is no part
    assert twice.ratio(Measure.DRAIN, Way.STATIC, Way.CLASSES).value == pytest.approx(2.0)
    assert twice.order(Measure.BULK_SPEED)[-2:] == [(Way.CLASSES, True), (Way.STATIC, False)]


@pytest.mark.parametrize(
    ("slower", "said"),
    [
        (
            {Way.STATIC: 1.5, Way.ONE_QUEUE: 1.0, Way.CLASSES: 0.5, Way.POOLS: 0.8},
            [
                "1.50 times (1.50 to 1.50) as many; a slot that is filled again at once pays",
                "there it waits behind work that has time",
                "classes cost it nothing",
                "a half lends the other nothing",
                "classes are the better place",
            ],
        ),
        (
            {Way.STATIC: 1.0, Way.ONE_QUEUE: 2.0, Way.CLASSES: 3.0, Way.POOLS: 1.5},
            [
                "0.50 times (0.50 to 0.50) as many; here static batches were the faster ones",
                "a step computes for all who share it",
                "here the queue was the better place",
                "that is what it pays",
                "here the halves lose it nothing",
                "the pool is the better place",
            ],
        ),
        ({Way.ONE_QUEUE: 0.01}, ["here company did not make it slower"]),
    ],
)
def test_sentences_hold_whichever_way_figures_turn_out(slower, said):
    text = " ".join(lesson.text for lesson in lessons(compared(slower)))
    for part in said:
        assert part in text


def test_one_round_shows_no_order_of_throughput():
    once = compared({Way.STATIC: 2.0}, rounds=1)
    assert not any(better for _, better in once.order(Measure.OUTPUT_SPEED))
    assert "bounds need a second round" in lessons(once)[0].text
    assert times(Interval(2.0), 3) == "2.00 times (bounds are not known: too few calls tell it)"


def test_ways_take_turns():
    rounds = [turns(number) for number in range(4)]
    assert all(Counter(one) == Counter(Way) for one in rounds)
    assert {one[0] for one in rounds} == set(Way)
    assert turns(4) == turns(0)


# the load, and who serves it


def test_a_burst_is_the_same_every_time_and_as_large_as_asked():
    load = Burst.sized(SHORT, LONG, tokens_per_s=50, seconds=40, slots=16, arrivals=Arrivals.parse("gamma:3"))
    calls = load.requests(2, "salt")
    assert calls == load.requests(2, "salt")
    assert [call.output_tokens for call in calls] != [call.output_tokens for call in load.requests(3, "salt")]
    people = [call for call in calls if call.traffic is TrafficClass.INTERACTIVE]
    assert [call.at for call in calls if call.traffic is BULK] == [0.0] * load.bulk_calls
    assert 0 < people[0].at <= people[-1].at <= load.span == 30.0
    assert sum(call.output_tokens for call in people) == pytest.approx(500, rel=0.05)
    assert sum(call.output_tokens for call in calls) == pytest.approx(2000, rel=0.05)
    given = Burst.sized(SHORT, LONG, tokens_per_s=50, seconds=4, slots=16, rate=0.5)
    assert (given.interactive_calls, given.span, given.bulk_calls) == (4, 8.0, 23)


@pytest.mark.parametrize(("slots", "threads"), [(16, 2), (5, 1), (1, 1)])
def test_two_pools_have_no_more_than_one_engine(slots, threads):
    config, whole = EngineConfig(kv_bytes=1001, interactive_slots=1), Sizes(slots, 256, threads)
    half = engine_for(Way.POOLS, config, whole)
    assert (half.max_num_seqs, half.threads) == (max(1, slots // 2), 1)
    assert (half.step_tokens, half.kv_bytes, half.scheduler) == (128, 500, "fcfs")
    assert {way: engine_for(way, config, whole).scheduler for way in Way} == {
        Way.ONE_QUEUE: "fcfs",
        Way.STATIC: "static",
        Way.POOLS: "fcfs",
        Way.CLASSES: "classes",
    }
    with pytest.raises(ValueError, match="open another way first"):
        engine_for(Way.POOLS, config, None)
    with pytest.raises(ValueError, match="no engine"):
        _ = EngineWays(lambda config: None, config).slots


# round by round, in virtual time


class Served:
    """Interactive calls and bulk calls by two queues, which may be the same one."""

    def __init__(self, name: str, people: QueueTarget, work: QueueTarget) -> None:
        self.name = name
        self._queues = {TrafficClass.INTERACTIVE: people, BULK: work}

    async def ask(self, request: Request, came: Callable[[], None]) -> Answer:
        return await self._queues[request.traffic].ask(request, came)

    def tell(self, error: Exception) -> str:
        return str(error)


class House:
    """Opens ways whose laws are known: one queue of 4 servers; static takes twice as long; pools have 2 servers
    each; classes have 4 for bulk, and serve people at once."""

    def __init__(self, **queue: object) -> None:
        self.opened: list[Way] = []
        self._queue = queue

    @asynccontextmanager
    async def open(self, way: Way) -> AsyncGenerator[Served]:
        self.opened.append(way)
        await asyncio.sleep(1.0)
        gap = 0.8 if way is Way.STATIC else 0.4
        work = QueueTarget(servers=2 if way is Way.POOLS else 4, first=gap, gap=gap, **self._queue)
        apart = {Way.POOLS: QueueTarget(servers=2, gap=gap), Way.CLASSES: QueueTarget(servers=99, gap=gap)}
        yield Served(way.value, apart.get(way, work), work)


def contest(house: House, minutes: float = 9.0, **more: object) -> Contest:
    limit = 60 * minutes
    return Contest("m", house.open, lambda: 4, Calls(SHORT, LONG), limit=limit, targets=(0.2, 0.15), **more)


@virtual
async def test_rounds_fill_the_time_and_their_figures_follow_from_the_laws():
    house, said, loop = House(), [], asyncio.get_running_loop()
    began = loop.time()
    one = contest(house, say=said.append)
    await one.run()
    took, report = loop.time() - began, one.report({"further": "told"})
    assert 0.6 * 540 < took < 540
    assert report.found.rounds >= 3
    measured_ways = [way for number in range(report.found.rounds) for way in turns(number)]
    assert house.opened == [Way.ONE_QUEUE, *measured_ways]
    assert report.found.full_batch == pytest.approx(10, rel=0.1)
    assert report.found.alone[Measure.TTFT_P50].value == pytest.approx(0.4, abs=1e-3)
    assert str(report.slo).startswith("ttft <= 650ms, tpot <= 150ms")
    assert report.found.ratio(Measure.OUTPUT_SPEED, Way.ONE_QUEUE, Way.STATIC).value == pytest.approx(2, rel=0.1)
    assert report.found.ratio(Measure.BULK_SPEED, Way.POOLS, Way.CLASSES).value == pytest.approx(0.5, rel=0.1)
    assert report.found.figures[Way.CLASSES][Measure.KEPT].value == 0.0  # of its TPOT
    assert report.found.ratio(Measure.TTFT_P50, Way.ONE_QUEUE, Way.CLASSES).above_one
    assert 0.3 < report.found.idle[TrafficClass.INTERACTIVE] < 1
    assert report.found.idle[BULK] == pytest.approx(0, abs=0.01)
    assert report.settings["further"] == "told"
    assert not report.interrupted
    assert json.loads(json.dumps(report.as_dict(), allow_nan=False))["found"]["rounds"] == report.found.rounds
    assert "round 2: static" in said


@virtual
async def test_cut_short_it_reports_the_rounds_that_are_whole():
    one = contest(House(), 4)
    assert "No round is whole" in one.report().notes[-1]
    task = asyncio.create_task(one.run())
    await asyncio.sleep(120)
    task.cancel()
    await asyncio.wait([task])
    report = one.report()
    assert report.interrupted
    assert report.found.rounds == 1
    assert "Interrupted" in report.notes[0]
    assert "One round only" in report.notes[1]


@virtual
async def test_a_call_that_is_not_answered_ends_it():
    broken = House(errors={3: ConnectionFailed("the engine died", sent=True)})
    with pytest.raises(CallError, match="m, one queue: a call was not answered: the engine died"):
        await contest(broken).run()


@virtual
async def test_no_time_is_no_round():
    one = contest(House(), minutes=0.2)
    await one.run()
    assert one.report().found is None
    assert replace(one.report(), interrupted=False).lessons == []


@virtual
async def test_a_call_that_is_not_answered_later_leaves_the_rounds_that_are_whole(monkeypatch):
    one, answers = contest(House()), Contest._answers
    rounds = 0

    async def failing(self, target, requests):
        nonlocal rounds
        rounds += len(requests) > 8
        if rounds == 6:
            raise CallError("m, static: a call was not answered: the engine died")
        return await answers(self, target, requests)

    monkeypatch.setattr(Contest, "_answers", failing)
    await one.run()
    report = one.report()
    assert report.found.rounds == 1
    assert "A round failed: m, static: a call was not answered: the engine died." in report.notes[0]


@virtual
async def test_the_limit_holds_for_the_preparation_too():
    loop = asyncio.get_running_loop()
    began = loop.time()
    await contest(House(), minutes=0.1).run()
    assert loop.time() - began == pytest.approx(6.0, abs=0.1)


@virtual
async def test_calls_that_come_so_seldom_that_no_round_fits_are_refused():
    seldom = Calls(SHORT, LONG, rate=0.02)
    one = Contest("m", House().open, lambda: 4, seldom, limit=540, targets=(0.2, 0.15))
    with pytest.raises(InputError, match=r"at 0.02 interactive calls a second no round fits .* 0\.03"):
        await one.run()
