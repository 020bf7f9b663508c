"""A scripted batch's course, as a function of the clock alone."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from orchestra.testing import BatchScript
from orchestra.testing.batch_life import ENDS, BatchLife

SECONDS = st.floats(min_value=0, max_value=1e5)
ENDINGS = st.sampled_from(["completed", "expired", "cancelled", "failed", None, "weird"])
ORDER = ["validating", "in_progress", "weird", "finalizing", "cancelling", *sorted(ENDS)]

SCRIPTS = st.builds(
    BatchScript,
    validating=SECONDS,
    running=SECONDS | st.just(math.inf),
    finalizing=SECONDS,
    cancelling=SECONDS,
    end=ENDINGS,
    answered=st.none() | st.integers(0, 60) | st.floats(0, 1),
    finishing=st.integers(0, 5),
)
LIVES = st.builds(
    BatchLife,
    script=SCRIPTS,
    total=st.integers(0, 50),
    created_at=SECONDS,
    window=st.just(86400.0),
    rejected=st.booleans(),
)


@given(life=LIVES, cancelled=st.none() | SECONDS, ages=st.lists(SECONDS, min_size=2, max_size=8).map(sorted))
def test_it_only_goes_forward(life: BatchLife, cancelled: float | None, ages: list[float]):
    if cancelled is not None:
        life = life.cancel(life.created_at + cancelled)
    stages = [life.stage(life.created_at + age) for age in ages]
    for before, after in pairwise(stages):
        assert before.answered <= after.answered <= life.total
        assert set(before.reached) <= set(after.reached)
        if before.ended:
            assert after == before
    for stage in stages:
        assert list(stage.reached.values()) == sorted(stage.reached.values())
        assert list(stage.reached)[-1] == stage.status
        assert len(ENDS & set(stage.reached)) == stage.ended


@given(life=LIVES)
def test_it_ends_with_its_window_at_the_latest(life: BatchLife):
    script = life.script
    stage = life.stage(life.expires_at + script.finalizing + script.cancelling + script.validating + 1)
    assert stage.ended or stage.status == "weird"


@given(life=LIVES, age=SECONDS)
def test_cancelled_it_ends_soon_and_loses_nothing(life: BatchLife, age: float):
    at = life.created_at + age
    before = life.stage(at)
    after = life.cancel(at).stage(at + life.script.cancelling + 1e-6)
    assert before.answered <= after.answered
    if before.ended:
        assert after == before
    else:
        assert after.status == "cancelled"
        assert life.cancel(at).cancel(at + 1) == life.cancel(at)
