"""The benchmark of a large file, on a small one: it measures what it says, and the file is answered."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import million_lines


@pytest.mark.timeout(300)
def test_all_lines_are_answered_in_batches_and_measured(tmp_path: Path) -> None:
    figures = million_lines.measure(tmp_path, 2000, batch_seconds=0.1)
    check, run, paid = figures["check"], figures["run"], figures["provider"]
    assert (check["lines"], run["answers_as_asked"]) == (2000, 2000)
    assert (paid["answers_paid_in_batches"], paid["answers_paid"], paid["paid_twice"]) == (2000, 2000, 0)
    assert (paid["files"], paid["batches"]) == (1, 1)
    assert run["times_progress_shown"] > 0
    assert run["seconds"] > figures["first upload"]["seconds"] > 0
    assert run["store_bytes_a_line"] > 200
