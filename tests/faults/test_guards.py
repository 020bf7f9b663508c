"""What this folder's docstring names as a guard is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TOLD = (HERE / "__init__.py").read_text(encoding="utf-8")
GUARD = re.compile(r"((?:\w+/)?test_\w+)?::(test_\w+)(\.\.\.)?")


def guards() -> list[tuple[str, str]]:
    found, file = [], ""
    for name, test, shortened in GUARD.findall(TOLD):
        file = name or file
        found.append((file if "/" in file else f"faults/{file}", test if shortened else f"{test}("))
    return found


@pytest.mark.parametrize(("file", "test"), guards())
def test_a_guard_is_there(file: str, test: str):
    assert f"def {test}" in (HERE.parent / f"{file}.py").read_text(encoding="utf-8")
