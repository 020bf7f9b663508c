"""Comparisons of ways whose figures are known."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from bench_lab import measured

from orchestra.bench.results.comparison import Comparison, compare
from orchestra.bench.results.measurement import Measurement
from orchestra.bench.results.slo import Slo
from orchestra.bench.results.way import Way
from orchestra.policies.traffic import TrafficClass

__all__ = ["SLO", "compared"]

SLO = Slo.parse("ttft=600ms,tpot=1s")


def compared(slower: Mapping[Way, float] | None = None, *, rounds: int = 3, noise: float = 0.0) -> Comparison:
    """The comparison of ways that take so many times as long as others, for calls that differ widely."""
    lot = random.Random(1)

    def one(number: int, way: Way) -> list[Measurement]:
        pace = (slower or {}).get(way, 1.0) * math.exp(lot.gauss(0, noise))
        hard = random.Random(number)
        people = [hard.lognormvariate(-1, 1) * pace for _ in range(12)]
        return [
            *(measured(place, 3 * ttft, ttft=ttft) for place, ttft in enumerate(people)),
            *(measured(0.0, 40.0 * pace, traffic=TrafficClass.BULK, output_tokens=200) for _ in range(5)),
        ]

    measurements = [{way: one(number, way) for way in Way} for number in range(rounds)]
    alone = [measured(0.0, 0.3 + place / 100, ttft=0.1) for place in range(8)]
    return compare(measurements, alone, slo=SLO, span=12.0, full_batch=60.0)
