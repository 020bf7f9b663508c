"""Limits in dollars: set aside before, counted after, and never passed."""

import random

import pytest
from budget_lab import BULK, INTERACTIVE, Gate, per_day, per_minute

from orchestra.budget import Budget, cost, price_for
from orchestra.budget.ticket import State
from orchestra.budget.window import DAY
from orchestra.call import Charge, Usage
from orchestra.config import LimitsConfig, PriceConfig, TrafficConfig
from orchestra.errors import BudgetExceeded, PriceUnknown

PRICE = PriceConfig(models=("gpt-*",), input=1.0, cached_input=0.25, output=4.0)


def dollars(limit=1.0, **settings):
    return Gate(per_day("usd", limit), reserve=0.0, **settings)


def test_cached_input_costs_its_own_price_or_that_of_all_input():
    usage = Usage(1_000_000, 500_000, cached_tokens=400_000)
    assert cost(PRICE, usage) == pytest.approx(0.6 + 0.1 + 2.0)
    assert cost(PRICE.model_copy(update={"cached_input": None}), usage) == pytest.approx(3.0)
    assert cost(PRICE, Usage(100, 0, cached_tokens=10**9)) == pytest.approx(100 * 0.25e-6)
    assert price_for([PRICE], "gpt-5") is PRICE
    assert price_for([PRICE], "claude") is None


def test_of_ten_calls_at_once_three_go_and_the_rest_learn_when_there_is_room():
    """litellm 34732: spend that is written later lets parallel calls slip past the cap."""
    gate = dollars()
    calls = [gate.ask(usd=0.3, decide=False, queue_bound=60.0) for _ in range(10)]
    gate.decide()
    running = [ticket for ticket in calls if ticket.state is State.GRANTED]
    assert len(running) == 3
    assert not gate.failed, "these may come out cheaper"
    gate.now = 1.0
    for ticket in running[:2]:
        gate.end(ticket)
    assert not gate.failed
    gate.end(running[2])
    assert len(gate.failed) == 7
    for ticket in gate.failed:
        assert isinstance(ticket.error, BudgetExceeded)
        assert DAY <= ticket.error.expected_wait <= DAY + 1000.0
        assert "usd_per_day = 1 is used up" in str(ticket.error)


def test_what_comes_back_lets_the_next_ones_go():
    gate = dollars()
    calls = [gate.ask(usd=0.3, queue_bound=60.0) for _ in range(5)]
    gate.end(calls[0], Charge(usd=0.0))
    assert calls[3].state is State.GRANTED
    gate.end(calls[1], Charge(usd=0.2))
    assert calls[4].state is State.WAITING
    gate.end(calls[2], Charge(usd=0.1))
    assert calls[4].state is State.GRANTED


def test_a_bound_that_passes_while_calls_are_under_way_says_that_the_money_is_out():
    gate = dollars()
    calls = [gate.ask(usd=0.6, queue_bound=5.0) for _ in range(2)]
    gate.run(5.1)
    assert isinstance(calls[1].error, BudgetExceeded)
    assert "came out cheaper" in str(calls[1].error)


def test_bulk_waits_for_tomorrow():
    gate = dollars()
    gate.ask(BULK, usd=0.9, hold=1.0)
    waits = gate.ask(BULK, usd=0.9)
    gate.run(DAY)
    assert waits.state is State.WAITING
    gate.run(DAY + 1000.0)
    assert waits.state is State.GRANTED


def test_an_overshoot_is_one_misestimate_at_most():
    """gbrain 4365: outstanding reservations are part of what is spent."""
    gate = dollars(5.0)
    rng = random.Random(4)
    for _ in range(200):
        gate.ask(BULK, usd=0.1, hold=rng.uniform(0.5, 2.0), spent=Charge(usd=0.1))
    gate.run(1.0)
    gate.ask(BULK, usd=0.1, hold=1.0, spent=Charge(usd=0.4))
    gate.run(3600.0)
    assert gate.admission.spent["usd"] <= 5.0 + 0.3 + 1e-9
    assert len(gate.granted) >= 47


def test_a_refusal_costs_nothing_and_what_nobody_knows_costs_all():
    gate = dollars()
    refused, unknown = gate.ask(usd=0.5), gate.ask(usd=0.5)
    gate.end(refused, Charge(usd=0.0))
    gate.end(unknown, Charge(tokens=7.0))
    assert gate.admission.spent["usd"] == 0.5
    assert gate.admission.dimensions[0].bucket.available(gate.now) == 0.5


def test_a_call_that_can_never_fit_is_told_at_once():
    ticket = dollars().ask(usd=1.5)
    assert isinstance(ticket.error, BudgetExceeded)
    assert "can never fit usd_per_day = 1" in str(ticket.error)
    assert ticket.error.expected_wait is None


@pytest.mark.parametrize("traffic", [INTERACTIVE, BULK])
@pytest.mark.parametrize("crowd", [0, 3])
def test_without_a_price_nothing_goes(traffic, crowd):
    gate = dollars()
    for _ in range(crowd):
        gate.ask(usd=0.5)
    ticket = gate.ask(traffic)
    assert isinstance(ticket.error, PriceUnknown)
    assert "prices" in str(ticket.error)
    assert gate.admission.dimensions[0].reserve.share(0.0) == 0.0, "it is no demand"


def test_a_limit_that_comes_while_a_call_without_a_price_waits_turns_it_away():
    gate = Gate(per_minute("requests", 1.0))
    gate.ask()
    ticket = gate.ask()
    gate.admission.set_limits([per_day("usd", 1.0)], gate.now)
    gate.decide()
    assert isinstance(ticket.error, BudgetExceeded)


def test_interactive_finds_what_bulk_left():
    gate = Gate(per_day("usd", 10.0), reserve=0.2)
    for _ in range(20):
        gate.ask(BULK, usd=1.0, hold=1.0)
    gate.run(10.0)
    assert len(gate.granted) == 8
    assert gate.ask(usd=1.0).state is State.GRANTED


def test_a_pool_keeps_a_day_beside_a_minute_and_shows_both():
    now = [0.0]
    budget = Budget(TrafficConfig(), clock=lambda: now[0], call_at=lambda when, ring: None)
    limits = LimitsConfig(requests_per_minute=60.0, requests_per_day=3.0, usd_per_day=1.0)
    pool = budget.pool("openai", "key", limits, "gpt-5")
    for _ in range(3):
        pool.acquire_sync(Charge(usd=0.1), traffic=INTERACTIVE).settle(Charge(usd=0.1))
    with pytest.raises(BudgetExceeded, match="requests_per_day = 3 is used up") as caught:
        pool.acquire_sync(Charge(usd=0.1), traffic=INTERACTIVE, queue_bound=60.0)
    assert caught.value.expected_wait >= DAY
    told = pool.snapshot()["dimensions"]
    assert [*told] == ["requests", "requests_per_day", "usd_per_day", "concurrency"]
    assert (told["usd_per_day"]["limit"], told["usd_per_day"]["window"]) == (1.0, DAY)
    assert told["usd_per_day"]["used"] == pytest.approx(0.3)
    assert told["requests"]["window"] == 60.0
    assert pool.snapshot()["spent"]["usd"] == pytest.approx(0.3)


def test_a_minute_that_becomes_fixed_keeps_what_is_used():
    budget = Budget(TrafficConfig(), clock=lambda: 0.0, call_at=lambda when, ring: None)
    limits = LimitsConfig(requests_per_minute=60.0)
    pool = budget.pool("azure", "key", limits, "m")
    first, second = (pool.acquire_sync(Charge(), traffic=INTERACTIVE) for _ in range(2))
    first.keep()
    budget.pool("azure", "key", limits.model_copy(update={"window": "fixed"}), "m")
    told = pool.snapshot()["dimensions"]["requests"]
    assert (told["limit"], told["window"], told["used"], told["reserved"]) == (60.0, 60.0, 2.0, 1.0)
    second.refund()
    assert pool.snapshot()["dimensions"]["requests"]["used"] == 1.0


def test_open_batches_hold_their_tokens_until_they_end_and_touch_no_call():
    now = [0.0]
    budget = Budget(TrafficConfig(), clock=lambda: now[0], call_at=lambda when, ring: None)
    limits = LimitsConfig(tokens_per_minute=100.0, enqueued_batch_tokens=1000)
    pool = budget.batch_pool("openai", "key", limits, "gpt-5")
    assert budget.batch_pool("openai", "key", limits, "gpt-5-mini") is pool
    assert budget.pool("openai", "key", limits, "gpt-5") is not pool
    batch = Charge(tokens=400.0)
    open_ones = [pool.acquire_sync(batch, traffic=BULK) for _ in range(2)]
    most = 0
    for done in range(3):
        with pytest.raises(Exception, match="within its bound"):
            pool.acquire_sync(batch, traffic=BULK, queue_bound=0.0)
        (open_ones.pop(0).keep if done % 2 else open_ones.pop(0).refund)()
        open_ones.append(pool.acquire_sync(batch, traffic=BULK, queue_bound=0.0))
        most = max(most, len(open_ones))
    assert most == 2
    told = pool.snapshot()["dimensions"]["enqueued_batch_tokens"]
    assert (told["limit"], told["used"], told["window"]) == (1000, 800.0, None)
    for lease in open_ones:
        lease.settle(Charge(tokens=10.0))
    assert pool.snapshot()["dimensions"]["enqueued_batch_tokens"]["used"] == 0.0
    with pytest.raises(BudgetExceeded):
        pool.acquire_sync(Charge(tokens=1001.0), traffic=BULK)
    kinds = {state["kind"]: state for state in budget.snapshot()}
    assert kinds["online"]["dimensions"]["tokens"]["used"] == 0.0
    assert "tokens" not in kinds["batch"]["dimensions"]


def test_without_that_limit_any_batch_goes():
    pool = Budget().batch_pool("openai", "key", LimitsConfig(tokens_per_minute=1.0), "m")
    leases = [pool.acquire_sync(Charge(tokens=1e9), traffic=BULK) for _ in range(20)]
    assert pool.snapshot()["in_use"]["bulk"] == 20
    for lease in leases:
        lease.refund()
