"""The latest figures: what counts as the latest, and how they are summed up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from engine_lab import BULK, INTERACTIVE

from orchestra.localengine.events import EventBus
from orchestra.localengine.service.telemetry import Telemetry
from orchestra.localengine.step_record import StepRecord


def one(traffic: Any, *, ttft: float = 0.0, gap: float | None = None) -> Any:
    """A generation that has just drawn a token."""
    return SimpleNamespace(
        seq=SimpleNamespace(traffic=traffic, request_id=1), ttft=ttft, latest_gap=gap, on_event=None, index=0
    )


def step(**changes: float) -> StepRecord:
    numbers = dict.fromkeys(StepRecord.__dataclass_fields__, 0) | {"seconds": 1.0, "predicted": 1.0, "slots": 4}
    return StepRecord(**(numbers | changes))  # type: ignore[arg-type]


def test_median_and_95th_percentile_are_values_that_were_seen():
    telemetry = Telemetry(EventBus())
    for value in range(100, 0, -1):
        telemetry.drew(one(INTERACTIVE, ttft=float(value)))
    telemetry.drew(one(BULK, ttft=7.0))
    assert telemetry.stats()["ttft"] == {
        "interactive": {"p50": 50.0, "p95": 95.0, "count": 100},
        "bulk": {"p50": 7.0, "p95": 7.0, "count": 1},
    }


def test_old_figures_are_forgotten():
    telemetry = Telemetry(EventBus())
    for value in (9.0, 1.0):
        for _ in range(5000):
            telemetry.drew(one(BULK, gap=value))
    stats = telemetry.stats()
    assert stats["per_token"]["bulk"] == {"p50": 1.0, "p95": 1.0, "count": 4096}
    assert stats["output_tokens"] == 10_000


def test_occupancy_and_the_models_error_are_those_of_the_latest_steps():
    telemetry = Telemetry(EventBus())
    for _ in range(300):
        telemetry.stepped(step(interactive=4, predicted=9.0))
    for _ in range(256):
        telemetry.stepped(step(interactive=1, bulk=1, predicted=2.0, prefill_tokens=3))
    stats = telemetry.stats()
    assert (stats["occupancy"], stats["predicted_over_actual"]) == (0.5, 2.0)
    assert (stats["steps"], stats["prefill_tokens"], stats["last_step_seconds"]) == (556, 768, 1.0)
    assert len(telemetry.history()) == 556
