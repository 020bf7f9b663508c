from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.localengine.scheduling.cost import CostModel, StepCost, StepLoad

TRUTH = StepCost(base=0.02, per_prefill_token=0.0009, per_decode_row=0.0011, per_kv_token=2e-6)


def loads(seed: int, *, prefill: bool = True):
    rng = random.Random(seed)
    while True:
        rows = rng.randint(0, 16)
        tokens = rng.choice([0, 0, 16, 32, 64, 200]) if prefill else 0
        yield StepLoad(tokens, rows, rows * rng.randint(20, 400) + tokens)


def teach(model: CostModel, truth: StepCost, steps: int, *, seed: int = 1, noise: float = 0.05, prefill=True):
    rng = random.Random(seed)
    for _, load in zip(range(steps), loads(seed, prefill=prefill), strict=False):
        model.observe(load, truth.predict(load) * rng.gauss(1, noise))


def worst_error(model: CostModel, truth: StepCost, *, prefill: bool = True) -> float:
    pairs = list(zip(range(100), loads(99, prefill=prefill), strict=False))
    return max(abs(model.cost.predict(load) / truth.predict(load) - 1) for _, load in pairs)


def test_a_row_can_be_taken_out_again():
    load = StepLoad(5, 1, 40)
    assert load.plus_decode(7) == StepLoad(5, 2, 48)
    assert load.plus_prefill(7, 3) == StepLoad(8, 1, 50)
    assert load.plus_prefill(7, 3) - StepLoad().plus_prefill(7, 3) == load
    assert load.plus_decode(7) - StepLoad().plus_decode(7) == load


def test_room_is_the_inverse_of_the_prediction():
    cost = StepCost()
    room = cost.prefill_room(0.1)
    assert cost.predict(StepLoad(100, 0, 100)) - cost.base == pytest.approx(0.1 * 100 / room)
    assert cost.prefill_room(0) == cost.prefill_room(-1) == 0
    assert cost.prefill_room(math.inf) == math.inf
    assert StepCost(0.1, 0, 0, 0).prefill_room(1) == math.inf


@pytest.mark.parametrize("factor", [0.02, 1, 8])
def test_it_learns_machines_of_any_speed(factor):
    truth = StepCost(*(factor * value for value in (0.02, 0.0009, 0.0011, 2e-6)))
    model = CostModel()
    teach(model, truth, 150)
    assert worst_error(model, truth) < 0.2


def test_it_follows_a_machine_that_slows_down():
    model = CostModel()
    teach(model, TRUTH, 100)
    slower = StepCost(*(3 * value for value in (0.02, 0.0009, 0.0011, 2e-6)))
    teach(model, slower, 100, seed=2)
    assert worst_error(model, slower) < 0.2


def test_one_hiccup_teaches_nothing():
    model = CostModel()
    teach(model, TRUTH, 100)
    before = worst_error(model, TRUTH)
    model.observe(StepLoad(0, 8, 1000), 30.0)
    assert worst_error(model, TRUTH) < before + 0.1


def test_decoding_for_hours_does_not_make_it_forget_what_prefill_costs():
    model = CostModel()
    teach(model, TRUTH, 200)
    learned = model.cost.per_prefill_token
    teach(model, TRUTH, 3000, seed=3, prefill=False)
    assert model.cost.per_prefill_token == pytest.approx(learned, rel=0.25)


@pytest.mark.parametrize("seed", range(3))
def test_steps_that_are_all_filled_up_to_one_bound_do_not_make_it_drift(seed):
    """What of a step is fixed cannot be read from steps that all take the same time, on a machine that wavers."""
    truth = StepCost(base=0.05, per_prefill_token=0.0017, per_decode_row=0.0022, per_kv_token=8e-6)
    rng = random.Random(seed)
    model = CostModel()
    bound, rows, context, wave = 0.14, 8, 200, 0.0
    for step in range(1500):
        rows = min(15, max(1, rows + rng.choice((-1, 0, 0, 1))))
        context = min(320, max(120, context + rng.randint(-10, 10)))
        decoding = StepLoad(0, rows, rows * context)
        prefill = int(min(256.0, max(0.0, model.cost.prefill_room(bound - model.cost.predict(decoding)))))
        load = decoding.plus_prefill(40, prefill)
        wave = 0.97 * wave + rng.gauss(0, 0.02)  # faster and slower for seconds at a time
        model.observe(load, truth.predict(load) * math.exp(wave + rng.gauss(0, 0.1)))
        if step > 100:
            assert 0.5 * truth.base < model.cost.base < 1.7 * truth.base
            assert 0.7 < math.exp(wave) * truth.predict(load) / model.cost.predict(load) < 1.4


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_what_is_no_duration_is_ignored(seconds):
    model = CostModel()
    before = model.cost
    model.observe(StepLoad(1, 1, 1), seconds)
    assert model.cost == before


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 512), st.integers(0, 32), st.integers(0, 10_000), st.floats(0, 100)),
        min_size=1,
        max_size=40,
    )
)
def test_coefficients_are_never_negative_nor_infinite(steps):
    model = CostModel()
    for prefill, rows, kv, seconds in steps:
        model.observe(StepLoad(prefill, rows, kv), seconds)
        cost = model.cost
        values = (cost.base, cost.per_prefill_token, cost.per_decode_row, cost.per_kv_token)
        assert all(math.isfinite(value) and value >= 0 for value in values)
