"""How far running sequences are expected to grow, and what admission makes of it."""

from __future__ import annotations

import pytest
from engine_lab import BULK, GREEDY, INTERACTIVE, Lab
from hypothesis import given
from hypothesis import strategies as st

from orchestra.localengine.scheduling.growth import GrowthModel, peak_blocks
from orchestra.localengine.scheduling.sequence import Sequence
from orchestra.policies.traffic import TrafficClass


def sequence(output: int, max_tokens: int, traffic: TrafficClass = BULK) -> Sequence:
    """One that has drawn ``output`` tokens of at most ``max_tokens``."""
    seq = Sequence(
        request_id=0, traffic=traffic, arrival=0, token_ids=[1, 2], max_tokens=max_tokens, sampling=GREEDY
    )
    seq.token_ids += [5] * output
    return seq


# The length of outputs


def test_nothing_is_expected_where_nothing_is_known():
    model = GrowthModel()
    assert model.remaining(sequence(0, 1000)) == 1
    model.observe(sequence(500, 500, INTERACTIVE))
    assert model.remaining(sequence(0, 1000, BULK)) == 1, "the classes tell nothing about each other"


def test_outputs_that_always_come_to_the_same_share_are_expected_to():
    model = GrowthModel()
    for _ in range(5):
        model.observe(sequence(25, 100))
    assert model.remaining(sequence(0, 400)) == 100
    assert model.remaining(sequence(60, 400)) == 40
    assert model.remaining(sequence(100, 400)) == model.remaining(sequence(300, 400)) == 1, "longer than expected"


def test_where_lengths_differ_a_long_output_is_expected():
    model = GrowthModel()
    for number in range(200):
        model.observe(sequence(10 if number % 2 else 50, 100))
    assert 40 <= model.remaining(sequence(0, 100)) <= 55  # the mean is 30, the deviation 20


def test_no_more_is_expected_than_was_asked_for():
    model = GrowthModel()
    for number in range(50):
        model.observe(sequence(100 if number % 2 else 1, 100))
    model.observe(sequence(300, 100))
    assert model.remaining(sequence(3, 20)) <= 17


def test_a_lasting_change_is_learned():
    model = GrowthModel()
    for output, expected in ((100, 100), (10, 10)):
        for _ in range(100):
            model.observe(sequence(output, 100))
        assert model.remaining(sequence(0, 100)) == pytest.approx(expected, abs=2)


# The most blocks at once


def simulated_peak(growing: list[tuple[int, int]], block_size: int) -> int:
    """Count the blocks after every single step."""
    steps = max((left for _, left in growing), default=0)
    return max(
        sum(-(-(length + step) // block_size) for length, left in growing if step <= left)
        for step in range(steps + 1)
    )


def test_who_ends_first_makes_room_for_the_others():
    assert peak_blocks([(1, 1), (1, 3)], 1) == 4  # two of 2, then the second alone comes to 4
    assert peak_blocks([(4, 12), (4, 12)], 4) == 8
    assert peak_blocks([], 4) == 0


def test_tokens_that_fit_the_last_block_need_no_other():
    assert peak_blocks([(30, 2)] * 8, 4) == 64


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=8),
    st.sampled_from([1, 4, 16]),
)
def test_the_peak_is_that_of_a_simulation_or_less_than_a_block_each_above(
    growing: list[tuple[int, int]], block_size: int
):
    told, true = peak_blocks(growing, block_size), simulated_peak(growing, block_size)
    assert true <= told < true + len(growing)
    if block_size == 1:
        assert told == true


# Admission


def admitted_at_once(share: float) -> int:
    """How many of twenty requests run at once where outputs came to ``share`` of their bound so far."""
    lab = Lab(blocks=60, block_size=4, slots=20, tokens=200)
    for _ in range(5):
        lab.state.growth.observe(sequence(round(100 * share), 100))
    for _ in range(20):
        lab.add(BULK, 4, max_tokens=36)
    lab.step()
    return len(lab.state.running[BULK])


def test_the_shorter_outputs_turn_out_the_more_is_admitted():
    counts = [admitted_at_once(share) for share in (1.0, 0.5, 0.1)]
    assert counts == sorted(counts)
    assert counts[0] == 6, "ten blocks each"
    assert counts[-1] == 20


def test_once_lengths_are_known_nobody_is_displaced_by_growth_and_the_pool_is_well_used():
    lab = Lab(blocks=40, block_size=4, slots=16, tokens=200, stall=2000)
    for _ in range(10):
        lab.add(BULK, 4, max_tokens=36)
    while lab.state.growth.remaining(sequence(0, 36)) != 36:
        lab.step()
    lab.run()
    learning = sum(len(plan.displaced) for plan in lab.plans)
    assert learning, "else there is nothing to learn"
    for _ in range(30):
        lab.add(BULK, 4, max_tokens=36)
    steps = held = 0
    while lab.state.waiting[BULK]:
        lab.step()
        steps += 1
        held += lab.state.pool.num_held(BULK)
    lab.run()
    assert sum(len(plan.displaced) for plan in lab.plans) == learning
    assert held / steps > 0.45 * 40


@pytest.mark.parametrize("traffic", [BULK, INTERACTIVE])
def test_the_first_of_a_class_is_admitted_whatever_is_expected(traffic: TrafficClass):
    lab = Lab(blocks=10, block_size=4)
    for _ in range(5):
        lab.state.growth.observe(sequence(100, 100, traffic))
    lab.add(traffic, 4, max_tokens=36)
    assert lab.step().admitted == (0,)
    lab.run()
