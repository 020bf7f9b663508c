"""Percentiles by nearest rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.policies.rank import nearest_rank


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=40), st.floats(0, 1))
def test_it_is_the_smallest_value_that_so_many_do_not_exceed(values, share):
    found = nearest_rank(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6
    assert sum(value < found for value in values) < max(share * len(values), 1e-6)


def test_a_share_of_whole_values_is_no_more_than_it_says():
    assert [nearest_rank([4.0, 2.0, 1.0, 3.0], share) for share in (0.5, 0.95, 0.99)] == [2.0, 4.0, 4.0]
    assert nearest_rank(range(1, 1001), 99.9 / 100) == 999  # which comes to 0.9990000000000001
    with pytest.raises(ValueError, match="of nothing"):
        nearest_rank([], 0.5)
