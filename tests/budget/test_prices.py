"""What calls cost, and what work will cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.budget import CostRange, batch_factor, cost, estimate
from orchestra.call import Usage
from orchestra.config import PriceConfig

PRICE = PriceConfig(models=("gpt-*",), input=1.0, cached_input=0.25, output=4.0)
tokens = st.integers(0, 10**9)
factors = st.floats(0.0, 2.0)


def test_a_batch_costs_its_share_of_everything():
    usage = Usage(1_000_000, 500_000, cached_tokens=400_000)
    assert cost(PRICE, usage, 0.5) == pytest.approx((0.6 + 0.1 + 2.0) / 2)


def test_the_settings_know_better_than_the_documentation():
    assert batch_factor(PRICE, 0.5) == 0.5
    assert batch_factor(PRICE.model_copy(update={"tiers": {"batch": 0.6}}), 0.5) == 0.6
    assert batch_factor(PRICE.model_copy(update={"tiers": {"batch": 0.0}}), 0.5) == 0.0, "free is a price"
    assert batch_factor(None, 0.5) == 0.5


def test_an_unknown_price_is_not_guessed():
    assert estimate(None, 1_000_000, 1_000_000) is None


def test_from_no_answer_at_all_to_the_longest_ones():
    assert estimate(PRICE, 1_000_000, 500_000) == CostRange(1.0, 3.0)
    assert estimate(PRICE, 1_000_000, 500_000, least_factor=0.5) == CostRange(0.5, 3.0)
    assert estimate(PRICE, 1_000_000, 500_000, least_factor=0.5, most_factor=0.5) == CostRange(0.5, 1.5)


def test_answers_that_nothing_bounds_have_no_highest_cost():
    assert estimate(PRICE, 1_000_000, None) == CostRange(1.0, None)


def test_parts_add_up():
    assert CostRange(1.0, 3.0) + CostRange(0.5, 1.0) == CostRange(1.5, 4.0)
    assert CostRange(1.0, None) + CostRange(0.5, 1.0) == CostRange(1.5, None)
    assert CostRange(1.0, 2.0) + CostRange(0.5, None) == CostRange(1.5, None)


@given(tokens, tokens, st.floats(0.0, 1.0), factors)
def test_what_it_comes_to_lies_between(given_tokens, most, share, factor):
    low_to_high = estimate(PRICE, given_tokens, most, least_factor=min(factor, 1.0), most_factor=max(factor, 1.0))
    assert low_to_high is not None
    assert low_to_high.high is not None
    came_to = cost(PRICE, Usage(given_tokens, int(share * most)), factor)
    assert low_to_high.low <= came_to * (1 + 1e-9)
    assert came_to <= low_to_high.high * (1 + 1e-9)
