"""The hedging benchmark, on fewer calls: what it shows, and that its time is not the machine's."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import hedging


def test_the_slowest_percent_is_halved_for_five_percent_more_requests():
    plain = hedging.run(0.0, calls=3000)
    hedged = hedging.run(0.05, calls=3000)
    assert plain["extra_requests"] == 0
    assert 0.02 < hedged["extra_requests"] <= 0.05
    assert hedged["p99_s"] <= plain["p99_s"] / 2
    assert hedged["p50_s"] <= plain["p50_s"] * 1.05
    assert hedging.run(0.05, calls=3000) == hedged
