"""When a call is late, and how many are sent twice."""

from __future__ import annotations

import heapq
import random
from bisect import bisect_left
from statistics import quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.policies.hedging import Hedging, RecentQuantile

KIND = "route"


@given(st.lists(st.floats(0, 100), min_size=20, max_size=120), st.sampled_from([0.5, 0.9, 0.95]))
def test_the_quantile_is_that_of_the_last_values(values: list[float], q: float):
    recent = RecentQuantile(q, window=50)
    for value in values:
        recent.observe(value)
    last = sorted(values[-50:])
    told = recent.value()
    assert told in last
    # no more than a share of 1 - q is above it, and what is below leaves that much
    assert sum(one > told for one in last) <= (1 - q) * len(last) + 1e-9
    assert bisect_left(last, told) <= q * len(last) + 1
    assert len(recent) == len(last)


def test_too_few_values_tell_no_quantile():
    recent = RecentQuantile(0.95)
    for number in range(19):
        recent.observe(number)
        assert recent.value() is None
    recent.observe(19)
    assert recent.value() == 19


@given(st.lists(st.sampled_from(["enter", "take", "unsent"]), max_size=300), st.sampled_from([0.01, 0.05, 0.5]))
def test_no_more_than_the_share_is_sent_twice(steps: list[str], share: float):
    hedging, calls, second = Hedging(share), 0, 0
    for step in steps:
        if step == "enter":
            hedging.enter()
            calls += 1
        elif hedging.take():
            second += 1
            if step == "unsent":
                hedging.give_back()
                second -= 1
        assert second <= share * calls + 1e-6


def test_what_was_given_up_early_says_nothing_and_what_was_given_up_late_is_late():
    hedging = Hedging(0.05)
    for _ in range(100):
        hedging.observe(KIND, 1.0)
    for _ in range(50):
        hedging.observe(KIND, 0.1, answered=False)
    assert hedging.delay(KIND) == 1.0
    for _ in range(10):
        hedging.observe(KIND, 5.0, answered=False)
    assert hedging.delay(KIND) == 5.0


def test_kinds_are_apart_and_the_stalest_is_forgotten():
    hedging = Hedging(0.5)
    for number in range(1100):
        for _ in range(2):
            hedging.observe(number, number)
    assert hedging.delay(1099) == 1099
    assert hedging.delay(0) is None


@pytest.mark.parametrize("share", [0, -1, 0.6])
def test_a_share_that_makes_no_sense_is_refused(share: float):
    with pytest.raises(ValueError, match="share"):
        Hedging(share)


def simulate(share: float | None, calls: int = 20_000, seed: int = 1) -> tuple[list[float], int]:
    """A call every 10 ms, answered in 80 to 120 ms, 2 % of the attempts tenfold. Returns latencies and extras."""
    rand = random.Random(seed)
    hedging = None if share is None else Hedging(share)

    def service() -> float:
        return rand.uniform(0.08, 0.12) * (10 if rand.random() < 0.02 else 1)

    latencies, extra, events, order = [], 0, [], 0
    for number in range(calls):
        heapq.heappush(events, (number * 0.01, number, "start", 0.0, 0.0))
    order = calls
    while events:
        now, _, what, began, takes = heapq.heappop(events)
        if what == "start":
            takes = service()
            if hedging is not None:
                hedging.enter()
                delay = hedging.delay(KIND)
                if delay is not None and delay < takes:
                    heapq.heappush(events, (now + delay, order := order + 1, "late", now, takes))
                    continue
            heapq.heappush(events, (now + takes, order := order + 1, "end", now, takes))
        elif what == "late":
            assert hedging is not None
            if not hedging.take():
                heapq.heappush(events, (began + takes, order := order + 1, "end", began, takes))
                continue
            extra += 1
            second = service()
            if now + second < began + takes:
                heapq.heappush(events, (now + second, order := order + 1, "won", began, second))
            else:
                heapq.heappush(events, (began + takes, order := order + 1, "end", began, takes))
        else:
            latencies.append(now - began)
            if hedging is not None:
                hedging.observe(KIND, takes)
                if what == "won":
                    hedging.observe(KIND, now - began, answered=False)
    return latencies, extra


@pytest.mark.parametrize("seed", range(4))
def test_the_tail_is_halved_for_five_percent_more_calls(seed: int):
    plain, _ = simulate(None, seed=seed)
    hedged, extra = simulate(0.05, seed=seed)
    assert len(plain) == len(hedged) == 20_000
    assert quantiles(hedged, n=100)[98] <= quantiles(plain, n=100)[98] / 2
    assert extra <= 0.05 * len(hedged)
    # what is usual does not creep down because slow answers are given up
    assert quantiles(hedged, n=100)[49] == pytest.approx(quantiles(plain, n=100)[49], rel=0.05)
