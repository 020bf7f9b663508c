"""A seeded random driver over the scheduler: whatever arrives, is cancelled or displaced, the texts are right.

After every step the lab checks the books of the block pool, the limits of each class, the plan against the state,
that planning changes nothing, that nobody stalls, and every finished output against the request's run alone.
"""

from __future__ import annotations

import random

import pytest
from engine_lab import BULK, INTERACTIVE, Lab
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestra.localengine.cost import StepCost

COST = StepCost(base=10, per_prefill_token=1, per_decode_row=2, per_kv_token=0.01)


def drive(seed: int, steps: int) -> Lab:
    rng = random.Random(seed)
    block_size = rng.choice([1, 2, 4, 8])
    blocks = rng.randint(8, 40)
    slots = rng.randint(1, 8)
    lab = Lab(
        blocks=blocks,
        block_size=block_size,
        slots=slots,
        tokens=rng.choice([slots, slots + 3, 32, 64]),
        cost=COST,
        ttft=rng.choice([1, 15, 30, 1e9]),
        tpot=rng.choice([1, 15, 30, 1e9]),
        stall=4000,
        interactive_slots=rng.randint(0, slots - 1),
        interactive_blocks=rng.randint(0, blocks // 3),
        bulk_min_share=rng.choice([0, 0, 0.1, 0.4]),
        max_displacements=rng.choice([0, 1, 3, 100]),
    )
    rate = rng.choice([0.1, 0.5, 1.5])
    share = rng.choice([0.1, 0.5, 0.9])
    for _ in range(steps):
        # arrivals pause now and then, so that queues empty and bulk gets its turn
        while len(lab.state.waiting[BULK]) + len(lab.state.waiting[INTERACTIVE]) < 20 and rng.random() < rate / 2:
            traffic = INTERACTIVE if rng.random() < share else BULK
            room = lab.state.capacity(traffic)
            longest = rng.choice([block_size, 2 * block_size, room - 1])
            length = rng.choice([longest, longest + 1, longest - 1, rng.randint(1, longest)])
            length = min(max(1, length), room - 1)
            output = rng.choice([1, rng.randint(1, room - length), min(room - length, block_size + 1)])
            first = lab.add(traffic, length, max_tokens=min(output, 40))
            for _ in range(rng.choice([0, 0, 0, 1, 4])):  # more completions of the same prompt
                lab.add(traffic, first.token_ids[:length], max_tokens=rng.randint(1, min(output, 40)), kin=first)
        if rng.random() < 0.05 and (alive := [seq.request_id for seq in lab.state.sequences()]):
            lab.cancel(rng.choice(alive))
        if rng.random() < 0.03 and (running := [*lab.state.running[BULK], *lab.state.running[INTERACTIVE]]):
            lab.state.displace(rng.choice(running))
        lab.step()
    lab.run(100_000)
    assert lab.state.pool.num_free == blocks
    return lab


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(20))
def test_random_traffic(seed, soak):
    assert drive(seed, soak(10_000)).outputs


@settings(max_examples=60, deadline=None)
@given(
    arrivals=st.lists(
        st.tuples(
            st.sampled_from([INTERACTIVE, BULK]),
            st.integers(1, 20),
            st.integers(1, 12),
            st.integers(0, 3),
            st.sampled_from([1, 1, 2, 5]),
        ),
        min_size=1,
        max_size=12,
    ),
    blocks=st.integers(8, 20),
    slots=st.integers(1, 5),
    tokens=st.integers(5, 40),
    bound=st.sampled_from([1, 16, 40, 1e9]),
    share=st.sampled_from([0.0, 0.3]),
)
@example(
    arrivals=[
        (INTERACTIVE, 1, 7, 0, 5),
        (INTERACTIVE, 1, 8, 0, 1),
        (INTERACTIVE, 1, 3, 0, 1),
        (BULK, 18, 10, 0, 5),
        (INTERACTIVE, 8, 9, 0, 5),
        (INTERACTIVE, 1, 4, 0, 1),
        (INTERACTIVE, 1, 1, 0, 1),
        (BULK, 19, 1, 0, 5),
    ],
    blocks=8,
    slots=1,
    tokens=5,
    bound=1,
    share=0.3,
)
def test_every_small_workload_ends_well(arrivals, blocks, slots, tokens, bound, share):
    lab = Lab(
        blocks=blocks,
        block_size=4,
        slots=slots,
        tokens=tokens,
        cost=COST,
        ttft=bound,
        tpot=bound,
        bulk_min_share=share,
        # beside the 200 of ever, what further completions of a prompt may compute before it, twice if displaced
        stall=200 + 2 * sum((n - 1) * (prompt + output) for _, prompt, output, _, n in arrivals),
    )
    for traffic, prompt, output, pause, n in arrivals:
        first = lab.add(traffic, prompt, max_tokens=output)
        for _ in range(pause):
            lab.step()
        for _ in range(n - 1):
            lab.add(traffic, lab.asked[first.request_id][0], max_tokens=output, kin=first)
    lab.run()
    assert len(lab.outputs) == len(lab.asked) == sum(n for *_, n in arrivals)
