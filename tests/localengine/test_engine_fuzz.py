"""A seeded random driver over the scheduler: whatever arrives, is cancelled or displaced, the texts are right.

After every step the lab checks the books of the block pool, the limits of each class, the plan against the state,
that planning changes nothing, that nobody stalls or reads what was written under another salt, and every finished
output against the request's run alone. Prompts begin alike now and then, and the pool shrinks under them.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from engine_lab import BULK, INTERACTIVE, VOCABULARY, Lab
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestra.localengine.scheduling.cost import StepCost
from orchestra.policies.traffic import TrafficClass

COST = StepCost(base=10, per_prefill_token=1, per_decode_row=2, per_kv_token=0.01)
MOST_OUTPUT = 40


class Driver:
    """Draws a lab and the traffic for it from a seed."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        block_size = rng.choice([1, 2, 4, 8])
        blocks = rng.randint(8, 40)
        slots = rng.choice([1, 2, 4, 8])
        self.lab = Lab(
            blocks=blocks,
            block_size=block_size,
            slots=slots,
            tokens=rng.choice([slots, slots + 3, 32, 64]),
            cost=COST,
            ttft=rng.choice([1, 20, 60, 1e9]),
            tpot=rng.choice([1, 20, 60, 1e9]),
            stall=4000,
            interactive_slots=rng.randint(0, slots - 1),
            interactive_blocks=rng.randint(0, blocks // 3),
            bulk_min_share=rng.choice([0, 0, 0.1, 0.4]),
            max_displacements=rng.choice([0, 1, 3, 3, 100]),
            caching=rng.random() < 0.9,
        )
        self.rate = self.interactive = 0.5
        self.sharing = rng.choice([0.0, 0.5, 0.9])
        self.ends = rng.choice([0.01, 0.05, 0.2])
        self.misleads = rng.choice([0.0, 1.0])
        self.shrinks = rng.choice([0.0, 0.002, 0.02])
        self.least_blocks = rng.randint(4, blocks)
        self.families = [[rng.randrange(VOCABULARY) for _ in range(blocks * block_size)] for _ in range(3)]

    def run(self, steps: int) -> Lab:
        lab, rng = self.lab, self.rng
        for _ in range(steps):
            if rng.random() < 0.1:  # so that queues empty, bulk fills the engine, and interactive comes upon it
                self.rate, self.interactive = rng.choice([0, 0.1, 0.5, 1.5]), rng.choice([0, 0.1, 0.5, 0.9, 1])
            while rng.random() < self.rate / 2:
                traffic = INTERACTIVE if rng.random() < self.interactive else BULK
                if len(lab.state.waiting[traffic]) < 10:
                    self._arrive(traffic)
            if rng.random() < self.ends and (alive := list(lab.state.sequences())):
                seq = rng.choice(alive)
                if seq.num_output and rng.random() < self.misleads:
                    lab.state.growth.observe(seq)  # as if it had ended by itself, much sooner than others
                lab.cancel(seq.request_id)
            if rng.random() < 0.03 and (running := [*lab.state.running[BULK], *lab.state.running[INTERACTIVE]]):
                lab.state.displace(rng.choice(running))
            if rng.random() < self.shrinks and lab.state.pool.num_blocks > self.least_blocks:
                lab.shrink(min(rng.randint(1, 3), lab.state.pool.num_blocks - self.least_blocks))
            lab.step()
        lab.run(100_000)
        assert lab.state.pool.num_free == lab.state.pool.num_blocks
        return lab

    def _arrive(self, traffic: TrafficClass) -> None:
        """One more request, or several of one prompt."""
        lab, rng = self.lab, self.rng
        room = lab.state.capacity(traffic)
        size = lab.state.pool.block_size
        longest = rng.choice([size, size, 2 * size, 2 * size, 3 * size, room - 1])
        length = rng.choice([longest, longest + 1, longest - 1, rng.randint(1, longest)])
        length = min(max(1, length), room - 1)
        output = min(
            rng.choice([1, size + 1, rng.randint(1, 12), rng.randint(1, room)]), room - length, MOST_OUTPUT
        )
        first = lab.add(traffic, self._prompt(length), max_tokens=output, salt=rng.choice([None, None, "a", "b"]))
        for _ in range(rng.choice([0, 0, 0, 1, 4])):  # more completions of the same prompt
            lab.add(traffic, first.token_ids[:length], max_tokens=rng.randint(1, output), kin=first)

    def _prompt(self, length: int) -> int | list[int]:
        """One that begins like others, perhaps after what one of them has said, or of its own."""
        rng = self.rng
        if rng.random() >= self.sharing:
            return length
        begun = rng.choice(self.families)
        if rng.random() < 0.3 and (alive := [seq.token_ids for seq in self.lab.state.sequences()]):
            begun = rng.choice(alive)
        kept = begun[: rng.choice([length, rng.randint(0, length)])]
        return [*kept, *(rng.randrange(VOCABULARY) for _ in range(length - len(kept)))]


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(20))
def test_random_traffic(seed: int, soak: Callable[[int], int]):
    assert Driver(seed).run(soak(10_000)).outputs


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
    alike=st.booleans(),
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
    alike=False,
)
def test_every_small_workload_ends_well(arrivals, blocks, slots, tokens, bound, share, alike):
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
        first = lab.add(traffic, list(range(prompt)) if alike else prompt, max_tokens=output)
        for _ in range(pause):
            lab.step()
        for _ in range(n - 1):
            lab.add(traffic, lab.asked[first.request_id][0], max_tokens=output, kin=first)
    lab.run()
    assert len(lab.outputs) == len(lab.asked) == sum(n for *_, n in arrivals)
