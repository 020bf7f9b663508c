"""What users of other engines met with priorities and with prompts in chunks. Each test names its report.

Those that the ordinary tests of the planner cover are named there (test_plan.py).
"""

from __future__ import annotations

import random

import pytest
from engine_lab import BULK, INTERACTIVE, Lab

from orchestra.localengine.scheduling.cost import CostModel, StepCost
from orchestra.localengine.scheduling.plan import plan_step

# round numbers: a step costs 10, a prefill token 1, a decode row 2
COST = StepCost(base=10, per_prefill_token=1, per_decode_row=2, per_kv_token=0)


def counts(plan):
    return {row.request_id: row.count for row in plan.rows}


# Priorities


def test_only_the_class_displaces_never_the_age():
    """vllm-project/vllm#40004: where equals may displace each other, the elder and the newer do so in turn."""
    lab = Lab(slots=2, max_displacements=99)
    elder, newer = (lab.add(BULK, 4, max_tokens=30) for _ in range(2))
    lab.step()
    lab.state.displace(elder.request_id)
    lab.add(INTERACTIVE, 4, max_tokens=20)
    for _ in range(20):  # the elder waits for as long as the slots are taken
        assert not lab.step().displaced
    assert (elder.num_output, newer.num_output) == (1, 21)
    lab.run()


@pytest.mark.parametrize("seed", range(3))
def test_every_row_that_stays_gets_its_token_whoever_is_displaced_meanwhile(seed):
    """vllm-project/vllm#49097: the victim stood earlier in the loop, and the next one in it lost its step."""
    rng = random.Random(seed)
    lab = Lab(blocks=14, block_size=4, slots=6, max_displacements=99, stall=10_000)
    displaced = 0
    for _ in range(1000):
        if rng.random() < 0.2:
            lab.add(rng.choice([*[BULK] * 4, INTERACTIVE]), rng.randint(1, 12), max_tokens=rng.randint(4, 24))
        runnable = {*lab.state.running[INTERACTIVE], *lab.state.running[BULK]}
        plan = lab.step()
        assert runnable - set(plan.displaced) <= counts(plan).keys()
        displaced += len(plan.displaced)
    assert displaced > 10


def test_the_token_of_a_row_that_was_undone_goes_to_another():
    """vllm-project/vllm#23316: a victim that was scheduled already keeps its tokens and its blocks."""
    lab = Lab(blocks=8, block_size=4, slots=3)
    elder = lab.add(BULK, 7, max_tokens=5)
    third = lab.add(BULK, 1, max_tokens=7)
    newer = lab.add(BULK, 3, max_tokens=9)
    lab.step()
    lab.step()
    assert (len(elder), len(third), len(newer)) == (9, 3, 5)
    lab.state.pool.allocate(lab.state.pool.num_free - 1, BULK)  # leave one block for two that need one
    newer.last_turn, elder.last_turn, third.last_turn = -3, -2, -1
    lab.budget = type(lab.budget)(tokens=2, ttft=1e9, tpot=1e9)
    plan = plan_step(lab.state, lab.budget, COST)
    # the newer one came first, and had a token and the block until the elder needed that
    assert plan.displaced == (newer.request_id,)
    assert counts(plan) == {elder.request_id: 1, third.request_id: 1}


# Prompts in chunks


def test_everybody_who_comes_during_a_giant_prompt_of_bulk_is_served_at_once():
    """sgl-project/sglang#34623: a prompt in the middle of its chunks takes them all; one in ten waits a minute."""
    lab = Lab(blocks=2500, tokens=64, slots=30)
    giant = lab.add(BULK, 4000)
    lab.step()
    people = {}
    for step in range(60):
        if step % 3 == 0:
            people[lab.add(INTERACTIVE, 20, max_tokens=5).request_id] = lab.steps
        before = giant.num_computed
        lab.step()
        assert giant.num_computed > before
    assert len(people) == 20
    assert all(lab.first_token[number] - asked <= 2 for number, asked in people.items())


@pytest.mark.parametrize("traffic", [INTERACTIVE, BULK])
def test_a_short_prompt_gets_its_share_beside_several_long_ones_of_its_class(traffic):
    """sgl-project/sglang#10063 and #8211, vllm-project/vllm#21495: short prompts are stuck behind long ones."""
    lab = Lab(blocks=4000, tokens=64, slots=8)
    for _ in range(6):
        lab.add(traffic, 2000)
    for _ in range(5):
        lab.step()
    asked, short = lab.steps, lab.add(traffic, 20)
    for _ in range(3):
        lab.step()
    assert lab.first_token[short.request_id] - asked <= 3  # seven prompts share 64 tokens: at least nine each


@pytest.mark.parametrize("traffic", [INTERACTIVE, BULK])
def test_a_giant_prompt_keeps_to_the_cap_and_gets_on(traffic):
    """vllm-project/vllm#25677: with a chunk that is too large, 270 tokens a second become 6.6."""
    lab = Lab(slots=8, blocks=700, block_size=16, tokens=2048, cost=COST, ttft=60, tpot=30)
    person = lab.add(INTERACTIVE, 1, max_tokens=700)
    lab.step()
    giant = lab.add(traffic, 10_000, max_tokens=1)
    while giant.num_output == 0 and not lab.outputs:
        before = giant.num_computed
        plan = lab.step()
        assert plan.seconds <= 30
        assert person.request_id in counts(plan)
        assert giant.num_computed > before or giant.request_id in lab.outputs
    assert giant.request_id in lab.outputs


@pytest.mark.parametrize("factor", [0.1, 10])
def test_the_chunk_follows_from_what_steps_take_on_this_machine(factor):
    """vllm-project/vllm#25677, local-inference-lab#541, blazux#9: no one size of chunk suits every machine.

    The planner starts with figures that are ten times off, and learns from the steps that it plans.
    """
    seed = StepCost()
    truth = StepCost(*(factor * value for value in (seed.base, seed.per_prefill_token, seed.per_decode_row, 0)))
    cap = 4 * truth.base
    model = CostModel(seed)
    lab = Lab(slots=8, blocks=800, block_size=16, tokens=2048, ttft=2 * cap, tpot=cap)
    person = lab.add(INTERACTIVE, 1, max_tokens=2000)
    lab.step()
    giant = lab.add(BULK, 10_000, max_tokens=1)
    gaps = []
    while giant.request_id not in lab.outputs:
        lab.cost = model.cost
        plan = lab.step()
        assert person.request_id in counts(plan)
        gaps.append(truth.predict(plan.load))
        model.observe(plan.load, gaps[-1])
    learned = sorted(gaps[20:])
    assert learned[int(0.99 * len(learned))] <= 1.1 * cap
    assert len(gaps) < 2 * 10_000 / ((cap - truth.base) / truth.per_prefill_token)  # nor is it timid
