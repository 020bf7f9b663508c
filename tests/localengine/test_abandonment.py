"""A step of bulk work that is given up for an interactive request: when, and that nothing of it counts."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from devices import begins_by, model_runner
from engine_lab import BULK, INTERACTIVE, Bench, Lab, oracle
from token_lab import SPEC, TinyBench, random_weights
from torch import Tensor

from orchestra.localengine import EngineConfig, SamplingParams
from orchestra.localengine.execution.runner import Runner
from orchestra.localengine.gpu.runner import GpuRunner
from orchestra.localengine.scheduling import abandonment
from orchestra.localengine.scheduling.abandonment import Abandonment
from orchestra.localengine.scheduling.apply import apply_plan
from orchestra.localengine.scheduling.cost import StepCost
from orchestra.localengine.scheduling.plan import plan_step
from orchestra.localengine.step import RowInput, StepAbandoned
from orchestra.localengine.text.structure import Constraint

# round numbers: a step costs 10, a prefill token 1, a decode row 2
COST = StepCost(base=10, per_prefill_token=1, per_decode_row=2, per_kv_token=0)
GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)


def ids(number: int, length: int = 6) -> list[int]:
    return [(31 * number + place) % 900 + 2 for place in range(length)]


# When


class Rule:
    """The rule, with a clock and a door in the test's hand, over a lab whose steps are only planned."""

    def __init__(self, **limits: float) -> None:
        self.lab = Lab(cost=COST, slots=4, **limits)
        self.now = 100.0
        self.arrived = False
        self.rule = Abandonment(lambda: self.arrived, lambda: self.now)

    def watch(self) -> Callable[[], bool] | None:
        plan = plan_step(self.lab.state, self.lab.budget, self.lab.cost)
        apply_plan(self.lab.state, plan)
        return self.rule.watch(self.lab.state, plan)


def test_only_for_somebody_who_has_arrived_and_only_with_a_tenth_of_the_step_to_go():
    rule = Rule()
    rule.lab.add(BULK, 30)  # a step of 40
    ask = rule.watch()
    assert ask is not None
    assert not ask()
    rule.arrived = True
    assert ask()
    rule.now += 35.9
    assert ask()
    rule.now += 0.1
    assert not ask()


def test_never_where_an_interactive_request_has_a_row():
    rule = Rule()
    rule.lab.add(BULK, 30)
    rule.lab.add(INTERACTIVE, 5)
    assert rule.watch() is None


def test_never_what_bulk_is_owed():
    rule = Rule(bulk_min_share=0.2)
    rule.lab.add(BULK, 30)
    rule.lab.state.bulk_owed = 1.0
    assert rule.watch() is None
    rule.lab.state.bulk_owed = 0.9
    assert rule.watch() is not None


def test_every_second_step_of_bulk_counts_though_somebody_arrives_in_each():
    """vllm-project/vllm-ascend#11526: the lower class starves. Here not even by what is to help the higher."""
    rule = Rule()
    rule.lab.add(BULK, 30)
    rule.arrived = True
    counted = []
    for _ in range(10):
        ask = rule.watch()
        counted.append(ask is None or not ask())
        if not counted[-1]:
            rule.rule.abandoned()
    assert counted == [False, True] * 5


# Nothing of it counts


def test_the_same_rows_come_again_and_nothing_was_booked_or_published():
    answers = iter([False, True])
    lab = Lab(abandon=lambda: next(answers, False), bulk_min_share=0.3, slots=4, tokens=24)
    for number in range(3):
        lab.add(BULK, ids(number, 10))
    lab.state.bulk_owed = 0.5
    given_up = lab.step()
    assert (lab.abandoned, given_up.admitted) == (1, (0, 1, 2))
    assert (lab.state.bulk_owed, lab.state.turns) == (0.5, 0)
    assert [seq.num_computed for seq in lab.state.sequences()] == [0, 0, 0]
    assert lab.state.pool.match(ids(0, 10), None, 2) == []
    again = lab.step()
    assert (again.rows, again.admitted) == (given_up.rows, ())
    assert len(lab.state.pool.match(ids(0, 10), None, 2)) == 2
    lab.run()


@pytest.mark.parametrize("seed", range(6))
def test_random_traffic_with_steps_given_up_at_any_layer(seed):
    rng = random.Random(seed)
    blocks = rng.randint(10, 30)
    lab = Lab(
        blocks=blocks,
        block_size=4,
        slots=rng.randint(1, 6),
        tokens=16,
        cost=COST,
        ttft=rng.choice([15, 40, 1e9]),
        tpot=rng.choice([15, 40, 1e9]),
        stall=5000,
        bulk_min_share=rng.choice([0, 0.2]),
        abandon=lambda: rng.random() < 0.15,
    )
    prompts = [ids(number, rng.choice([4, 8, 9, 20])) for number in range(4)]
    for _ in range(400):
        if sum(map(len, lab.state.waiting.values())) < 10 and rng.random() < 0.3:
            lab.add(rng.choice([INTERACTIVE, BULK]), list(rng.choice(prompts)), max_tokens=rng.randint(1, 16))
        if rng.random() < 0.05 and (alive := [seq.request_id for seq in lab.state.sequences()]):
            lab.cancel(rng.choice(alive))
        lab.step()
    lab.run()
    assert lab.abandoned > 50
    assert len(lab.outputs) > 20
    assert lab.state.pool.num_free == blocks


class CountingMatcher:
    def __init__(self) -> None:
        self.asked = 0

    def compute_bitmask(self) -> bytes:
        self.asked += 1
        return bytes([self.asked])

    def consume_token(self, token_id: int) -> bool:
        return True

    def is_stopped(self) -> bool:
        return False


def test_what_may_be_drawn_is_worked_out_once_for_a_step_and_its_repetition():
    with ThreadPoolExecutor(1) as threads:
        constraint = Constraint(CountingMatcher(), threads)
        given_up, again = constraint.allowed(), constraint.allowed()
        assert again() == given_up() == b"\x01"
        constraint.accept(5)
        assert constraint.allowed()() == b"\x02"


# In the engine


async def collide(bench: Bench) -> tuple[list[list[int]], dict[str, Any]]:
    """A bulk request begins, and in the middle of its first step an interactive one comes."""
    async with bench.engine as engine:
        bench.runner.gate.clear()
        bulk = asyncio.create_task(engine.complete(ids(1, 30), GREEDY, traffic="bulk"))
        await asyncio.to_thread(bench.runner.in_step.wait, 50)
        urgent = asyncio.create_task(engine.complete(ids(2), GREEDY))
        await bench.until(lambda: bench.known("interactive") == 1)
        bench.runner.gate.set()
        answers = [list((await task).token_ids) for task in (bulk, urgent)]
        return answers, await bench.idle()


def engine_bench(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Bench:
    monkeypatch.setattr(abandonment, "_LEAST_LEFT", -1e6)  # it is never too late, whatever the machine does
    return Bench(EngineConfig(block_size=4, max_num_seqs=4, step_tokens=32, interactive_slots=1, **options))


async def test_who_comes_during_a_step_of_bulk_is_in_the_very_next_one(monkeypatch):
    bench = engine_bench(monkeypatch)
    answers, stats = await collide(bench)
    assert answers == [oracle(ids(1, 30), 8), oracle(ids(2), 8)]
    assert stats["abandoned"] == 1
    assert bench.runner.steps == stats["steps"] + 1
    assert bench.engine.steps()[0].interactive == 1


@pytest.mark.parametrize("scheduler", ["priority", "fcfs", "static"])
async def test_other_schedulers_give_no_step_up(monkeypatch, scheduler):
    bench = engine_bench(monkeypatch, scheduler=scheduler)
    answers, stats = await collide(bench)
    assert answers == [oracle(ids(1, 30), 8), oracle(ids(2), 8)]
    assert stats["abandoned"] == 0
    assert (bench.engine.steps()[0].interactive, bench.engine.steps()[0].bulk) == (0, 1)


# On a model


def tiny_runner() -> Runner | GpuRunner:
    return model_runner(SPEC, random_weights(), num_blocks=8, block_size=4, threads=1)


def row(token_ids: list[int], start: int, blocks: list[int]) -> RowInput:
    return RowInput(blocks[-1], 0, token_ids, start, blocks, GREEDY, 0)


def at_layer(number: int) -> Callable[[], bool]:
    asked = itertools.count()
    return lambda: next(asked) == number


def test_a_runner_asks_before_each_layer_and_goes_on_where_the_answer_is_no():
    asked = []
    rows = [row(tokens(1, 7), 0, [0, 1])]
    outputs = tiny_runner().run(rows, lambda: bool(asked.append(None)))
    assert len(asked) == SPEC.num_layers
    assert outputs == tiny_runner().run(rows)


@pytest.mark.lab_too
@pytest.mark.parametrize("layer", range(SPEC.num_layers))
def test_nobody_reads_what_an_abandoned_step_wrote(layer):
    def compute(*, abandoned: bool) -> list[Tensor]:
        runner = tiny_runner()
        runner.logits([row(tokens(1, 8), 0, [0, 1])])
        mine, others = row(tokens(2, 3), 8, [0, 1, 2]), row(tokens(3, 6), 0, [3, 4])
        if abandoned:
            with pytest.raises(StepAbandoned):
                runner.run([mine, others], at_layer(layer))
        return [
            *runner.logits([mine]),  # again, and without the other, whose blocks somebody else is given
            *runner.logits([row(tokens(4, 7), 0, [4, 3])]),
            *runner.logits([row(tokens(5, 2), 8, [0, 1, 5])]),  # shares the beginning
        ]

    for one, other in zip(compute(abandoned=True), compute(abandoned=False), strict=True):
        assert torch.equal(one, other)


@pytest.mark.lab_too
async def test_an_engine_whose_steps_are_given_up_at_random_says_the_same():
    async def say(share: float) -> tuple[list[object], int]:
        bench = TinyBench(blocks=24)
        rng = random.Random(7)
        async with bench.engine as engine:
            giving_up(bench.runner, lambda: rng.random() < share)
            answers = await asyncio.gather(
                *(
                    engine.complete(
                        tokens(number, 9 + number), GREEDY, traffic="bulk" if number % 2 else "interactive"
                    )
                    for number in range(8)
                )
            )
            return [answer.token_ids for answer in answers], engine.stats()["abandoned"]

    undisturbed, never = await say(0.0)
    disturbed, often = await say(0.3)
    assert disturbed == undisturbed
    assert (never, often > 5) == (0, True)


def giving_up(runner: Any, abandon: Callable[[], bool]) -> None:
    """Have ``runner`` ask ``abandon`` in each step but those that are begun while another is under way."""
    begin, under_way = getattr(runner, begins_by(runner)), []

    def begun(rows: Any, asked: Any = None) -> Any:
        step = begin(rows, None if under_way else abandon)
        if hasattr(runner, "collect"):
            under_way.append(step)
        return step

    def collected(step: Any) -> Any:
        under_way.remove(step)
        return collect(step)

    setattr(runner, begins_by(runner), begun)
    if hasattr(runner, "collect"):
        collect, runner.collect = runner.collect, collected


def tokens(number: int, length: int) -> list[int]:
    return [(31 * number + 7 * place) % (SPEC.vocab_size - 2) + 2 for place in range(length)]
