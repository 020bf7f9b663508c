"""How far an estimate is off."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestra.policies.calibration import Calibration


def test_it_believes_the_estimate_at_first() -> None:
    assert Calibration().factor == 1.0


def test_one_count_tells_most_of_it() -> None:
    calibration = Calibration()
    calibration.observe(100.0, 300.0)
    assert 2.7 < calibration.factor < 3.0


def test_a_tiny_count_tells_little() -> None:
    calibration = Calibration()
    calibration.observe(1.0, 30.0)
    assert calibration.factor < 4.0
    calibration.observe(100.0, 100.0)
    assert calibration.factor < 1.4


def test_it_is_never_lowered_below_the_estimate() -> None:
    calibration = Calibration()
    for _ in range(1000):
        calibration.observe(300.0, 100.0)
    assert calibration.factor == 1.0


def test_it_follows_what_changes() -> None:
    calibration = Calibration()
    for _ in range(500):
        calibration.observe(100.0, 100.0)
    for _ in range(100):
        calibration.observe(100.0, 300.0)
    assert 2.6 < calibration.factor < 3.0
    for _ in range(200):
        calibration.observe(100.0, 100.0)
    assert calibration.factor < 1.1


@given(st.lists(st.tuples(st.floats(0.1, 1e6), st.floats(0.1, 1e6)), max_size=60))
def test_it_stays_within_its_bounds(counts: list[tuple[float, float]]) -> None:
    calibration = Calibration()
    for estimated, counted in counts:
        calibration.observe(estimated, counted)
        assert 1.0 <= calibration.factor <= 4.0
