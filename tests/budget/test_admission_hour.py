"""An hour of mixed load in virtual time, to the letter reproducible."""

import random
import statistics

import pytest
from budget_lab import BULK, INTERACTIVE, Gate, per_minute, slots

from orchestra.budget.ticket import State
from orchestra.call import Charge

HOUR = 3600.0


def flood(gate, *, tokens, spent=None, jobs=3, lead=200):
    """Bulk without end: as one call goes, another joins the queue."""

    def feed():
        while gate.admission.bulk.waiting < lead:
            number = len(gate.granted)
            used = None if spent is None else Charge(tokens=spent(tokens))
            gate.ask(BULK, tokens=tokens, job=f"job {number % jobs}", hold=2.0, spent=used)
        gate.at(gate.now + 1.0, feed)

    gate.at(0.0, feed)


def arrivals(rng, rate, until, burst=1):
    when = 0.0
    while (when := when + rng.expovariate(rate)) < until:
        yield from [when] * burst


def waits(tickets):
    return sorted(ticket.granted_at - ticket.entered_at for ticket in tickets)


def p99(values):
    return statistics.quantiles(values, n=100)[98]


@pytest.mark.parametrize(("bottleneck", "span"), [("requests", HOUR), ("tokens", HOUR / 3)])
def test_interactive_does_not_wait_and_bulk_takes_all_the_rest(bottleneck, span):
    """600 requests, 90,000 (or 45,000) tokens a minute, ten seconds of burst, 1.5 interactive calls a second."""
    rng = random.Random(7)
    tokens_per_minute = 90_000.0 if bottleneck == "requests" else 45_000.0
    gate = Gate(
        per_minute("requests", 600, burst_seconds=10), per_minute("tokens", tokens_per_minute, burst_seconds=10)
    )
    flood(gate, tokens=140.0)
    people = []
    for when in arrivals(rng, 1.5, span):
        gate.at(when, lambda: people.append(gate.ask(INTERACTIVE, tokens=140.0, hold=1.0)))
    gate.run(span)
    assert len(people) > 1.4 * span
    assert p99(waits(people)) == 0.0
    assert max(waits(people)) < 0.1
    limit = 10.0 * span if bottleneck == "requests" else tokens_per_minute / 60 * span
    used = sum(t.charge.requests if bottleneck == "requests" else t.charge.tokens for t in gate.granted)
    assert used / limit == pytest.approx(1.0, abs=0.02)


def test_bursts_find_their_headroom():
    rng, span = random.Random(3), HOUR / 2
    gate = Gate(per_minute("requests", 600, burst_seconds=10))
    flood(gate, tokens=0.0)
    people = []
    for when in arrivals(rng, 0.1, span, burst=15):
        gate.at(when, lambda: people.append(gate.ask(INTERACTIVE)))
    gate.run(span)
    assert p99(waits(people[75:])) < 0.25
    assert len(gate.granted) / (10.0 * span) >= 0.98


def test_estimates_that_are_wrong_by_three_either_way_lose_no_refill():
    rng = random.Random(5)
    gate = Gate(per_minute("tokens", 90_000, burst_seconds=10))
    spent = []

    def wrong(tokens):
        spent.append(tokens * rng.choice([1 / 3, 1.0, 3.0]))
        return spent[-1]

    flood(gate, tokens=300.0, spent=wrong)
    people = []
    for when in arrivals(rng, 1.5, HOUR):
        gate.at(when, lambda: people.append(gate.ask(INTERACTIVE, tokens=150.0, hold=1.0)))
    gate.run(HOUR)
    assert p99(waits(people)) < 1.0
    assert gate.admission.spent["tokens"] / (1500.0 * HOUR) >= 0.98


def test_jobs_get_equal_shares_over_the_hour():
    gate = Gate(per_minute("tokens", 60_000))
    for number in range(3000):
        gate.ask(BULK, tokens=2000.0, job="large", decide=False)
        for _ in range(4):
            gate.ask(BULK, tokens=100.0 + number % 7, job="small", decide=False)
    gate.decide()
    gate.run(1000.0)
    used = {job: sum(t.charge.tokens for t in gate.granted if t.job == job) for job in ("large", "small")}
    assert used["large"] == pytest.approx(used["small"], rel=0.01)


def test_load_of_one_and_a_half_times_the_limit_serves_people_first_and_bulk_with_the_rest():
    """litellm 31830: interactive at half of the limit, bulk offered at the whole of it, for twenty minutes."""
    rng = random.Random(11)
    gate = Gate(per_minute("requests", 600), slots(64))
    people, bulk = [], []
    for when in arrivals(rng, 5.0, 1200.0):
        gate.at(when, lambda: people.append(gate.ask(INTERACTIVE, hold=1.0)))
    for when in arrivals(rng, 10.0, 1200.0):
        gate.at(when, lambda: bulk.append(gate.ask(BULK, hold=2.0)))
    gate.run(1200.0)
    assert p99(waits(people)) == 0.0
    done = sum(ticket.state is not State.WAITING for ticket in bulk)
    assert (len(people) + done) / 12000 >= 0.98


def test_the_same_hour_twice_is_the_same_hour():
    def trace():
        rng = random.Random(1)
        gate = Gate(per_minute("requests", 600), slots(20))
        flood(gate, tokens=10.0)
        for when in arrivals(rng, 2.0, 600.0):
            gate.at(when, lambda: gate.ask(INTERACTIVE, hold=rng.uniform(0.5, 3.0), queue_bound=1.0))
        gate.run(600.0)
        return [(ticket.traffic, ticket.job, ticket.granted_at) for ticket in gate.granted]

    assert trace() == trace()
