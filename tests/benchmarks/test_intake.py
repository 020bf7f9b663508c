"""The intake benchmark, on fewer lines: it measures what it says."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import intake


def test_all_lines_are_checked_and_taken_in(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    intake.write(source, 3000)
    checked = asyncio.run(intake.checking(source))
    taken = asyncio.run(intake.taking_in(source, tmp_path / "jobs.db", busy=True))
    assert (checked["lines"], taken["lines"]) == (3000, 3000)
    assert checked["lines_a_second"] > 0 < taken["lines_a_second"]
