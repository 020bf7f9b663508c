"""The clock of deadlines is not set while a process runs."""

from __future__ import annotations

import time

import pytest

from orchestra import clock
from orchestra.tagging import bulk


def test_it_is_unix_time() -> None:
    assert clock.wall() == pytest.approx(time.time(), abs=60)
    assert clock.wall() <= clock.wall()


@pytest.mark.parametrize("by", [-3600.0, 3600.0])
def test_it_does_not_follow_who_sets_the_systems_clock(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    before, real = clock.wall(), time.time
    monkeypatch.setattr(time, "time", lambda: real() + by)
    assert 0 <= clock.wall() - before < 600
    with bulk(deadline="2h") as tag:
        assert tag.deadline == pytest.approx(before + 7200, abs=600)


def test_it_counts_what_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    before, ticks = clock.wall(), clock._ticks()
    monkeypatch.setattr(clock, "_ticks", lambda: ticks + 86400.0)  # the machine was asleep
    assert clock.wall() - before == pytest.approx(86400.0, abs=60)
