"""The check of `orchestra plan` reads the engine's steps right."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from plan_check import speed

from orchestra.localengine.step_record import StepRecord


def step(at: float, rows: int, prefill: int = 0) -> StepRecord:
    books = dict.fromkeys(("cached_interactive", "cached_bulk", "held_interactive", "held_bulk"), 0)
    return StepRecord(
        at=at,
        seconds=0.01,
        predicted=0.01,
        interactive=0,
        bulk=rows,
        prefill_tokens=prefill,
        decode_rows=rows,
        slots=16,
        blocks=8,
        free_blocks=4,
        **books,
    )


def test_a_speed_is_of_steps_that_follow_another_of_their_kind():
    records = [step(0, 4), step(1, 4), step(3, 4), step(4, 4), step(9, 4, prefill=8), step(20, 4), step(40, 8)]
    assert speed(records, 4) == pytest.approx(4 / 1)  # of 1, 2 and 1 seconds the median
