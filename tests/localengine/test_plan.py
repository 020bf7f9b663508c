from __future__ import annotations

import itertools

import pytest
from engine_lab import BULK, GREEDY, INTERACTIVE, Lab, oracle

from orchestra.localengine.scheduling.apply import apply_plan, commit_step
from orchestra.localengine.scheduling.cost import StepCost
from orchestra.localengine.scheduling.plan import plan_step
from orchestra.localengine.scheduling.sequence import Sequence
from orchestra.localengine.scheduling.step_plan import Hold

# round numbers: a step costs 10, a prefill token 1, a decode row 2
COST = StepCost(base=10, per_prefill_token=1, per_decode_row=2, per_kv_token=0)


def counts(plan):
    return {row.request_id: row.count for row in plan.rows}


# Sequences and state


def test_a_sequence_that_could_never_run_is_refused():
    lab = Lab(blocks=8, block_size=4, interactive_blocks=2)
    lab.add(INTERACTIVE, 28, max_tokens=4)
    lab.add(BULK, 20, max_tokens=4)
    with pytest.raises(ValueError, match="33 tokens can never run as interactive"):
        lab.add(INTERACTIVE, 29, max_tokens=4)
    with pytest.raises(ValueError, match="25 tokens can never run as bulk"):
        lab.add(BULK, 21, max_tokens=4)


def test_removing_an_unknown_request_is_harmless():
    assert Lab().state.remove(17) is None


def test_an_idle_state_gives_an_empty_plan():
    plan = plan_step(Lab().state, Lab().budget, COST)
    assert (plan.rows, plan.admitted, plan.displaced, dict(plan.held)) == ((), (), (), {})


# One class


def test_requests_join_and_leave_between_steps():
    lab = Lab()
    lab.add(INTERACTIVE, 5, max_tokens=6)
    assert counts(lab.step()) == {0: 5}
    assert counts(lab.step()) == {0: 1}
    lab.add(INTERACTIVE, 3, max_tokens=1)
    assert counts(lab.step()) == {0: 1, 1: 3}
    assert lab.outputs.keys() == {1}
    assert counts(lab.step()) == {0: 1}
    lab.run()
    assert lab.state.pool.num_free == 64


def test_a_long_prompt_is_computed_in_chunks_and_sampled_once():
    lab = Lab(blocks=64, tokens=16)
    lab.add(BULK, 50, max_tokens=2)
    plans = [lab.step() for _ in range(4)]
    assert [counts(plan)[0] for plan in plans] == [16, 16, 16, 2]
    assert [plan.rows[0].sampled for plan in plans] == [False, False, False, True]
    lab.run()


@pytest.mark.parametrize("traffic", [INTERACTIVE, BULK])
def test_a_short_prompt_is_never_stuck_behind_a_long_one(traffic):
    """sgl-project/sglang#10063: one prompt in the middle of its chunks takes all of every step."""
    lab = Lab(blocks=1200, tokens=64)
    long = lab.add(traffic, 4000)
    lab.step()
    short = lab.add(traffic, 20)
    lab.step()
    assert lab.first_token[short.request_id] == 2
    assert long.num_computed == 64 + 44  # what the short one did not need


def test_prompts_share_a_step_equally_and_take_turns_when_there_are_more_prompts_than_tokens():
    lab = Lab(tokens=8, slots=8)
    for _ in range(3):
        lab.add(INTERACTIVE, 30, max_tokens=1)
    assert sorted(counts(lab.step()).values()) == [2, 3, 3]
    lab = Lab(tokens=8, slots=8, blocks=128, cost=COST, tpot=13)
    for _ in range(8):
        lab.add(INTERACTIVE, 40, max_tokens=1)
    lab.run()


def test_every_decoding_row_runs_in_every_step():
    lab = Lab(tokens=8, slots=8, blocks=256)
    for _ in range(7):
        lab.add(INTERACTIVE, 1, max_tokens=20)
    lab.step()
    lab.add(INTERACTIVE, 200, max_tokens=1)
    for _ in range(10):
        assert counts(lab.step()) == dict.fromkeys(range(8), 1)


def test_a_waiting_request_holds_nothing_and_costs_nothing():
    lab = Lab(slots=2)
    for _ in range(20_000):
        lab.state.add(
            Sequence(
                request_id=len(lab.asked) + 10**6,
                traffic=BULK,
                arrival=len(lab.asked),
                token_ids=[1],
                max_tokens=5,
                sampling=GREEDY,
            )
        )
        lab.asked[len(lab.asked)] = ([], 0)
    visited = 0

    class Counting(dict):
        def values(self):
            nonlocal visited
            for value in super().values():
                visited += 1
                yield value

    lab.state.waiting[BULK] = Counting(lab.state.waiting[BULK])
    plan_step(lab.state, lab.budget, COST)
    assert visited <= 4


# Two classes


def test_interactive_displaces_bulk_when_slots_are_short():
    """vllm-project/vllm#40004: a request of a person waits until one of bulk ends by itself."""
    lab = Lab(slots=2)
    bulk = [lab.add(BULK, 4, max_tokens=100 // 4) for _ in range(2)]
    for _ in range(3):
        lab.step()
    asked = lab.steps
    urgent = lab.add(INTERACTIVE, 6, max_tokens=3)
    plan = lab.step()
    assert plan.displaced == (bulk[1].request_id,)  # as far as the other, and newer
    assert lab.first_token[urgent.request_id] - asked <= 2
    lab.run()  # and every output equals the request's run alone


def test_the_cheapest_to_resume_goes_first_and_no_more_than_needed():
    lab = Lab(slots=4, blocks=20, max_displacements=9)
    sizes = [12, 4, 8, 16]
    for size in sizes:
        lab.add(BULK, size, max_tokens=8)
    lab.step()
    urgent = lab.add(INTERACTIVE, 12, max_tokens=1)
    plan = lab.step()
    assert urgent.request_id in plan.admitted
    # 10 of 20 blocks are free: no block is missing, only a slot
    assert plan.displaced == (1,)
    lab.run()


def test_small_victims_are_spared_when_a_larger_one_is_needed_anyway():
    lab = Lab(slots=4, blocks=16, max_displacements=9)
    for size in (4, 40):
        lab.add(BULK, size, max_tokens=3)
    lab.step()
    lab.add(INTERACTIVE, 36, max_tokens=1)
    assert lab.step().displaced == (1,)
    lab.run()


@pytest.mark.parametrize("traffic", [INTERACTIVE, BULK])
def test_a_class_never_displaces_its_equals_to_admit(traffic):
    lab = Lab(slots=1)
    lab.add(traffic, 4, max_tokens=10)
    lab.add(traffic, 4, max_tokens=10)
    while not lab.outputs:
        plan = lab.step()
        assert not plan.displaced
        assert plan.held.get(traffic) in (Hold.SLOTS, None)
    lab.run()


def test_bulk_never_displaces_interactive():
    lab = Lab(slots=1)
    lab.add(INTERACTIVE, 4, max_tokens=30)
    lab.step()
    lab.add(BULK, 4)
    for _ in range(20):
        plan = lab.step()
        assert not plan.displaced
        assert plan.held[BULK] is Hold.SLOTS


def test_nobody_is_displaced_for_an_admission_that_fails_all_the_same():
    lab = Lab(slots=4, blocks=16)
    lab.add(INTERACTIVE, 44, max_tokens=4)
    lab.step()
    lab.add(BULK, 4, max_tokens=4)
    lab.step()
    lab.add(INTERACTIVE, 40, max_tokens=4)
    plan = lab.step()
    assert not plan.displaced
    assert plan.held[INTERACTIVE] is Hold.BLOCKS
    lab.run()


def test_bulk_is_not_admitted_past_an_interactive_request_that_waits_for_blocks():
    lab = Lab(slots=4, blocks=16)
    lab.add(INTERACTIVE, 44, max_tokens=4)
    lab.step()
    lab.add(INTERACTIVE, 40, max_tokens=4)
    lab.add(BULK, 4, max_tokens=4)
    assert lab.step().held == {INTERACTIVE: Hold.BLOCKS, BULK: Hold.TURN}
    lab.run()


def test_bulk_leaves_the_interactive_slots_and_blocks_free():
    lab = Lab(slots=4, blocks=32, interactive_slots=1, interactive_blocks=8, max_displacements=99)
    for _ in range(6):
        lab.add(BULK, 20, max_tokens=40)
    for _ in range(60):
        lab.step()  # the checker holds bulk to its 3 slots and 24 blocks
        assert len(lab.state.running[BULK]) <= 3
        assert lab.state.pool.num_free >= 8
    lab.add(INTERACTIVE, 20, max_tokens=4)
    assert not lab.step().displaced


def test_a_prompt_of_the_other_class_does_not_delay_an_interactive_one():
    """sgl-project/sglang#34623: the same, where bulk has the long prompt."""
    lab = Lab(blocks=1200, tokens=64)
    lab.add(BULK, 4000)
    for _ in range(5):
        lab.step()
    asked = lab.steps
    short = lab.add(INTERACTIVE, 20)
    lab.step()
    lab.step()
    assert lab.first_token[short.request_id] - asked <= 2


def test_what_was_displaced_resumes_before_what_came_later():
    lab = Lab(slots=2, max_displacements=9)
    first, second = (lab.add(BULK, 4, max_tokens=30) for _ in range(2))
    lab.step()
    later = [lab.add(BULK, 4, max_tokens=2) for _ in range(3)]
    urgent = [lab.add(INTERACTIVE, 4, max_tokens=3) for _ in range(2)]
    assert set(lab.step().displaced) == {first.request_id, second.request_id}
    assert list(lab.state.waiting[BULK]) == [0, 1, *(seq.request_id for seq in later)]
    while len(lab.outputs) < len(urgent):
        lab.step()
    assert lab.step().admitted == (first.request_id, second.request_id)
    lab.run()


def test_after_enough_displacements_a_request_stays():
    lab = Lab(slots=1, max_displacements=3)
    bulk = lab.add(BULK, 4, max_tokens=40)
    for _ in range(200):
        if bulk.request_id in lab.state.running[BULK] and len(lab.state.waiting[INTERACTIVE]) == 0:
            lab.add(INTERACTIVE, 2, max_tokens=1)
        if not lab.state.has_work:
            break
        lab.step()
    assert bulk.displacements == 3
    assert bulk.request_id in lab.outputs


# Undoing


def test_a_row_already_planned_is_undone_with_its_tokens_and_blocks():
    """vllm-project/vllm#23316: a victim that was scheduled already keeps its entries."""
    # Two decoding bulk rows. The newer was run less recently, so it is planned first; the elder's growth then
    # needs the block that the newer one was just given.
    lab = Lab(blocks=5, block_size=4, slots=2)
    elder = lab.add(BULK, 7, max_tokens=5)
    newer = lab.add(BULK, 3, max_tokens=9)
    lab.step()
    lab.step()
    assert len(elder) == 9
    assert len(newer) == 5
    lab.state.pool.allocate(lab.state.pool.num_free - 1, BULK)  # leave one block for two that need one
    newer.last_turn = -1
    plan = plan_step(lab.state, lab.budget, COST)
    assert plan.displaced == (newer.request_id,)
    assert counts(plan) == {elder.request_id: 1}
    assert plan.load.decode_rows == 1
    assert plan.load.kv_tokens == 9


def test_a_victim_earlier_in_the_loop_makes_nobody_skip_a_step():
    """vllm-project/vllm#49097: the one after the victim loses its step."""
    for slots in range(2, 6):
        lab = Lab(blocks=3 * slots, block_size=4, slots=slots)
        for _ in range(slots):
            lab.add(BULK, 5, max_tokens=7)
        while lab.state.has_work:
            runnable = set(lab.state.running[BULK])
            plan = lab.step()
            assert runnable - set(plan.displaced) <= {row.request_id for row in plan.rows}


# Memory


@pytest.mark.parametrize("traffic", [INTERACTIVE, BULK])
def test_a_pool_of_one_and_a_fifth_requests_serves_six(traffic):
    lab = Lab(blocks=12, block_size=4, slots=6)
    for _ in range(6):
        lab.add(traffic, 12, max_tokens=28)
    lab.run()
    assert len(lab.outputs) == 6
    assert sum(lab.computed.values()) <= 4 * 6 * 40  # at most max_displacements recomputations each


def test_interactive_growth_takes_blocks_from_bulk():
    lab = Lab(blocks=8, block_size=4, slots=4)
    lab.add(INTERACTIVE, 8, max_tokens=24)
    lab.add(BULK, 8, max_tokens=16)
    lab.run()
    finished = list(lab.outputs)
    assert finished == [0, 1]
    assert lab.state.pool.num_free == 8


def test_the_eldest_of_a_class_is_never_displaced_by_its_equals():
    lab = Lab(blocks=10, block_size=4, slots=5)
    eldest = lab.add(BULK, 4, max_tokens=36)
    for _ in range(4):
        lab.add(BULK, 4, max_tokens=30)
    lab.run()
    assert eldest.displacements == 0


def test_lengths_one_past_a_block_never_break_a_promise():
    for blocks, extra in itertools.product((8, 13), (0, 1, 2)):
        lab = Lab(blocks=blocks, block_size=4, slots=8)
        for number in range(12):
            lab.add(BULK if number % 3 else INTERACTIVE, 4 * (number % 4) + 1 + extra, max_tokens=9)
        lab.run()
        assert len(lab.outputs) == 12
        assert lab.state.pool.num_free == blocks


def test_finished_requests_give_their_blocks_back():
    lab = Lab(blocks=8, block_size=4)
    for _ in range(20):
        lab.add(BULK, 20, max_tokens=8)
    lab.run()
    assert lab.state.pool.num_free == 8


@pytest.mark.parametrize("moment", range(1, 16))
def test_displaced_at_any_moment_the_output_is_the_same_and_whole(moment):
    lab = Lab(tokens=4, block_size=4)
    lab.add(BULK, 11, max_tokens=8)
    for _ in range(moment):
        if lab.state.has_work:
            lab.step()
    if lab.state.running[BULK]:
        lab.state.displace(0)
    lab.run()
    prompt, limit = lab.asked[0]
    assert lab.outputs[0] == oracle(prompt, limit)
    assert len(lab.outputs[0]) == 8


@pytest.mark.parametrize("gone", ["displaced", "removed"])
def test_a_result_that_comes_back_too_late_is_dropped(gone):
    lab = Lab()
    late = lab.add(BULK, 5, max_tokens=3)
    other = lab.add(BULK, 5, max_tokens=3)
    plan = plan_step(lab.state, lab.budget, COST)
    outputs = lab.runner.run(apply_plan(lab.state, plan))
    if gone == "displaced":
        lab.state.displace(late.request_id)
    else:
        lab.state.remove(late.request_id)
    assert [seq for seq, _ in commit_step(lab.state, plan, outputs)] == [other]
    assert (late.num_output, late.num_computed) == (0, 0)
    lab.state.check()
    if gone == "displaced":
        lab.run()
        assert lab.outputs[late.request_id] == oracle(*lab.asked[late.request_id])


# Time


def decoding(lab: Lab, traffic, number: int, max_tokens: int = 60):
    """So many short requests, past their prefill."""
    rows = [lab.add(traffic, 1, max_tokens=max_tokens) for _ in range(number)]
    while not all(seq.num_output for seq in rows):
        lab.step()
    return rows


@pytest.mark.parametrize("bulk", [0, 30])
def test_bulk_never_lengthens_a_step_past_the_target_while_an_interactive_request_decodes(bulk):
    """vllm-project/vllm#24365: a priority is set, and 30 streams of bulk double the latency."""
    lab = Lab(slots=40, blocks=900, cost=COST, ttft=60, tpot=30)
    decoding(lab, INTERACTIVE, 1, max_tokens=40)
    for _ in range(bulk):
        lab.add(BULK, 20, max_tokens=10)
    while 0 in lab.state.running[INTERACTIVE]:
        plan = lab.step()
        assert 0 in counts(plan)
        assert plan.seconds <= 30
    lab.run()


def test_a_huge_interactive_prompt_keeps_the_target_of_the_others_and_still_gets_on():
    """vllm-project/vllm#25677: with a chunk that is too large, 270 tokens a second become 6.6."""
    lab = Lab(slots=4, blocks=3000, tokens=256, cost=COST, tpot=40)
    decoding(lab, INTERACTIVE, 2, max_tokens=200)
    huge = lab.add(INTERACTIVE, 10_000, max_tokens=1)
    for _ in range(100):
        before = huge.num_computed
        plan = lab.step()
        assert plan.seconds <= 40
        assert {0, 1} <= counts(plan).keys()
        assert huge.num_computed > before


def test_a_prompt_makes_headway_even_when_decoding_alone_passes_the_target():
    lab = Lab(slots=10, blocks=600, cost=COST, tpot=12)
    decoding(lab, INTERACTIVE, 8)
    prompt = lab.add(INTERACTIVE, 20, max_tokens=1)
    plan = lab.step()
    assert counts(plan)[prompt.request_id] == lab.state.pool.block_size
    assert len(plan.rows) == 9


def test_bulk_alone_is_bounded_by_the_ttft_target():
    lab = Lab(slots=8, blocks=600, tokens=256, cost=COST, ttft=50)
    for _ in range(8):
        lab.add(BULK, 100, max_tokens=5)
    while lab.state.has_work:
        assert lab.step().seconds <= 50


def test_bulk_rides_along_with_an_interactive_prompt_within_the_ttft_target():
    lab = Lab(slots=8, blocks=600, cost=COST, ttft=40, tpot=1)
    decoding(lab, BULK, 7)
    lab.add(INTERACTIVE, 20, max_tokens=2)
    plan = lab.step()
    assert counts(plan)[7] == 20
    assert len(plan.rows) == 1 + 5  # 10 + 20 + 5 * 2 = 40
    assert plan.seconds == 40


def test_a_step_always_makes_headway_however_low_the_target():
    lab = Lab(slots=4, blocks=600, cost=COST, ttft=1, tpot=1)
    for _ in range(4):
        lab.add(BULK, 10, max_tokens=6)
    lab.run()
    assert len(lab.outputs) == 4


def test_bulk_rows_take_turns_when_not_all_fit():
    lab = Lab(slots=8, blocks=600, cost=COST)
    rows = decoding(lab, BULK, 8)
    start = [seq.num_output for seq in rows]
    lab.budget = type(lab.budget)(tokens=64, ttft=16, tpot=16)  # three rows a step
    for _ in range(16):
        assert len(lab.step().rows) == 3
    gained = [seq.num_output - before for seq, before in zip(rows, start, strict=True)]
    assert gained == [6] * 8


# The minimum share of bulk


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.5])
@pytest.mark.parametrize("slots", [1, 2, 4])
def test_bulk_gets_its_minimum_share_under_endless_interactive_load_and_nothing_with_none(share, slots):
    """vllm-project/vllm-ascend#11526, vLLM's RFC #6077: bulk starves for ever."""
    lab = Lab(slots=slots, blocks=256, tokens=16, bulk_min_share=share, stall=10**9)
    for _ in range(3):
        lab.add(INTERACTIVE, 8, max_tokens=8)
    for _ in range(40):
        lab.add(BULK, 100, max_tokens=20)
    total = bulk = 0
    for _ in range(500):
        lab.add(INTERACTIVE, 8, max_tokens=8)
        plan = lab.step()
        total += sum(row.count for row in plan.rows)
        bulk += sum(row.count for row in plan.rows if 3 <= row.request_id < 43)
    if share == 0:
        assert bulk == 0
    else:
        assert lab.state.waiting[BULK]  # it never ran out of work
        assert bulk / total >= 0.95 * share


def test_a_minimum_share_makes_bulk_finish_though_interactive_never_ends():
    lab = Lab(slots=2, blocks=64, tokens=16, bulk_min_share=0.2, stall=10**9)
    jobs = [lab.add(BULK, 20, max_tokens=12) for _ in range(4)]
    for _ in range(1000):
        lab.add(INTERACTIVE, 4, max_tokens=4)
        lab.step()
    assert {seq.request_id for seq in jobs} <= lab.outputs.keys()
