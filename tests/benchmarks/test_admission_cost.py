"""The admission benchmark measures what it says, on small numbers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import admission


def test_every_measurement_gives_figures(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admission, "SIZES", (10, 50))
    alone = admission.uncontended(1, calls=20)
    # which of two times is longer is nothing that twenty calls on a shared machine can say
    assert alone["acquire_settle_us"] > 0
    assert alone["of_which_once_round_the_loop_us"] > 0
    growth = admission.against_waiters(1, calls=5)
    assert list(growth) == [10, 50]
    assert all(cost > 0 for costs in growth.values() for cost in costs.values())
    memory = admission.memory_a_waiter(500)
    assert 0 < memory["bytes_a_waiter"] < memory["bytes_a_waiter_with_its_task"]


async def test_the_live_pool_is_left_empty():
    figures = await admission.live_pool(1000, arrivals=3)
    assert 0 < figures["interactive_p50_us"] <= figures["interactive_p99_us"]
