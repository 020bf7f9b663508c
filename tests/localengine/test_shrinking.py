"""A pool that gives blocks up while requests run: who goes first, who comes back, and who can never run again."""

from __future__ import annotations

import pytest
from engine_lab import BULK, GREEDY, INTERACTIVE, Lab, tokens

from orchestra.localengine.scheduling.apply import apply_plan, commit_step
from orchestra.localengine.scheduling.plan import plan_step


def test_what_nobody_uses_is_given_up_first():
    lab = Lab(blocks=16, block_size=4)
    lab.add(INTERACTIVE, tokens(13), max_tokens=1)
    lab.run()
    running = lab.add(BULK, tokens(13, seed=1), max_tokens=8)
    lab.step()
    assert lab.shrink(9) == []
    assert lab.state.pool.num_cached(INTERACTIVE) == 3, "blank blocks were enough"
    assert lab.shrink(1) == []
    assert (lab.state.pool.num_blocks, lab.state.pool.num_cached(INTERACTIVE)) == (6, 2)
    assert running.request_id in lab.state.running[BULK]
    lab.run()


def test_bulk_is_displaced_before_interactive_and_the_cheapest_first():
    lab = Lab(blocks=32, block_size=4, slots=8)
    urgent = lab.add(INTERACTIVE, tokens(8), max_tokens=9)
    dear, cheap = (lab.add(BULK, tokens(size, seed=size), max_tokens=9) for size in (24, 12))
    lab.step()
    assert lab.state.pool.num_free == 32 - 2 - 6 - 3
    assert lab.shrink(23) == []
    assert [seq.displacements for seq in (urgent, dear, cheap)] == [0, 0, 1]
    assert lab.shrink(1) == [dear], "nine blocks in all are not in eight"
    assert (urgent.displacements, lab.state.pool.num_free) == (0, 6)
    lab.run()
    assert lab.outputs.keys() == {urgent.request_id, cheap.request_id}


def test_interactive_goes_too_where_bulk_does_not_suffice():
    lab = Lab(blocks=32, block_size=4, slots=8)
    for seed in range(3):
        lab.add(INTERACTIVE, tokens(20, seed), max_tokens=9)
    lab.add(BULK, tokens(8, seed=9), max_tokens=9)
    lab.step()
    assert lab.shrink(20) == []
    assert [seq.displacements for seq in lab.state.waiting[BULK].values()] == [1]
    assert len(lab.state.waiting[INTERACTIVE]) == 1
    lab.run()
    assert len(lab.outputs) == 4


def test_what_can_never_fit_any_more_is_handed_back():
    lab = Lab(blocks=32, block_size=4, slots=2, interactive_blocks=8)
    running = lab.add(BULK, tokens(40), max_tokens=40)
    lab.step()
    waiting = [lab.add(BULK, tokens(size, seed=size), max_tokens=4) for size in (60, 20)]
    urgent = lab.add(INTERACTIVE, tokens(60, seed=1), max_tokens=4)
    assert lab.shrink(16) == [running, waiting[0]]
    assert lab.state.find(running.request_id) is None
    limits = lab.state.limits
    assert (limits.num_blocks, limits.interactive_blocks) == (16, 4), "interactive keeps its share"
    assert (lab.state.capacity(BULK), lab.state.capacity(INTERACTIVE)) == (48, 64)
    with pytest.raises(ValueError, match="can never run as bulk"):
        lab.add(BULK, tokens(45), max_tokens=4)
    lab.run()
    assert lab.outputs.keys() == {waiting[1].request_id, urgent.request_id}


def test_an_output_whose_length_was_left_open_ends_earlier():
    lab = Lab(blocks=32, block_size=4)
    seq = lab.add(INTERACTIVE, tokens(10), max_tokens=118)
    seq.sampling = GREEDY  # as where max_tokens was not given
    lab.step()
    assert lab.shrink(26) == []
    assert seq.max_tokens == 14
    lab.asked[0] = (tokens(10), 14)
    lab.run()
    assert len(lab.outputs[0]) == 14


def test_a_share_survives_many_small_steps():
    lab = Lab(blocks=40, block_size=4, interactive_blocks=10)
    for left in range(39, 0, -1):
        lab.shrink(1)
        assert lab.state.limits.interactive_blocks == left // 4
        assert lab.state.capacity(BULK) >= 4


@pytest.mark.parametrize("count", [16, 17, -1])
def test_one_block_must_stay_and_a_refusal_changes_nothing(count: int):
    lab = Lab(blocks=16, block_size=4)
    lab.add(BULK, tokens(30), max_tokens=10)
    lab.step()
    with pytest.raises(ValueError, match="cannot be given up"):
        lab.state.shrink(count)
    assert lab.state.limits.num_blocks == lab.state.pool.num_blocks == 16
    lab.run()


def test_even_a_fixed_one_goes_where_it_must_and_comes_back():
    lab = Lab(blocks=24, block_size=4, slots=3, max_displacements=1)
    fixed = [lab.add(BULK, tokens(12, seed), max_tokens=12) for seed in range(2)]
    other = lab.add(BULK, tokens(20, seed=2), max_tokens=4)
    lab.step()
    for seq in fixed:
        lab.state.displace(seq.request_id)
    lab.step()
    assert [len(seq.block_table) for seq in (*fixed, other)] == [6, 6, 6], "of a fixed one all that it may need"
    lab.shrink(8)
    assert [seq.displacements for seq in (*fixed, other)] == [1, 1, 1], "the fixed ones go last"
    lab.shrink(8)
    assert sorted(seq.displacements for seq in fixed) == [1, 2]
    lab.run()
    assert len(lab.outputs) == 3


def test_a_shrink_while_a_step_runs_loses_no_token():
    lab = Lab(blocks=16, block_size=4, slots=4)
    for seed in range(2):
        lab.add(BULK, tokens(13, seed), max_tokens=8)
    lab.step()
    plan = plan_step(lab.state, lab.budget, lab.cost)
    outputs = lab.runner.run(apply_plan(lab.state, plan))
    lab.shrink(9)
    commit_step(lab.state, plan, outputs)
    lab.state.check()
    lab.run()
    assert len(lab.outputs) == 2
