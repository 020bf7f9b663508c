"""Each benchmark is one command that says what it does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COMMANDS = [path for path in sorted(BENCHMARKS.glob("*.py")) if '__name__ == "__main__"' in path.read_text()]


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_it_says_what_it_does(path: Path) -> None:
    done = subprocess.run([sys.executable, str(path), "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"python benchmarks/{path.name}" in done.stdout


def test_there_are_some() -> None:
    assert len(COMMANDS) >= 8
