"""Estimates that are wrong: how they are raised, and what an account sees of it; in virtual time."""

from __future__ import annotations

import pytest
from account_lab import AccountLab
from budget_lab import BULK, Gate, per_day, per_minute

from orchestra.budget.ticket import State, Ticket
from orchestra.call import Charge

ESTIMATE = Charge(tokens=150.0, input_tokens=100.0)


class Prompts(Gate):
    """A gate before calls whose prompts are estimated at 100 tokens, and their answers at 50."""

    def call(self, *, decide: bool = True) -> Ticket:
        ticket = Ticket(ESTIMATE, BULK, owner=(None, None))
        self.admission.enqueue(ticket, self.now)
        if decide:
            self.decide()
        return ticket


def test_calls_that_wait_are_raised_by_what_those_before_them_were_counted():
    gate = Prompts(per_minute("tokens", 600.0), reserve=0.0)
    first, *rest = [gate.call(decide=False) for _ in range(8)]
    gate.decide()
    gate.end(first, Charge(tokens=350.0, input_tokens=300.0))
    gate.run(120.0)
    raised = next(ticket for ticket in rest if ticket.granted_at > first.granted_at)
    assert raised.estimate == ESTIMATE
    assert 250.0 < raised.charge.input_tokens < 300.0
    assert raised.charge.tokens == pytest.approx(raised.charge.input_tokens + 50.0)


def test_a_call_gives_back_what_it_reserved_whatever_was_learned_meanwhile():
    gate = Prompts(per_minute("tokens", 60_000.0), reserve=0.0)
    first, second = gate.call(), gate.call()
    gate.end(first, Charge(tokens=350.0, input_tokens=300.0))
    gate.end(second, Charge(tokens=350.0, input_tokens=300.0))
    (tokens,) = gate.admission.dimensions
    assert tokens.bucket.reserved == 0.0
    assert tokens.bucket.used(gate.now) == 700.0


def test_what_nobody_knows_teaches_nothing():
    gate = Prompts(per_minute("tokens", 60_000.0))
    for spent in (None, Charge(requests=0.0), Charge()):  # kept, refunded, refused
        gate.end(gate.call(), spent)
    assert gate.call().charge is ESTIMATE


def test_until_the_first_answer_bulk_leaves_half_of_the_tokens():
    gate = Prompts(per_minute("tokens", 1500.0), reserve=0.0)
    tickets = [gate.call(decide=False) for _ in range(10)]
    gate.decide()
    assert len(gate.granted) == 5
    gate.end(tickets[0], Charge(tokens=150.0, input_tokens=100.0))
    assert len(gate.granted) == 10


@pytest.mark.parametrize("believed", [1 / 3, 3.0])
@pytest.mark.parametrize("told", [True, False])
def test_prompts_that_are_wrong_by_three_either_way(believed: float, told: bool):
    """Tokens are scarce, and the client learns by its first answers what its prompts come to."""
    limits = [per_minute("requests", 600, burst_seconds=10), per_minute("tokens", 90_000, burst_seconds=10)]
    lab = AccountLab(buckets=limits if told else (), believed=believed, tokens=240.0)
    lab.bulk(2000)
    lab.people(1.5, until=60.0)
    lab.run(60.0)
    report = lab.report(0.0, 60.0)
    assert report.refused <= 0.01
    assert report.wait(0.99) <= 0.25
    steady = lab.report(10.0, 60.0, per_second=1500.0 / 240.0)
    assert steady.used >= 0.95


@pytest.mark.parametrize("metric", ["tokens", "input_tokens", "usd"])
def test_a_call_that_fits_a_day_is_not_raised_beyond_it(metric: str) -> None:
    """One odd prompt would else shut out all large calls for ever: what is never let go teaches nothing."""
    gate = Gate(per_day(metric, 1000.0), reserve=0.0)

    def call(amount: float) -> Ticket:
        charge = Charge(tokens=amount, input_tokens=amount, usd=amount)
        ticket = Ticket(charge, BULK, owner=(None, None))
        gate.admission.enqueue(ticket, gate.now)
        gate.decide()
        return ticket

    gate.end(call(100.0), Charge(tokens=1000.0, input_tokens=1000.0, usd=1000.0))
    gate.run(100_000.0)
    large = call(600.0)
    assert large.state is State.GRANTED
    assert getattr(large.charge, metric) == 1000.0
    gate.end(large, large.estimate)
    gate.run(200_000.0)
    for _ in range(3):  # by and by it is believed again
        again = call(100.0)
        assert again.state is State.GRANTED
        gate.end(again, again.estimate)
    assert getattr(again.charge, metric) < 200.0


def test_costs_that_were_estimated_too_low_are_raised() -> None:
    """Ten calls at once, each four times as dear as it seems, would pass a cap by far."""
    gate = Gate(per_day("usd", 1.0), reserve=0.0)
    gate.end(gate.ask(usd=0.01), Charge(usd=0.04))
    calls = [gate.ask(usd=0.01, decide=False) for _ in range(200)]
    gate.decide()
    running = [ticket for ticket in calls if ticket.state is State.GRANTED]
    for ticket in running:
        gate.end(ticket, Charge(usd=0.04))
    assert 0.9 <= gate.admission.spent["usd"] <= 1.1
