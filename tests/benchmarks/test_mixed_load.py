"""The mixed-load benchmark counts right, and runs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from mixed.peers import CLIENTS  # noqa: E402 - it is no installed package
from mixed.report import judge  # noqa: E402
from mixed.scenario import VARIANTS  # noqa: E402
from mixed.score import score  # noqa: E402

BASE = VARIANTS["base"]


def client(calls: list[list[float | None]], bulk: int = 0) -> dict[str, Any]:
    return {
        "interactive": calls,
        "bulk_answered": bulk,
        "failed": {"interactive": 0, "bulk": 0},
        "errors": {},
        "cpu_s": 1.0,
        "handing_over_s": 0.5,
        "longest_gap_ms": 3.0,
        "memory_mb": 100,
    }


def seen(hits: list[tuple[float, int, float]]) -> dict[str, Any]:
    return {"hits": hits, "peak": 1, "started": 0.0}


def test_a_call_that_was_never_answered_counts_as_waiting_to_the_end():
    served = 100.0 + BASE.service
    result = score(BASE, 90.0, seen([]), [client([[100.0, served + 0.02], [100.0, None]])])
    assert result["wait"]["p50"] == pytest.approx(0.02)
    assert result["wait"]["p99"] == pytest.approx(90.0 + BASE.seconds + BASE.grace - served)
    assert result["interactive"] == {"asked": 2, "answered": 1, "failed": 0}


def test_use_is_that_of_the_scarcer_limit_after_the_warm_up():
    window = BASE.seconds - 5
    hits = [(1.0, 200, 0.0)] * 100
    hits += [(5.0 + number / 10, 200, 75.0) for number in range(round(window * 10))]
    result = score(BASE, 0.0, seen(hits), [client([])])
    assert result["used"] == pytest.approx(1.0)
    dearer = [(at, status, tokens * 4) for at, status, tokens in hits]
    assert score(BASE, 0.0, seen(dearer), [client([])])["used"] == pytest.approx(2.0)


def test_refusals_count_from_the_first_call_and_use_nothing():
    hits = [(-1.0, 429, 0.0), (10.0, 200, 1.0), (10.0, 429, 0.0), (10.0, 200, 1.0)]
    result = score(BASE, 0.0, seen(hits), [client([])])
    assert result["refused"] == {"calls": 2, "share": 0.5}
    assert result["used"] == pytest.approx(2 / 350, abs=1e-4)


def test_what_a_tenant_takes_is_used():
    scenario = VARIANTS["tenant-alternating"]
    assert score(scenario, 0.0, seen([]), [client([])])["used"] == pytest.approx(0.8 * 25 / 55, abs=1e-3)


def test_changing_limits_are_judged_after_each_change():
    scenario = VARIANTS["changing"]
    assert scenario.windows() == [(35.0, 50.0), (65.0, 80.0)]
    hits = [(35.0 + number / 5, 200, 1.0) for number in range(75)]
    hits += [(65.0 + number / 10, 200, 1.0) for number in range(150)]
    assert score(scenario, 0.0, seen(hits), [client([])])["used"] == pytest.approx(1.0)
    hits += [(70.0, 429, 0.0)] * 150
    assert score(scenario, 0.0, seen(hits), [client([])])["refused"]["share"] == pytest.approx(0.5)


def test_targets_are_judged_against_the_best_peer():
    burst = [(1.0, 200, 1.0)] * 50
    good = score(BASE, 0.0, seen([*burst, *[(9.0, 200, 1.0)] * 99]), [client([[0.0, BASE.service]])])
    better = score(BASE, 0.0, seen([(9.0, 200, 1.0)] * 105), [client([[0.0, BASE.service]])])
    assert (good["served"], better["served"]) == (99, 105), "the burst before the warm-up is over does not count"
    verdicts = {what: holds for what, _, _, holds in judge(BASE, {"orchestra": good, "peer": better})}
    assert verdicts["interactive wait p99"]
    assert not verdicts["calls served"]
    assert not verdicts["limit used"]


def test_every_client_has_its_script_and_every_variant_can_be_carried():
    for one in CLIENTS.values():
        assert (BENCHMARKS / "mixed" / "clients" / one.script).exists()
    for scenario in VARIANTS.values():
        assert scenario.arrivals() == sorted(scenario.arrivals())
        loads = [scenario.load("http://x/v1", process) for process in range(scenario.processes)]
        assert sum(len(load["arrivals"]) for load in loads) == len(scenario.arrivals())
        json.dumps(loads)


@pytest.mark.timeout(300)
def test_it_runs_and_tells_json(tmp_path: Path):
    command = [sys.executable, str(BENCHMARKS / "mixed_load.py"), "--only", "orchestra", "--seconds", "1"]
    done = subprocess.run(
        [*command, "--bulk", "20", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    result = json.loads(done.stdout)
    assert (result["variant"], result["client"]) == ("base", "orchestra")
    assert result["bulk"]["answered"] == 20
    assert result["refused"]["calls"] == 0
    assert (tmp_path / "mixed-load-base.png").stat().st_size > 1000


def test_a_longer_run_asks_more():
    assert len(replace(BASE, seconds=80.0).arrivals()) > 1.5 * len(BASE.arrivals())
