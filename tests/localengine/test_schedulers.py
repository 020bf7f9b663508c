"""The schedulers that ours is compared with: each serves everybody, and does what its name says."""

from __future__ import annotations

import asyncio
import random

import pytest
from engine_lab import BULK, INTERACTIVE, VOCABULARY, Bench, Lab, heard
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.localengine import EngineConfig, SamplingParams
from orchestra.localengine.scheduling.classes import ClassLimits
from orchestra.localengine.scheduling.cost import StepCost
from orchestra.localengine.scheduling.schedulers import SCHEDULERS
from orchestra.localengine.scheduling.step_plan import Hold
from orchestra.localengine.settled_config import SettledConfig

OTHERS = ["priority", "fcfs", "static"]
# round numbers: a step costs 10, a prefill token 1, a decode row 2
COST = StepCost(base=10, per_prefill_token=1, per_decode_row=2, per_kv_token=0)


def counts(plan):
    return {row.request_id: row.count for row in plan.rows}


# Everybody is served, and every text is right


@settings(max_examples=80, deadline=None)
@given(
    scheduler=st.sampled_from(OTHERS),
    arrivals=st.lists(
        st.tuples(st.sampled_from([INTERACTIVE, BULK]), st.integers(1, 20), st.integers(1, 12), st.integers(0, 3)),
        min_size=1,
        max_size=12,
    ),
    blocks=st.integers(8, 20),
    slots=st.integers(1, 5),
    more=st.integers(0, 35),
)
def test_every_small_workload_ends_well(scheduler, arrivals, blocks, slots, more):
    work = sum(prompt + output for _, prompt, output, _ in arrivals)
    lab = Lab(scheduler=scheduler, blocks=blocks, block_size=4, slots=slots, tokens=slots + more, stall=4 * work)
    for traffic, prompt, output, pause in arrivals:
        lab.add(traffic, prompt, max_tokens=output)
        for _ in range(pause):
            lab.step()
    lab.run()
    assert len(lab.outputs) == len(arrivals)
    assert lab.state.pool.num_free == blocks


@pytest.mark.parametrize("scheduler", OTHERS)
@pytest.mark.parametrize("seed", range(4))
def test_random_traffic_with_cancellations_and_shared_prompts(scheduler, seed):
    rng = random.Random(seed)
    blocks, slots = rng.randint(10, 30), rng.randint(1, 6)
    lab = Lab(scheduler=scheduler, blocks=blocks, block_size=4, slots=slots, tokens=slots + 8, stall=10_000)
    prompts = [[rng.randrange(VOCABULARY) for _ in range(rng.choice([4, 8, 9, 20]))] for _ in range(4)]
    for _ in range(400):
        if sum(map(len, lab.state.waiting.values())) < 10 and rng.random() < 0.3:
            prompt = rng.choice(prompts)
            first = lab.add(rng.choice([INTERACTIVE, BULK]), list(prompt), max_tokens=rng.randint(1, 16))
            if rng.random() < 0.2:
                lab.add(first.traffic, list(prompt), max_tokens=rng.randint(1, 16), kin=first)
        if rng.random() < 0.05 and (alive := [seq.request_id for seq in lab.state.sequences()]):
            lab.cancel(rng.choice(alive))
        if rng.random() < 0.05 and (running := [*lab.state.running[BULK], *lab.state.running[INTERACTIVE]]):
            lab.state.displace(rng.choice(running))
        lab.step()
    lab.run()
    assert len(lab.outputs) > 20
    assert lab.state.pool.num_free == blocks


@pytest.mark.parametrize("scheduler", OTHERS)
def test_a_pool_of_one_and_a_fifth_requests_serves_six(scheduler):
    lab = Lab(scheduler=scheduler, blocks=12, block_size=4, slots=6, stall=1000)
    for number in range(6):
        lab.add(BULK if number % 2 else INTERACTIVE, 12, max_tokens=28)
    lab.run()
    assert len(lab.outputs) == 6
    assert sum(lab.computed.values()) <= 4 * 6 * 40  # at most max_displacements recomputations each


@pytest.mark.parametrize("scheduler", SCHEDULERS)
async def test_an_engine_answers_alike_under_each(scheduler):
    config = EngineConfig(
        block_size=4, max_num_seqs=3, step_tokens=16, interactive_slots=1, bulk_min_share=0.2, scheduler=scheduler
    )
    bench = Bench(config, blocks=24)
    prompts = [[(31 * number + place) % 900 + 2 for place in range(5 + number)] for number in range(12)]
    params = SamplingParams(max_tokens=9, temperature=0)
    async with bench.engine as engine:
        answers = await asyncio.gather(
            *(
                engine.complete(prompt, params, traffic="bulk" if number % 3 else "interactive")
                for number, prompt in enumerate(prompts)
            )
        )
        assert (await bench.idle())["finished"] == 12
    for prompt, answer in zip(prompts, answers, strict=True):
        assert list(answer.token_ids) == heard(prompt, 9)


# Priority and first come, first served


@pytest.mark.parametrize("scheduler", ["priority", "fcfs"])
def test_nobody_who_runs_goes_for_somebody_who_waits(scheduler):
    """What vllm-project/vllm#40004 is about: the request of a person waits until one of bulk ends by itself."""
    lab = Lab(scheduler=scheduler, slots=2)
    for _ in range(2):
        lab.add(BULK, 4, max_tokens=40)
    lab.step()
    urgent = lab.add(INTERACTIVE, 6, max_tokens=3)
    while not lab.outputs:
        plan = lab.step()
        assert not plan.displaced
        assert plan.held.get(INTERACTIVE) in (Hold.SLOTS, None)
    assert urgent.num_output == 0
    lab.run()


@pytest.mark.parametrize(("scheduler", "order"), [("priority", [2, 3, 0, 1]), ("fcfs", [0, 1, 2, 3])])
def test_who_waits_is_admitted_in_the_schedulers_order(scheduler, order):
    lab = Lab(scheduler=scheduler, slots=1)
    for traffic in (BULK, BULK, INTERACTIVE, INTERACTIVE):
        lab.add(traffic, 4, max_tokens=3)
    lab.run()
    assert list(lab.outputs) == order


def test_who_waits_behind_another_is_told_so():
    lab = Lab(scheduler="fcfs", slots=1)
    for traffic in (BULK, INTERACTIVE, BULK):
        lab.add(traffic, 4, max_tokens=3)
    assert lab.step().held == {INTERACTIVE: Hold.SLOTS, BULK: Hold.TURN}


@pytest.mark.parametrize("scheduler", ["priority", "fcfs"])
def test_who_decodes_comes_first_and_one_prompt_after_another_takes_the_rest(scheduler):
    lab = Lab(scheduler=scheduler, tokens=16, slots=4, blocks=64, cost=COST, ttft=1, tpot=1)
    lab.add(INTERACTIVE, 1, max_tokens=20)
    lab.step()
    lab.add(INTERACTIVE, 40, max_tokens=2)
    lab.add(INTERACTIVE, 3, max_tokens=2)
    shares = [counts(lab.step()) for _ in range(3)]
    # its length is not bounded by time: as far as that goes, not even one token fits
    assert shares == [{0: 1, 1: 15}, {0: 1, 1: 15}, {0: 1, 1: 10, 2: 3}]


@pytest.mark.parametrize(("scheduler", "victim"), [("priority", 0), ("fcfs", 1)])
def test_growth_displaces_the_last_in_order(scheduler, victim):
    lab = Lab(scheduler=scheduler, blocks=6, slots=2, block_size=4)
    lab.add(BULK, 8, max_tokens=16)
    lab.add(INTERACTIVE, 8, max_tokens=16)
    while not (displaced := lab.step().displaced):
        pass
    assert displaced == (victim,)
    lab.run()


# Static batches


def test_a_static_batch_is_computed_to_its_end_and_nobody_joins():
    lab = Lab(scheduler="static", slots=3)
    for output in (2, 9, 4, 3, 5):
        lab.add(BULK, 4, max_tokens=output)
    lab.add(INTERACTIVE, 4, max_tokens=1)
    batches = []
    while lab.state.has_work:
        plan = lab.step()
        if plan.admitted:
            batches.append((lab.steps, plan.admitted))
        elif any(lab.state.waiting.values()):
            assert set(plan.held.values()) == {Hold.BATCH, Hold.TURN}
    assert batches == [(1, (0, 1, 2)), (10, (3, 4, 5))]  # nine steps, the length of the longest


def test_a_static_batch_has_room_for_all_that_its_requests_can_become():
    lab = Lab(scheduler="static", slots=8, blocks=16, block_size=4)
    for _ in range(6):
        lab.add(BULK, 4, max_tokens=16)  # 5 blocks each, in the end
    while lab.state.has_work:
        plan = lab.step()
        assert not plan.displaced
        assert len(plan.admitted) in (0, 3)
    assert len(lab.outputs) == 6


def test_prompts_of_a_static_batch_beyond_the_steps_tokens_come_in_the_next_steps():
    lab = Lab(scheduler="static", slots=3, tokens=16, blocks=64)
    for _ in range(3):
        lab.add(BULK, 10, max_tokens=2)
    assert [counts(lab.step()) for _ in range(3)] == [{0: 10, 1: 6}, {0: 1, 1: 4, 2: 10}, {1: 1, 2: 1}]
    lab.run()


# Settings


def test_only_the_scheduler_of_classes_keeps_anything_apart():
    options = {"max_num_seqs": 8, "interactive_slots": 2, "bulk_min_share": 0.1}
    classes = ClassLimits.of(SettledConfig.on_cpu(EngineConfig(**options)), 100)
    assert (classes.slots(BULK), classes.blocks(BULK), classes.bulk_min_share) == (6, 75, 0.1)
    half = ClassLimits.of(SettledConfig.on_cpu(EngineConfig(**options, interactive_cache=0.5)), 100)
    assert (half.slots(BULK), half.blocks(BULK)) == (6, 50)
    for scheduler in OTHERS:
        limits = ClassLimits.of(SettledConfig.on_cpu(EngineConfig(**options, scheduler=scheduler)), 100)
        assert (limits.slots(BULK), limits.blocks(BULK), limits.bulk_min_share) == (8, 100, 0)


def test_a_scheduler_that_does_not_exist_is_named_with_those_that_do():
    with pytest.raises(ValueError, match=r"scheduler must be one of classes, priority, fcfs, static, not 'lifo'"):
        EngineConfig(scheduler="lifo")
