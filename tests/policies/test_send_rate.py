"""How many calls a second."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.policies.send_rate import SendRate


class Server:
    """Calls go as fast as the rate lets them, at a server that takes ``limit`` a second and saves up ``burst``."""

    def __init__(self, limit: float, burst: float, demand: float = 200.0) -> None:
        self.rate = SendRate()
        self.limit, self.burst, self.demand = limit, burst, demand
        self.level = burst
        self.now = 0.0
        self.sent: list[tuple[float, bool]] = []
        self.rng = random.Random(1)

    def run(self, until: float) -> None:
        while self.now < until:
            step = self.rng.uniform(0.9, 1.1) / min(self.rate.rate, self.demand)
            self.now += step
            self.level = min(self.burst, self.level + step * self.limit)
            self.rate.sent(self.now)
            fits = self.level >= 1
            self.sent.append((self.now, fits))
            if fits:
                self.level -= 1
                self.rate.answered(self.now)
            else:
                self.rate.throttled(self.rate.cuts, self.now)

    def share(self, since: float) -> tuple[float, float]:
        """Return the share of calls turned away since then, and the share of the limit used."""
        sent = [fits for at, fits in self.sent if at >= since]
        return 1 - sum(sent) / len(sent), sum(sent) / (self.limit * (self.now - since))


def test_it_sleeps_until_the_first_throttle():
    rate = SendRate()
    for number in range(1000):
        rate.sent(number / 100)
        rate.answered(number / 100)
    assert rate.rate == math.inf
    assert not rate.awake


@pytest.mark.parametrize(("limit", "burst"), [(10, 100), (10, 2), (100, 1000), (1, 10), (1 / 6, 10)])
def test_it_finds_the_rate_and_stays_there(limit: float, burst: float):
    server = Server(limit, burst)
    warm_up = 20 + 100 / limit
    server.run(warm_up + 300 / limit)
    refused, used = server.share(warm_up)
    assert refused <= 0.05
    assert used >= 0.85


def test_a_rate_that_rises_is_found_and_one_that_falls_is_followed():
    server = Server(10, 10)
    server.run(60)
    server.limit = 20
    server.run(120)
    assert server.share(90)[1] >= 0.85
    server.limit, at = 5, server.now
    server.run(at + 60)
    refused, used = server.share(at + 15)
    assert refused <= 0.05
    assert used >= 0.85


def test_an_episode_cuts_once():
    rate = SendRate()
    for _ in range(50):
        rate.sent(0.5)
    assert [rate.throttled(0, 0.5) for _ in range(10)] == [True] + [False] * 9
    assert rate.cuts == 1


def test_a_stray_refusal_does_not_slow_down_who_hardly_calls():
    rate = SendRate()
    rate.sent(1.0)
    rate.throttled(0, 1.0)
    assert rate.rate >= 5


def test_it_does_not_grow_beyond_twice_what_is_used():
    rate = SendRate()
    rate.throttled(0, 0.0)
    for number in range(2000):
        rate.sent(number / 2)
        rate.answered(number / 2)
    assert rate.rate <= 10


def test_an_outage_does_not_bring_it_down_for_ever():
    server = Server(10, 10)
    server.run(30)
    server.limit, server.level = 1e-9, 0.0
    server.run(330)
    assert server.rate.rate > 0.1
    server.limit = 10
    server.run(600)
    assert server.share(530)[1] >= 0.85


@given(st.lists(st.tuples(st.floats(0, 5), st.sampled_from("saot")), max_size=200))
def test_whatever_happens_it_is_a_rate(steps: list[tuple[float, str]]):
    rate, now = SendRate(), 0.0
    for seconds, what in steps:
        now += seconds
        match what:
            case "s":
                rate.sent(now)
            case "a":
                rate.answered(now)
            case "o":
                rate.throttled(rate.cuts - 1, now)
            case "t":
                rate.throttled(rate.cuts, now)
        assert rate.rate > 0
