"""Days and dollars that processes share: never more than the limit, whoever dies, and kept in the file."""

import json
import random
import sqlite3

import pytest
from shared_lab import BULK, INTERACTIVE, Host

from orchestra.budget import Budget
from orchestra.budget.shared.account import LEASE_SECONDS, Account, Request, Terms
from orchestra.budget.shared.sqlite import SqliteStore
from orchestra.budget.ticket import State, Ticket
from orchestra.budget.window import DAY
from orchestra.call import Charge
from orchestra.config import BudgetConfig, LimitsConfig
from orchestra.errors import AdmissionTimeout, BudgetExceeded

CAP = Terms({"usd_per_day": (1.0, 1.0 / DAY, DAY)}, 0.0)


class Money(Host):
    """A host whose account holds dollars. What is spent and under way is counted by the book."""

    def __init__(self, cap=1.0, **more):
        super().__init__(usd_per_day=(cap, cap / DAY, DAY), reserve=0.0, **more)

    def spent(self):
        return sum(
            (t.owner[1] or t.charge).usd if t.state is State.OVER else t.charge.usd
            for process in self.processes
            for t in process.granted
        )


def ask(process, usd, traffic=INTERACTIVE, hold=1.0, spent=None, **bounds):
    ticket = Ticket(Charge(usd=usd), traffic, owner=(hold, spent), **bounds)
    process.admission.enqueue(ticket, process.host.now)
    process.decide()
    return ticket


def test_ten_calls_of_four_processes_are_three_and_the_rest_are_told():
    host = Money()
    processes = [host.start() for _ in range(4)]
    calls = [ask(processes[n % 4], 0.3, queue_bound=60.0) for n in range(10)]
    host.run(30.0)
    assert sum(ticket.granted_at > 0 or ticket.error is None for ticket in calls) == 3
    refused = [ticket.error for ticket in calls if ticket.error]
    assert len(refused) == 7
    assert all(isinstance(error, BudgetExceeded) for error in refused)
    assert all(error.expected_wait is None or error.expected_wait > 80_000 for error in refused)
    assert host.spent() == pytest.approx(0.9)


@pytest.mark.parametrize("traffic", [INTERACTIVE, BULK])
def test_what_has_not_been_borrowed_yet_is_not_called_used_up(traffic):
    """A day of which nothing is used does not keep a call out, though none of it is here."""
    host = Money(latency=5.0)
    late = ask(host.start(), 0.1, traffic, queue_bound=1.0)
    host.run(2.0)
    assert isinstance(late.error, AdmissionTimeout)
    assert "usd" not in str(late.error)
    assert late.error.expected_wait is None, "nobody has told yet what there is"


@pytest.mark.parametrize("seed", range(4))
def test_whatever_they_do_the_cap_holds_and_is_used(seed):
    rng = random.Random(seed)
    host = Money(10.0)
    processes = [host.start() for _ in range(3)]
    for n in range(150):
        usd = rng.choice([0.05, 0.2, 0.5])
        traffic, spent = rng.choice([INTERACTIVE, BULK]), Charge(usd=usd * rng.choice([0.3, 1.0]))
        when, hold = rng.uniform(0, 60), rng.uniform(0.1, 8.0)
        process = processes[n % 3]
        host.at(when, lambda p=process, u=usd, t=traffic, h=hold, s=spent: p.alive and ask(p, u, t, h, s))
    if seed % 2:
        host.at(25.0, processes[0].kill)
    worst = 0.0
    for second in range(1, 300):
        host.run(float(second))
        worst = max(worst, host.spent())
    assert worst <= 10.0 + 1e-6
    assert worst >= 8.5


@pytest.mark.parametrize("other", [{"requests": (100.0, 1.0)}, {"usd_per_day": (5.0, 5.0 / DAY, DAY)}])
def test_a_process_with_other_settings_does_not_lift_the_cap(other):
    """A cron job that knows of no cap begins beside a worker that has one, which is idle just then."""
    host = Money()
    worker = host.start()
    ask(worker, 0.6)
    host.run(30.0)
    job = host.start(limits=other)
    for second in range(30, 90):
        host.at(float(second), lambda: ask(job, 0.1, queue_bound=5.0))
        host.at(float(second), lambda: ask(worker, 0.1, queue_bound=5.0))
    host.run(100.0)
    assert sum(ticket.charge.usd for ticket in worker.granted) <= 1.0 + 1e-9
    assert host.account.terms.limits["usd_per_day"][0] == 1.0
    assert len(job.failed) > 50


def test_a_day_is_not_forgotten_while_no_process_limits_it():
    account = Account(CAP, boot="boot", now=0.0)
    account.exchange(request("worker", spent={"usd_per_day": 0.9}), boot="boot", now=0.0)
    without = Terms({"requests": (100.0, 1.0)}, 0.0)
    account.exchange(Request(holder="job", terms=without, assert_terms=True), boot="boot", now=10.0)
    assert "usd_per_day" not in account.dimensions
    account = Account.loads(account.dumps())
    account.exchange(Request(holder="worker", terms=CAP, assert_terms=True), boot="another", now=5.0)
    assert account.available("usd_per_day", 6.0) == pytest.approx(0.1)
    assert account.available("usd_per_day", 5.0 + DAY + 1000.0) == pytest.approx(1.0)


def request(holder, **more):
    return Request(holder=holder, terms=CAP, **more)


def test_a_process_that_died_has_spent_what_it_held_for_a_day():
    state = Account(CAP, boot="a", now=0.0)
    state.exchange(request("dead", want={"usd_per_day": 0.6}, urgent=True), boot="a", now=0.0)
    later = LEASE_SECONDS + 1.0
    reply = state.exchange(request("b", want={"usd_per_day": 0.5}, urgent=True), boot="a", now=later)
    assert reply.retry_in == pytest.approx(DAY, rel=0.02)
    assert reply.never_in == {"usd_per_day": pytest.approx(reply.retry_in)}
    state = Account.loads(state.dumps())
    reply = state.exchange(request("b", want={"usd_per_day": 0.5}, urgent=True), boot="a", now=DAY + 1000.0)
    assert reply.retry_in == 0.0


def test_what_was_spent_for_nothing_is_given_back_to_all():
    host = Money()
    batches, other = host.start(), host.start()
    batch = ask(batches, 0.7, BULK, queue_bound=60.0)
    host.run(5.0)
    assert batch.state is State.OVER
    batches.admission.give_back(batch, host.now)
    batches.decide()
    host.run(10.0)
    call = ask(other, 0.9, queue_bound=60.0)
    host.run(70.0)
    assert call.error is None
    assert host.account.available("usd_per_day", host.now) == pytest.approx(0.1, abs=0.01)


def test_another_start_of_the_machine_forgets_nothing_of_the_day():
    state = Account(CAP, boot="a", now=0.0)
    state.exchange(request("a", spent={"usd_per_day": 0.4}), boot="a", now=50_000.0)
    state = Account.loads(state.dumps())
    assert state.describe(state.advance("b", 10.0))["dimensions"]["usd_per_day"]["used"] == pytest.approx(0.4)
    assert state.available("usd_per_day", 10.0 + DAY - 1.0) == pytest.approx(0.6)
    assert state.available("usd_per_day", 10.0 + DAY + 900.0) == pytest.approx(1.0)


def test_a_process_that_was_asleep_is_not_charged_twice_for_what_was_under_way():
    host = Money()
    process, other = host.start(), host.start()
    call = ask(process, 0.4, hold=6.0, spent=Charge(usd=0.3))
    host.run(1.0)
    process.frozen = True
    host.run(5.0)
    ask(other, 0.1)
    host.run(5.5)
    process.frozen = False
    host.run(20.0)
    assert call.state is State.OVER
    host.run(60.0)
    assert host.account.describe(host.now)["dimensions"]["usd_per_day"]["used"] < 0.75, (
        "0.5, and what it held idle"
    )


def test_the_file_keeps_the_day_when_all_processes_have_ended(tmp_path):
    backend, limits = BudgetConfig(backend=f"sqlite:{tmp_path}/budget.db"), LimitsConfig(usd_per_day=1.0)
    for _ in range(3):
        budget = Budget(backend=backend)
        pool = budget.pool("openai", "key", limits, "m")
        pool.acquire_sync(Charge(usd=0.3), traffic=INTERACTIVE).settle(Charge(usd=0.3))
        budget.close()
    budget = Budget(backend=backend)
    pool = budget.pool("openai", "key", limits, "m")
    with pytest.raises(BudgetExceeded, match="used up") as caught:
        pool.acquire_sync(Charge(usd=0.3), traffic=INTERACTIVE, queue_bound=5.0)
    assert caught.value.expected_wait > 80_000
    told = pool.snapshot()["dimensions"]["usd_per_day"]
    assert (told["limit"], told["window"], told["used"]) == (1.0, DAY, pytest.approx(0.9, abs=0.11))
    budget.close()


def test_a_file_of_the_earlier_form_is_taken_over(tmp_path):
    path = tmp_path / "budget.db"
    SqliteStore(path).close()
    old = {
        "boot": "a",
        "at": 100.0,
        "reserve": "auto",
        "limits": {"requests": [100.0, 1.0]},
        "states": {"requests": [40.0, 0.0, 0.15]},
        "holders": {},
    }
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 1")
        db.execute("INSERT INTO accounts VALUES ('x', ?)", (json.dumps(old),))
    db.close()
    store = SqliteStore(path, clock=lambda: 110.0, boot=lambda: "a")
    limits = Terms({"requests": (100.0, 1.0), "usd_per_day": (1.0, 1.0 / DAY, DAY)}, "auto")
    store.exchange("x", Request(holder="p", terms=limits, assert_terms=True))
    told = store.look("x")["dimensions"]
    assert told["requests"]["used"] == pytest.approx(30.0)
    assert told["usd_per_day"]["used"] == 0.0
    store.close()


def test_open_batches_of_two_processes_share_their_stock():
    host = Host(enqueued_batch_tokens=(1000.0, 0.0))
    first, second = host.start(), host.start()
    most = [0]

    def watch():
        most[0] = max(most[0], first.busy + second.busy)
        host.at(host.now + 0.05, watch)

    host.at(0.0, watch)
    calls = [process.ask(BULK, tokens=400.0, hold=3.0) for process in (first, second, first, second, first)]
    host.run(60.0)
    assert most[0] == 2
    assert all(ticket.state is State.OVER and ticket.error is None for ticket in calls)
