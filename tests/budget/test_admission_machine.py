"""Any sequence of events keeps the invariants, against a model of the limits that shares no code with ours."""

import math

import pytest
from budget_lab import BULK, INTERACTIVE, Gate, per_minute, slots
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from orchestra.budget.ticket import State
from orchestra.call import Charge

CLASSES = st.sampled_from([INTERACTIVE, BULK])
JOBS = st.sampled_from(["a", "b", None])
TOKENS = st.sampled_from([0.0, 1.0, 50.0, 333.3, 1000.0, 5000.0])  # the bucket holds 1000
SECONDS = st.sampled_from([0.0, 0.1, 1.0, 7.7, 60.0, 1000.0])
BOUNDS = st.none() | st.sampled_from([0.0, 0.5, 10.0, 300.0])

TOKENS_PER_MINUTE, REQUESTS_PER_MINUTE, SLOTS = 1000.0, 60.0, 4


class Model:
    """A leaky limit by the book: what is there, when it was looked at."""

    def __init__(self, capacity, rate):
        self.capacity, self.rate, self.level, self.at = capacity, rate, capacity, 0.0

    def look(self, now):
        self.level = min(self.capacity, self.level + (now - self.at) * self.rate)
        self.at = now
        return self.level

    def change(self, amount, now):
        self.level = min(self.capacity, self.look(now) + amount)


class AdmissionMachine(RuleBasedStateMachine):
    @initialize(
        reserve=st.sampled_from([0.0, 0.2, "auto"]),
        share=st.sampled_from([0.0, 0.0, 0.3]),
        max_waiting=st.sampled_from([None, 6]),
        start=st.sampled_from([0.0, 1.8e9]),
    )
    def open(self, reserve, share, max_waiting, start):
        self.exact = reserve != "auto"
        self.model = {
            "tokens": Model(TOKENS_PER_MINUTE, TOKENS_PER_MINUTE / 60),
            "requests": Model(REQUESTS_PER_MINUTE, REQUESTS_PER_MINUTE / 60),
        }
        for model in self.model.values():
            model.at = start
        self.gate = Gate(
            per_minute("tokens", TOKENS_PER_MINUTE, now=start),
            per_minute("requests", REQUESTS_PER_MINUTE, now=start),
            slots(SLOTS),
            now=start,
            reserve=reserve,
            bulk_min_share=share,
            max_waiting=max_waiting,
        )
        self.tickets = []
        self.under_way = []
        self.follow()

    def follow(self):
        """Let the model see each grant as it happens: it must have had room for it."""
        decide = self.gate.admission.decide
        machine = self

        def watched(now, limit=512):
            decision = decide(now, limit)
            for ticket in decision.granted:
                for metric, model in machine.model.items():
                    amount = getattr(ticket.charge, metric)
                    room = min(amount, model.capacity)
                    assert model.look(now) >= room - 1e-3, f"{metric}: granted more than there was"
                    model.change(-amount, now)
                machine.under_way.append(ticket)
            return decision

        self.gate.admission.decide = watched

    def end_in_model(self, ticket, spent):
        self.under_way.remove(ticket)
        for metric, model in self.model.items():
            model.change(getattr(ticket.charge, metric) - getattr(spent, metric), self.gate.now)

    @rule(traffic=CLASSES, tokens=TOKENS, job=JOBS, bound=BOUNDS, front=st.booleans(), together=st.booleans())
    def ask(self, traffic, tokens, job, bound, front, together):
        ticket = self.gate.ask(
            traffic, tokens=tokens, job=job, queue_bound=bound, front=front, decide=not together
        )
        self.tickets.append(ticket)

    @rule(seconds=SECONDS)
    def wait(self, seconds):
        self.gate.decide()
        self.gate.run(self.gate.now + seconds)
        if self.exact:
            assert not self.gate.decide(), "somebody could have gone before"

    @rule(data=st.data(), spent=st.none() | TOKENS, twice=st.booleans())
    def end(self, data, spent, twice):
        if not self.under_way:
            return
        ticket = data.draw(st.sampled_from(self.under_way))
        usage = ticket.charge if spent is None else Charge(tokens=spent)
        self.end_in_model(ticket, usage)
        self.gate.end(ticket, usage)
        if twice:
            self.gate.end(ticket, usage)

    @rule(data=st.data())
    def withdraw(self, data):
        if not self.tickets:
            return
        ticket = data.draw(st.sampled_from(self.tickets))
        if ticket in self.under_way:
            self.end_in_model(ticket, Charge(requests=0.0))
        self.gate.withdraw(ticket)

    @rule(seconds=SECONDS)
    def pause(self, seconds):
        self.gate.admission.pause(self.gate.now + seconds, "429")
        self.gate.decide()

    @rule()
    def resume(self):
        self.gate.admission.resume()
        self.gate.decide()

    @invariant()
    def the_books_balance(self):
        admission = self.gate.admission
        by_metric = {dimension.metric: dimension.bucket for dimension in admission.dimensions}
        assert by_metric["concurrency"].used(self.gate.now) == len(self.under_way) <= SLOTS
        for line in (admission.interactive, admission.bulk):
            assert line.in_use == sum(ticket.traffic is line.traffic for ticket in self.under_way)
            waiting = [t for t in self.tickets if t.state is State.WAITING and t.traffic is line.traffic]
            fresh = sum(ticket.traffic is line.traffic for ticket in admission._fresh if ticket in waiting)
            assert line.waiting == len(line.queue) == len(waiting) - fresh
        for metric, model in self.model.items():
            reserved = sum(getattr(ticket.charge, metric) for ticket in self.under_way)
            assert by_metric[metric].reserved == pytest.approx(reserved, abs=1e-6)
            level = by_metric[metric].available(self.gate.now)
            assert level == pytest.approx(model.look(self.gate.now), abs=1e-2)

    def teardown(self):
        """Once everything under way ends and time goes on, everybody who waits goes or has been told no."""
        if not hasattr(self, "gate"):
            return
        self.gate.admission.resume()
        self.gate.decide()
        for _ in range(len(self.tickets) + 1):
            for ticket in list(self.under_way):
                self.end_in_model(ticket, ticket.charge)
                self.gate.end(ticket)
            self.gate.run(self.gate.now + 1e5)
        admission = self.gate.admission
        assert all(ticket.state is State.OVER for ticket in self.tickets), "somebody starved"
        assert (admission.interactive.in_use, admission.bulk.in_use) == (0, 0)
        assert (admission.interactive.waiting, admission.bulk.waiting) == (0, 0)
        assert not admission._expiries
        assert all(d.bucket.reserved == pytest.approx(0.0, abs=1e-6) for d in admission.dimensions)
        granted, failed = set(self.gate.granted), set(self.gate.failed)
        assert len(granted) == len(self.gate.granted), "granted twice"
        assert not granted & failed
        assert math.isinf(self.gate.admission.decide(self.gate.now).next_at)


TestAdmissionMachine = AdmissionMachine.TestCase
TestAdmissionMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
