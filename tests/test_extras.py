"""What messages say to install is what the extras require, and never a distribution of our own name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from orchestra.cli.init import TEMPLATE
from orchestra.extras import EXTRAS, install

ROOT = Path(__file__).parents[1]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_message_names_what_the_extra_requires(extra: str):
    assert list(EXTRAS[extra]) == DECLARED[extra]


def test_so_do_the_words_that_stand_elsewhere():
    (triton,) = (one.partition(";")[0] for one in DECLARED["gpu"])
    for path in ("localengine/gpu/selection.py", "kernels/aot.py"):
        assert f"pip install '{triton}'" in (ROOT / path).read_text(), path
    for extra in ("prometheus", "otel"):
        assert install(extra) in TEMPLATE


def test_nobody_is_sent_to_another_project_of_our_name():
    for folder in ("orchestra", "localengine", "kernels", "policies"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not re.search(r"install (-U )?['\"]?orchestra-llm", path.read_text()), path
