"""The benchmark of two classes on one engine, over a model that costs nothing: it counts and judges right."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from engine_lab import Bench

from orchestra.localengine import EngineConfig, LocalEngine, Timing
from orchestra.localengine.config import SchedulerName

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import mixed_classes
from mixed_classes import SETTINGS, Load, Measured


def open_engine(scheduler: SchedulerName) -> LocalEngine:
    return Bench(EngineConfig(scheduler=scheduler), blocks=400, context=600, seconds=0.001).engine


def test_every_setting_is_measured_round_by_round() -> None:
    lines: list[dict[str, Any]] = []
    load = Load(arrivals=4, per_second=40, prompt=10, output=5, bulk=3, warm_up=0.05)
    results = mixed_classes.run(open_engine, list(SETTINGS), load, 2, lines.append)
    assert [(line["setting"], line["round"]) for line in lines] == [
        (name, number) for number in (1, 2) for name in SETTINGS
    ]
    for name, setting in SETTINGS.items():
        one = results[name]
        assert one["interactive"] == (8 if setting.interactive else 0)
        assert (one["ttft_p50_ms"] is not None) == setting.interactive
        assert (one["bulk_output_per_s"] > 0) == setting.bulk
        if setting.interactive:
            assert 0 < one["ttft_p50_ms"] <= one["ttft_p95_ms"]
            assert 0 < one["tpot_p50_ms"] <= one["tpot_p95_ms"]


def test_the_same_calls_come_at_the_same_moments() -> None:
    load = Load(arrivals=1000, per_second=0.3)
    times = load.timetable(1)
    assert times == load.timetable(1) != load.timetable(2)
    assert times == sorted(times)
    assert times[-1] == pytest.approx(load.seconds, rel=0.1)


def test_figures_are_of_all_phases_together() -> None:
    first = Measured([Timing(queue=0, ttft=0.1, tokens=(0.1, 0.2, 0.4))], 10, 100, 50, 1, 2)
    second = Measured([Timing(queue=0, ttft=0.3, tokens=(0.3, 0.4, 0.5))], 30, 100, 70, 3, 4)
    both = Measured.together([first, second]).figures()
    assert (both["ttft_p50_ms"], both["ttft_p95_ms"]) == (100, 300)
    assert (both["tpot_p50_ms"], both["tpot_p95_ms"], both["gap_p95_ms"]) == (100, 150, 200)
    assert (both["bulk_output_per_s"], both["bulk_prompt_per_s"]) == (5, 3)
    assert (both["displaced"], both["abandoned"]) == (4, 6)


@pytest.mark.parametrize(("ttft", "tpot", "speed"), [(201, 149, 90), (199, 151, 90), (199, 149, 79)])
def test_each_target_is_judged_by_itself(ttft: float, tpot: float, speed: float) -> None:
    results = {
        "alone": {"ttft_p95_ms": 100.0},
        "bulk": {"bulk_output_per_s": 100.0},
        "classes": {"ttft_p95_ms": ttft, "tpot_p95_ms": tpot, "bulk_output_per_s": speed},
    }
    assert [holds for *_, holds in mixed_classes.judge(results, 150)] == [ttft < 200, tpot < 150, speed > 80]
    assert mixed_classes.judge({"alone": results["alone"]}, 150) == []
    assert len(mixed_classes.judge({"classes": results["classes"]}, 150)) == 1
