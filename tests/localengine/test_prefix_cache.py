"""The prefix cache in the scheduler's books: hits, salts, classes, displacement, and what must never be shared.

The lab's memory spoils each block that is handed out and compares every output with the request's run alone, so
a table that leads to the wrong block, or a block read before it is written, fails whichever test it happens in.
Tests of faults that other engines had name where each was reported.
"""

from __future__ import annotations

import random

import pytest
from engine_lab import BULK, INTERACTIVE, Lab, oracle, tokens

from orchestra.localengine.scheduling.apply import apply_plan, commit_step
from orchestra.localengine.scheduling.cost import StepCost
from orchestra.localengine.scheduling.plan import plan_step
from orchestra.localengine.scheduling.sequence import Sequence
from orchestra.localengine.scheduling.step_plan import Hold

COST = StepCost(base=10, per_prefill_token=1, per_decode_row=2, per_kv_token=0.1)


def cached(seq: Sequence) -> int:
    """Tokens of the prompt that were in the cache when the sequence first ran."""
    assert seq.num_cached is not None
    return seq.num_cached


# Hits


def test_the_same_block_aligned_prompt_twice_still_computes_a_token():
    """GeeeekExplorer/nano-vllm#144, vllm-project/vllm#7753: nothing was left to compute, and the kernel failed."""
    lab = Lab(block_size=4)
    for _ in range(2):
        lab.add(BULK, tokens(16), max_tokens=3)
        lab.run()
    first, second = (plan.rows[0] for plan in lab.plans if plan.admitted)
    assert (first.start, first.count) == (0, 16)
    assert (second.start, second.count, second.sampled) == (12, 4, True)


@pytest.mark.parametrize("length", range(1, 17))
def test_of_any_length_a_prompt_is_found_in_whole_blocks(length: int):
    """tenstorrent/vllm#415: with a hit the text must be what it is without one."""
    lab = Lab(block_size=4)
    for _ in range(2):
        seq = lab.add(INTERACTIVE, tokens(length), max_tokens=5)
        lab.run()
    assert cached(seq) == (length - 1) // 4 * 4
    assert lab.computed[1] == lab.computed[0] - cached(seq)


def test_what_an_answer_added_is_found_by_the_next_turn():
    lab = Lab(block_size=4)
    first = lab.add(INTERACTIVE, tokens(10), max_tokens=8)
    lab.run()
    second = lab.add(INTERACTIVE, [*first.token_ids, *tokens(5, seed=1)], max_tokens=4)
    lab.run()
    assert cached(second) == 16  # of 18 tokens, the last of which was drawn and never computed


def test_a_prefix_is_shared_while_it_is_still_in_use():
    lab = Lab(blocks=32, block_size=4)
    prefix = tokens(16)
    first = lab.add(INTERACTIVE, [*prefix, 1], max_tokens=30)
    lab.step()
    second = lab.add(BULK, [*prefix, 2], max_tokens=30)
    lab.step()
    assert second.block_table[:4] == first.block_table[:4]
    assert second.block_table[4] != first.block_table[4]
    assert lab.state.pool.num_free == 32 - 6
    lab.run()


def test_a_chunk_that_is_computed_can_be_shared_before_the_prompt_is_whole():
    lab = Lab(blocks=64, block_size=4, tokens=8)
    lab.add(BULK, tokens(40), max_tokens=2)
    lab.step()
    second = lab.add(BULK, tokens(40), max_tokens=2)
    lab.step()
    assert cached(second) == 8
    lab.run()


def test_only_the_first_run_counts_as_cached():
    lab = Lab(block_size=4)
    seq = lab.add(BULK, tokens(11), max_tokens=8)
    for _ in range(3):
        lab.step()
    lab.state.displace(seq.request_id)
    lab.run()
    assert cached(seq) == 0


def test_without_caching_nothing_is_shared_and_nothing_is_lost():
    lab = Lab(block_size=4, caching=False)
    for _ in range(2):
        seq = lab.add(BULK, tokens(16), max_tokens=3)
        lab.run()
    assert cached(seq) == 0
    assert lab.state.pool.num_blank == 64


def test_what_a_hit_must_read_counts_in_the_steps_time():
    """Admission fills a step with prompts until its time is up; what they have in the cache has to be read."""
    lab = Lab(blocks=600, block_size=4, slots=8, tokens=256, cost=COST, ttft=60)
    prefix = tokens(200)
    lab.add(BULK, [*prefix, 1], max_tokens=1)
    lab.run()
    for number in range(6):
        lab.add(BULK, [*prefix, *tokens(3, seed=number + 1)], max_tokens=2)
    while lab.state.has_work:
        assert lab.step().seconds <= 60


# Not before it is computed


def test_two_identical_prompts_of_one_step_share_nothing_that_is_not_yet_written():
    """A prefix is published after the step that wrote it: who is admitted beside it would read nothing."""
    lab = Lab(block_size=4)
    twins = [lab.add(INTERACTIVE, tokens(16), max_tokens=6) for _ in range(2)]
    plan = lab.step()
    assert [row.count for row in plan.rows] == [16, 16]
    assert not plan.matched
    assert not set(twins[0].block_table) & set(twins[1].block_table)
    lab.run()
    assert [cached(twin) for twin in twins] == [0, 0]


def test_a_step_that_dies_publishes_nothing():
    """The same, for a step that never ends: what it may have written is nobody's prefix."""
    lab = Lab(block_size=4)
    lab.add(BULK, tokens(16), max_tokens=6)
    rows = apply_plan(lab.state, plan_step(lab.state, lab.budget, lab.cost))
    lab.runner.run(rows)  # it wrote all of it, and then it failed
    assert lab.state.pool.match(tokens(16), None, 4) == []
    twin = lab.add(BULK, tokens(16), max_tokens=6)
    lab.cancel(0)
    lab.run()
    assert cached(twin) == 0
    assert lab.outputs[1] == oracle(tokens(16), 6)


def test_a_request_that_is_cancelled_while_its_step_runs_publishes_nothing():
    lab = Lab(block_size=4)
    lab.add(BULK, tokens(16), max_tokens=6)
    plan = plan_step(lab.state, lab.budget, lab.cost)
    outputs = lab.runner.run(apply_plan(lab.state, plan))
    lab.cancel(0)
    assert commit_step(lab.state, plan, outputs) == []
    assert lab.state.pool.match(tokens(16), None, 4) == []
    lab.state.check()


# Salts


def test_only_requests_of_one_salt_share():
    """vLLM's cache_salt: whether a prompt was asked before must not show between tenants."""
    lab = Lab(block_size=4)
    salts = [None, "a", "b", "", "a", None]
    found = []
    for salt in salts:
        seq = lab.add(INTERACTIVE, tokens(13), max_tokens=2, salt=salt)
        lab.run()
        found.append(cached(seq))
    assert found == [0, 0, 0, 0, 12, 12]


def test_requests_of_two_salts_in_one_step_hold_blocks_of_their_own():
    lab = Lab(block_size=4)
    for salt in ("a", "b"):
        lab.add(INTERACTIVE, tokens(13), max_tokens=9, salt=salt)
        lab.step()
    first, second = lab.state.running[INTERACTIVE].values()
    assert not set(first.block_table) & set(second.block_table)
    lab.run()


# Books of a step that is being planned


def test_a_hit_on_blocks_that_were_counted_on_before_is_not_counted_twice():
    """The first that is admitted counts on cached blocks as room; the second finds its own prefix in them.

    Bulk makes way for it, and what is left of bulk must not be promised a block to grow that nobody has.
    """
    lab = Lab(blocks=16, block_size=4, slots=4, tokens=256)
    lab.add(INTERACTIVE, tokens(17), max_tokens=1)
    lab.run()
    stays, goes = (lab.add(BULK, tokens(size, seed=size), max_tokens=8) for size in (24, 20))
    lab.step()
    assert (lab.state.pool.num_blank, lab.state.pool.num_cached(INTERACTIVE)) == (1, 4)
    lab.add(INTERACTIVE, tokens(18, seed=1), max_tokens=1)  # all five that are free
    lab.add(INTERACTIVE, [*tokens(16), 5], max_tokens=1)  # which hold its prefix; one more, and the last is gone
    plan = lab.step()
    assert len(plan.admitted) == 2
    assert set(plan.displaced) == {stays.request_id, goes.request_id}
    lab.run()
    assert len(lab.outputs) == 5


@pytest.mark.parametrize("urgent", [1, 2, 3])
def test_a_head_that_shares_the_blocks_of_its_victim_keeps_them(urgent: int):
    lab = Lab(blocks=12, block_size=4, slots=4, max_displacements=99)
    lab.add(BULK, tokens(32), max_tokens=8)  # eight blocks and soon a ninth
    lab.step()
    victim = lab.state.get(0)
    shared = list(victim.block_table)
    for number in range(urgent):
        lab.add(INTERACTIVE, [*tokens(28), *tokens(8, seed=number + 1)], max_tokens=2)
    plan = lab.step()
    head = lab.state.get(1)
    assert head.block_table[:7] == shared[:7]
    assert cached(head) == 28
    if plan.displaced:
        assert not victim.block_table
        assert all(lab.state.pool.references(block) for block in shared[:7])
    lab.run()
    assert len(lab.outputs) == 1 + urgent


def test_who_is_displaced_resumes_from_what_is_left_of_it():
    lab = Lab(blocks=32, block_size=4, slots=1)
    bulk = lab.add(BULK, tokens(30), max_tokens=20)
    for _ in range(6):
        lab.step()
    length = len(bulk)
    lab.add(INTERACTIVE, tokens(6, seed=1), max_tokens=1)
    lab.step()
    assert bulk.displacements == 1
    plan = lab.step()
    (row,) = plan.rows
    assert (row.request_id, row.start) == (0, (length - 1) // 4 * 4)
    lab.run()


def test_a_head_that_is_not_admitted_takes_nothing():
    lab = Lab(blocks=10, block_size=4, slots=4)
    lab.add(INTERACTIVE, tokens(9, seed=1), max_tokens=1)
    lab.run()
    lab.add(INTERACTIVE, tokens(24), max_tokens=8)
    lab.step()
    free = lab.state.pool.num_free
    lab.add(INTERACTIVE, [*tokens(8, seed=1), *tokens(16, seed=2)], max_tokens=8)
    plan = lab.step()
    assert plan.held == {INTERACTIVE: Hold.BLOCKS}
    assert not plan.matched
    assert lab.state.pool.num_free in (free, free - 1)
    lab.run()


# Displacement


@pytest.mark.parametrize("blocks", [1, 2, 3, 4])
@pytest.mark.parametrize("extra", [0, 1, 2])
@pytest.mark.parametrize("evicted", [False, True])
def test_displaced_around_the_end_of_a_block_it_loses_no_token(blocks: int, extra: int, evicted: bool):
    """GeeeekExplorer/nano-vllm#144, #217, #233: displaced at k blocks and a token, it lost one on return."""
    lab = Lab(blocks=16, block_size=4, slots=2)
    seq = lab.add(BULK, tokens(3), max_tokens=24)
    while len(seq) < 4 * blocks + extra or not lab.steps:
        lab.step()
    lab.state.displace(seq.request_id)
    if evicted:  # somebody needs all the room meanwhile
        table = lab.state.pool.allocate(16, INTERACTIVE)
        lab.state.pool.release(table, INTERACTIVE)
    length = len(seq)
    (row,) = lab.step().rows
    assert row.start == (0 if evicted else (length - 1) // 4 * 4)
    assert row.start + row.count == length
    lab.run()
    assert lab.outputs[0] == oracle(tokens(3), 24)


def test_samples_of_one_prompt_keep_its_blocks_when_one_of_them_is_displaced():
    """vllm-project/vllm#8844: several samples of a prompt, one displaced, and the engine died."""
    lab = Lab(blocks=32, block_size=4, slots=4)
    first = lab.add(BULK, tokens(17), max_tokens=12)
    lab.step()
    second = lab.add(BULK, tokens(17), max_tokens=12, kin=first)
    lab.step()
    prompt = first.block_table[:4]
    assert [lab.state.pool.references(block) for block in prompt] == [2] * 4
    lab.state.displace(first.request_id)
    lab.state.check()
    assert [lab.state.pool.references(block) for block in prompt] == [1] * 4
    lab.step()
    assert first.block_table[:4] == second.block_table[:4] == prompt
    lab.run()
    assert lab.outputs[0] == lab.outputs[1] == oracle(tokens(17), 12)


def test_random_requests_that_are_displaced_all_the_time():
    """GeeeekExplorer/nano-vllm#211: 512 random requests in a tiny pool ended in an index error."""
    rng = random.Random(7)
    lab = Lab(blocks=12, block_size=4, slots=6, stall=10_000, max_displacements=20)
    state = lab.state
    while len(lab.asked) < 512 or state.has_work:
        while sum(map(len, state.waiting.values())) < 8 and len(lab.asked) < 512:
            prompt = tokens(rng.randint(1, 30), seed=len(lab.asked) % 5)
            lab.add(rng.choice([INTERACTIVE, BULK]), prompt, max_tokens=rng.randint(1, 18))
        if rng.random() < 0.3 and (running := [*state.running[INTERACTIVE], *state.running[BULK]]):
            state.displace(rng.choice(running))
        lab.step()
    assert len(lab.outputs) == 512
    assert state.pool.num_free == 12


# Eviction


@pytest.mark.parametrize("seed", range(4))
def test_a_storm_of_cancels_and_evictions_over_shared_prefixes(seed: int):
    """vllm-project/vllm#37076, #39146: with the pool full, outputs differed, or repeated the first token."""
    rng = random.Random(seed)
    lab = Lab(blocks=20, block_size=4, slots=6, tokens=48, stall=2000)
    families = [tokens(24, seed=number) for number in range(4)]
    for _ in range(600):
        while len(lab.state.waiting[BULK]) + len(lab.state.waiting[INTERACTIVE]) < 6:
            prompt = [
                *rng.choice(families)[: rng.choice([8, 9, 16, 23, 24])],
                *tokens(rng.choice([0, 1, 5]), seed),
            ]
            traffic = rng.choice([BULK, INTERACTIVE])
            lab.add(traffic, prompt, max_tokens=rng.randint(1, 12), salt=rng.choice([None, None, "a"]))
        if rng.random() < 0.3:
            lab.cancel(rng.choice([seq.request_id for seq in lab.state.sequences()]))
        lab.step()
    lab.run()
    assert len(lab.outputs) > 100
    assert lab.state.pool.evictions > 100
    hits = sum(len(blocks) for plan in lab.plans for blocks in plan.matched.values())
    assert hits > 100


def test_bulk_evicts_nothing_of_interactives_share():
    lab = Lab(blocks=32, block_size=4, slots=8, tokens=128, interactive_blocks=10)
    lab.add(INTERACTIVE, tokens(40), max_tokens=1)
    lab.run()
    for number in range(30):
        lab.add(BULK, tokens(20, seed=number + 1), max_tokens=12)
    while lab.state.has_work:
        lab.step()
        assert lab.state.pool.num_cached(INTERACTIVE) == 10
    assert len(lab.outputs) == 31


def test_what_interactive_has_beyond_its_share_bulk_may_take():
    lab = Lab(blocks=32, block_size=4, slots=8, tokens=128, interactive_blocks=4)
    lab.add(INTERACTIVE, tokens(100), max_tokens=1)
    lab.run()
    assert lab.state.pool.num_cached(INTERACTIVE) == 25
    lab.add(BULK, tokens(110, seed=1), max_tokens=2)
    lab.run()
    assert lab.state.pool.num_cached(INTERACTIVE) == 4
    assert lab.state.pool.match(tokens(100), None, 99) == lab.state.pool.match(tokens(16), None, 4)
    assert len(lab.state.pool.match(tokens(100), None, 99)) == 4, "the beginning is what is left"


def test_running_interactive_requests_count_against_the_share():
    lab = Lab(blocks=32, block_size=4, slots=8, tokens=128, interactive_blocks=10)
    lab.add(INTERACTIVE, tokens(40), max_tokens=1)
    lab.run()
    lab.add(INTERACTIVE, tokens(20, seed=1), max_tokens=4)  # holds five or six of the ten
    lab.step()
    lab.add(BULK, tokens(80, seed=2), max_tokens=8)
    lab.step()
    assert 0 in lab.state.running[BULK] or 2 in lab.state.running[BULK]
    assert lab.state.pool.num_cached(INTERACTIVE) >= 10 - lab.state.pool.num_held(INTERACTIVE)
    lab.run()


def test_a_prefix_of_bulks_becomes_interactives_when_that_uses_it():
    lab = Lab(blocks=32, block_size=4, slots=8, tokens=128, interactive_blocks=8)
    lab.add(BULK, tokens(25), max_tokens=1)
    lab.run()
    assert lab.state.pool.num_cached(BULK) == 6
    lab.add(INTERACTIVE, tokens(25), max_tokens=1)
    lab.run()
    assert lab.state.pool.num_cached(INTERACTIVE) == 6
    for number in range(20):
        lab.add(BULK, tokens(20, seed=number + 1), max_tokens=12)
    lab.run()
    assert len(lab.state.pool.match(tokens(24), None, 99)) == 6


def hit_rate(share: int) -> float:
    """Of a prompt that interactive requests have in common, how much is cached while bulk floods the engine."""
    lab = Lab(blocks=64, block_size=4, slots=24, tokens=512, interactive_slots=2, interactive_blocks=share)
    prefix, asked, flood = tokens(60), [], 0
    for step in range(200):
        while len(lab.state.waiting[BULK]) < 20:
            flood += 1
            lab.add(BULK, tokens(14, seed=flood), max_tokens=2)  # four blocks
        if step % 10 == 0:
            asked.append(lab.add(INTERACTIVE, [*prefix, *tokens(2, seed=-step - 1)], max_tokens=2))
        lab.step()
    assert sum(1 for number in lab.outputs if lab.state.find(number) is None) > 200, "the flood never ebbed"
    return sum(map(cached, asked)) / (len(asked) * len(prefix))


def test_a_flood_of_bulk_leaves_interactives_prefix_cached_and_without_the_share_it_does_not():
    assert hit_rate(share=16) >= 0.9
    assert hit_rate(share=0) < 0.2
