"""What a collector was told is judged by its log."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from collector import METRICS, SPANS, faults

WHOLE = "\n".join(
    [
        *(f"    Name           : {name}" for name in SPANS),
        *(f"     -> Name: {name}" for name in sorted(METRICS)),
        "     -> gen_ai.request.model: Str(m1)",
        "     -> orchestra.call: Str(1)",
    ]
)
CONVENTIONS = {name for name in METRICS if name.startswith("gen_ai.")} | {"gen_ai.request.model"}


def test_a_log_with_every_span_and_metric_under_known_names_is_right():
    assert faults(WHOLE, CONVENTIONS) == []


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (WHOLE.replace(f": {SPANS[-1]}", ": chat"), "its spans are"),
        (WHOLE.replace("-> Name: orchestra.retries", "-> Unit: s"), "it has no orchestra.retries"),
        (WHOLE.replace("gen_ai.request.model", "gen_ai.model"), "the conventions know no gen_ai.model"),
        (WHOLE.replace("Str(1)", "Str(a-secret-key)"), "it was told a secret"),
    ],
)
def test_what_is_wrong_with_a_log_is_said(log, told):
    (only,) = faults(log, CONVENTIONS)
    assert only.startswith(told)
