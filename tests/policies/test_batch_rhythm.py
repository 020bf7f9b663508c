"""When a batch that is being filled is sent off, and when an open one is looked at."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.policies.batch_rhythm import Grouping, PollPace


def grouping(window=2.0, window_max=30.0, max_requests=100, max_bytes=10_000):
    return Grouping(window, window_max, max_requests=max_requests, max_bytes=max_bytes)


class TestGrouping:
    def test_an_empty_one_is_never_due(self):
        assert grouping().due_at() == math.inf

    def test_it_goes_when_arrivals_pause(self):
        group = grouping()
        for now in (10.0, 11.5, 13.0):
            assert not group.add(now, 100)
            assert group.due_at() == now + 2.0
        assert (group.count, group.bytes) == (3, 300)

    def test_a_trickle_does_not_hold_it_for_ever(self):
        group = grouping()
        now = 0.0
        while now < group.due_at():
            group.add(now, 1)
            now += 1.0
        assert now == group.due_at() == 30.0

    def test_the_last_request_that_fits_makes_it_due_at_once(self):
        group = grouping(max_requests=2)
        assert not group.add(0.0, 1)
        assert group.add(1.0, 1)
        assert group.due_at() == 1.0
        assert not group.fits(1)

    def test_and_so_does_the_last_byte(self):
        group = grouping(max_bytes=100)
        group.add(0.0, 60)
        assert group.fits(40)
        assert not group.fits(41)
        with pytest.raises(ValueError, match="41 bytes"):
            group.add(1.0, 41)
        assert group.add(1.0, 40)

    @pytest.mark.parametrize(
        "wrong", [{"window": -1.0}, {"window": 31.0}, {"max_requests": 0}, {"max_bytes": 0}, {"window": math.nan}]
    )
    def test_impossible_ones(self, wrong):
        with pytest.raises(ValueError, match="a grouping needs"):
            grouping(**wrong)

    @given(
        st.lists(st.tuples(st.floats(0.0, 10.0), st.integers(0, 500)), min_size=1, max_size=50),
        st.floats(0.0, 5.0),
        st.floats(5.0, 20.0),
        st.integers(1, 20),
        st.integers(500, 2000),
    )
    def test_no_batch_is_over_its_limits_and_nobody_waits_longer_than_the_longest(
        self, arrivals, window, window_max, most, most_bytes
    ):
        now, sent, taken = 0.0, [], []
        group = grouping(window, window_max, most, most_bytes)

        def flush(at):
            nonlocal group, taken
            sent.append((at, taken, group.bytes))
            group, taken = grouping(window, window_max, most, most_bytes), []

        for wait, size in arrivals:
            now += wait
            if group.due_at() <= now:
                flush(group.due_at())
            if not group.fits(size):
                flush(now)
            taken.append(now)
            if group.add(now, size):
                flush(now)
        if taken:
            flush(group.due_at())
        assert sum(len(lines) for _, lines, _ in sent) == len(arrivals)
        for at, lines, size in sent:
            assert len(lines) <= most
            assert size <= most_bytes
            assert lines[-1] <= at <= lines[0] + window_max + 1e-9
            assert at <= lines[-1] + window + 1e-9


class TestPollPace:
    def test_it_slows_down(self):
        pace, now, waits = PollPace(1.0, 60.0), 0.0, []
        for _ in range(14):
            at = pace.looked(now, "in_progress")
            waits.append(at - now)
            now = at
        assert waits[:4] == pytest.approx([1.0, 1.5, 2.25, 3.375])
        assert waits[-1] == pytest.approx(60.0)

    def test_a_day_is_some_1450_looks(self):
        pace, now, looks = PollPace(1.0, 60.0), 0.0, 0
        while now < 86_400.0:
            now, looks = pace.looked(now, "in_progress"), looks + 1
        assert 1400 < looks < 1500

    def test_a_changed_status_starts_over(self):
        pace = PollPace(1.0, 60.0)
        for _ in range(10):
            pace.looked(0.0, "in_progress")
        assert pace.looked(0.0, "finalizing") == 1.0
        assert pace.looked(0.0, "finalizing") == 1.5

    def test_a_failed_look_neither_hastens_nor_starts_over(self):
        pace = PollPace(1.0, 60.0)
        pace.looked(0.0, "in_progress")
        assert pace.failed(0.0) == 1.5
        assert pace.failed(0.0) == 2.25
        assert pace.looked(0.0, "in_progress") == 3.375

    def test_retry_after_is_a_floor(self):
        pace = PollPace(1.0, 60.0)
        assert pace.failed(0.0, retry_after=20.0) == 20.0
        assert pace.failed(0.0, retry_after=300.0) == 300.0
        assert pace.failed(0.0, retry_after=0.5) == 2.25

    @pytest.mark.parametrize("wrong", [(0.0, 1.0), (2.0, 1.0), (1.0, math.inf), (math.nan, 1.0)])
    def test_impossible_ones(self, wrong):
        with pytest.raises(ValueError, match="above zero"):
            PollPace(*wrong)
