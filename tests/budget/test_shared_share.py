"""Processes that share an account, in virtual time, each with its own admission and slices."""

import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_lab import BULK, INTERACTIVE, Host, backlog

from orchestra.budget.shared.account import LEASE_SECONDS
from orchestra.budget.ticket import State
from orchestra.call import Charge

SCENARIO = {"requests": (100.0, 10.0), "tokens": (15000.0, 1500.0)}


def people(host, process, rate, until, *, burst=1, seed=1, **call):
    """Interactive calls at random instants. Returns the list that their tickets go to."""
    rng, tickets, when = random.Random(seed), [], 0.0
    while (when := when + rng.expovariate(rate / burst)) < until:
        for _ in range(burst):
            host.at(when, lambda: tickets.append(process.ask(INTERACTIVE, **call)))
    return tickets


def waits(tickets):
    assert all(ticket.granted_at for ticket in tickets)
    return [ticket.granted_at - ticket.entered_at for ticket in tickets]


def p99(values):
    return statistics.quantiles(values, n=100)[98]


def granted(host, since):
    return sum(ticket.granted_at > since for process in host.processes for ticket in process.granted)


@pytest.mark.parametrize(("tokens", "rate"), [(140.0, 10.0), (300.0, 5.0)])
def test_four_processes_use_the_limit_and_interactive_does_not_wait(tokens, rate):
    host = Host(**SCENARIO)
    processes = [host.start() for _ in range(4)]
    for process in processes[:3]:
        backlog(process, tokens=tokens)
    tickets = people(host, processes[3], 1.5, 120.0, tokens=tokens)
    host.run(120.0)
    assert not host.exceeded
    assert p99(waits(tickets)) < 0.01
    assert granted(host, 20.0) / (rate * 100.0) >= 0.97
    shares = [len(process.granted) for process in processes[:3]]
    assert max(shares) < 1.15 * min(shares)
    assert host.exchanges / 120.0 < 80, "a few a second for each process"


def test_a_fast_account_takes_no_more_exchanges_than_a_slow_one():
    host = Host(requests=(10_000.0, 1000.0))
    processes = [host.start() for _ in range(4)]
    for process in processes[:3]:
        backlog(process, lead=2000, hold=0.1)
    tickets = people(host, processes[3], 20.0, 20.0, hold=0.1)
    host.run(20.0)
    assert not host.exceeded
    assert p99(waits(tickets)) < 0.01
    assert granted(host, 12.0) / 8000.0 >= 0.97
    assert host.exchanges / 20.0 < 120


def test_slots_are_shared_in_turn_and_interactive_gets_the_first_that_comes_free():
    host = Host(concurrency=(8.0, 0.0), reserve=0.0)
    processes = [host.start() for _ in range(3)]
    for process in processes[:2]:
        backlog(process, hold=1.0)
    tickets = people(host, processes[2], 1.0, 60.0, hold=0.5)
    host.run(60.0)
    assert not host.exceeded
    assert p99(waits(tickets)) < 1.15, "without a reserve it waits until a call ends, and no longer"
    first, second = (len(process.granted) for process in processes[:2])
    assert max(first, second) < 1.3 * min(first, second)
    busy = sum(len(process.granted) for process in processes[:2]) * 1.0 + len(tickets) * 0.5
    assert busy / (8 * 60.0) > 0.8


def test_a_process_that_is_killed_gives_back_within_seconds():
    host = Host(reserve=0.0, requests=(100.0, 10.0), concurrency=(8.0, 0.0))
    first, second = host.start(), host.start()
    backlog(first, hold=1000.0)
    host.run(1.0)
    assert first.busy == 8
    backlog(second, hold=1000.0)
    host.run(2.0)
    assert second.busy == 0
    first.kill()
    host.run(2.0 + LEASE_SECONDS + 0.5)
    assert second.busy == 8
    assert not host.exceeded


def test_an_idle_process_gives_back_all_it_holds_and_exchanges_no_more():
    host = Host(**SCENARIO)
    process = host.start()
    for _ in range(20):
        process.ask(INTERACTIVE, tokens=100.0)
        process.ask(BULK, tokens=100.0)
    host.run(30.0)
    assert len(process.granted) == 40
    assert not host.account.holders
    assert [slice.stock for slice in process.share.slices.values()] == [0.0, 0.0, 0.0]
    before = host.exchanges
    host.run(1000.0)
    assert host.exchanges == before


def test_a_process_that_slept_spends_nothing_of_what_it_has_lost():
    host = Host(requests=(100.0, 10.0), reserve=0.0)
    sleeper, other = host.start(), host.start()
    backlog(sleeper, hold=0.1)
    host.run(5.0)
    sleeper.frozen = True
    backlog(other, hold=0.1)
    host.run(20.0)
    sleeper.frozen = False
    host.run(40.0)
    assert not host.exceeded
    assert len([ticket for ticket in sleeper.granted if ticket.granted_at > 20.0]) > 50


def test_another_start_of_the_machine_loses_nothing_but_what_was_held():
    host = Host(requests=(100.0, 10.0), reserve=0.0)
    backlog(host.start(), hold=0.1)
    host.run(30.0)
    host.processes[0].kill()
    host.boot = "another"
    backlog(host.start(), hold=0.1)
    host.run(60.0)
    assert not host.exceeded
    assert len(host.processes[1].granted) > 270


def test_estimates_that_are_wrong_by_three_either_way_lose_no_refill():
    host, rng = Host(tokens=(15000.0, 1500.0)), random.Random(3)
    processes = [host.start() for _ in range(3)]

    def feed(process):
        while process.admission.bulk.waiting < 50:
            process.ask(BULK, tokens=150.0, spent=Charge(tokens=150.0 * rng.choice([1 / 3, 1.0, 3.0])))
        host.at(host.now + 0.5, lambda: feed(process))

    for process in processes[:2]:
        feed(process)
    tickets = people(host, processes[2], 1.5, 200.0, tokens=150.0)
    host.run(200.0)
    late = [ticket for ticket in tickets if ticket.entered_at > 20.0]
    assert p99(waits(late)) < 1.0, "once the debt of the first rush is paid"
    spent = sum(process.admission.spent["tokens"] for process in processes)
    assert spent / (1500.0 * 200.0 + 15000.0) >= 0.93


def test_limits_changed_in_one_process_reach_the_others():
    host = Host(requests=(100.0, 10.0), reserve=0.0)
    old = host.start()
    backlog(old, hold=0.1)
    host.run(30.0)
    new = host.start(limits={"requests": (50.0, 5.0)})
    backlog(new, hold=0.1)
    host.run(60.0)
    assert old.share.slices["requests"].rate == 5.0
    late = sum(ticket.granted_at > 40.0 for process in (old, new) for ticket in process.granted)
    assert late == pytest.approx(100, abs=8)
    before = len(old.granted)
    host.run(80.0)
    assert len(old.granted) - before == pytest.approx(50, abs=8)


def test_a_call_that_can_never_have_a_slot_more_than_there_are_is_told_so_and_others_time_out():
    host = Host(requests=(10.0, 1.0), reserve=0.0)
    first, second = host.start(), host.start()
    for _ in range(30):
        first.ask(BULK)
    late = second.ask(INTERACTIVE, queue_bound=0.05)
    host.run(60.0)
    assert late.state is State.OVER
    assert len(first.granted) == 30


def test_a_large_bulk_call_is_not_overtaken_for_ever():
    host = Host(requests=(100.0, 10.0), tokens=(1000.0, 100.0))
    small, large = host.start(), host.start()
    backlog(small, tokens=10.0)
    host.run(20.0)
    ticket = large.ask(BULK, tokens=700.0)
    host.run(60.0)
    assert ticket.granted_at - ticket.entered_at < 10.0
    oversize = large.ask(BULK, tokens=1500.0)
    host.run(120.0)
    assert oversize.granted_at, "one that is larger than the limit goes once all is there"


EVENT = st.tuples(
    st.floats(0.0, 3.0),
    st.integers(0, 2),
    st.sampled_from(["interactive", "bulk", "bulk burst", "interactive burst", "kill", "freeze", "thaw", "boot"]),
    st.sampled_from([1.0, 50.0, 400.0, 900.0]),
    st.floats(0.0, 5.0),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(EVENT, max_size=40), st.sampled_from([0.0005, 0.03, 0.4]))
def test_whatever_happens_the_limit_holds_and_everybody_goes_in_the_end(events, latency):
    host = Host(latency=latency, requests=(20.0, 5.0), tokens=(1000.0, 300.0), concurrency=(5.0, 0.0))
    processes = [host.start() for _ in range(3)]
    tickets = []
    for seconds, index, what, tokens, hold in events:
        host.run(host.now + seconds)
        process = processes[index]
        if what == "kill":
            process.kill()
            processes[index] = host.start()
        elif what in ("freeze", "thaw"):
            process.frozen = what == "freeze"
        elif what == "boot":
            host.boot = str(host.now)
            for process in processes:
                process.kill()
            processes = [host.start() for _ in processes]
        else:
            traffic = INTERACTIVE if what.startswith("inter") else BULK
            for _ in range(8 if what.endswith("burst") else 1):
                tickets.append((process, process.ask(traffic, tokens=tokens, hold=hold)))
    for process in processes:
        process.frozen = False
    host.run(host.now + 3000.0)
    limiting = [one for one in host.exceeded if one[1] != "concurrency"]
    assert not limiting
    assert all(ticket.state is State.OVER for process, ticket in tickets if process.alive)
    living = {process.share.holder for process in processes}
    assert host.account is None or not living & set(host.account.holders), "nobody holds what nobody uses"
