"""Any sequence of events: in any span of a window, what is spent and under way stays within the limit."""

import pytest
from budget_lab import BULK, INTERACTIVE, Gate, per_day, slots
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from orchestra.budget.ticket import State
from orchestra.budget.window import DAY, MINUTE, Window
from orchestra.call import Charge

USD = st.sampled_from([0.0, 0.01, 0.3, 0.75, 1.0, 1.5])
SECONDS = st.sampled_from([0.0, 0.7, 20.0, 61.0, 5000.0, DAY / 2, DAY + 1.0])
SLOTS, REQUESTS, DOLLARS = 4, 6, 1.0


class WindowMachine(RuleBasedStateMachine):
    @initialize(start=st.sampled_from([0.0, 17.3, 1.8e9]))
    def open(self, start):
        minute = Window("requests", capacity=REQUESTS, window=MINUTE, now=start)
        self.gate = Gate(minute, per_day("usd", DOLLARS, now=start), slots(SLOTS), now=start, reserve=0.0)
        self.tickets, self.ended, self.withdrawn = [], [], set()

    @rule(
        traffic=st.sampled_from([INTERACTIVE, BULK]), usd=USD, bound=st.none() | st.sampled_from([0.0, 30.0, 1e5])
    )
    def ask(self, traffic, usd, bound):
        self.tickets.append(self.gate.ask(traffic, usd=usd, queue_bound=bound))

    @rule(seconds=SECONDS)
    def wait(self, seconds):
        self.gate.run(self.gate.now + seconds)

    @rule(data=st.data(), part=st.sampled_from([0.0, 0.5, 1.0]), twice=st.booleans())
    def end(self, data, part, twice):
        running = [ticket for ticket in self.tickets if ticket.state is State.GRANTED]
        if running:
            ticket = data.draw(st.sampled_from(running))
            spent = Charge(usd=part * ticket.charge.usd)
            self.ended.append((self.gate.now, spent.usd))
            for _ in range(1 + twice):
                self.gate.end(ticket, spent)

    @rule(data=st.data())
    def withdraw(self, data):
        if self.tickets:
            ticket = data.draw(st.sampled_from(self.tickets))
            if ticket.state is not State.OVER:
                self.withdrawn.add(ticket)
            self.gate.withdraw(ticket)

    @invariant()
    def no_span_holds_more_than_the_limit(self):
        now = self.gate.now
        running = [ticket.charge for ticket in self.tickets if ticket.state is State.GRANTED]
        usd = sum(spent for at, spent in self.ended if at > now - DAY) + sum(one.usd for one in running)
        sent = [ticket for ticket in self.gate.granted if ticket not in self.withdrawn]
        calls = sum(ticket.granted_at > now - MINUTE for ticket in sent)
        assert usd <= DOLLARS + 1e-6
        assert calls <= REQUESTS
        told = {one.name: one.bucket for one in self.gate.admission.dimensions}
        assert told["usd_per_day"].reserved == pytest.approx(sum(one.usd for one in running), abs=1e-6)
        assert told["usd_per_day"].used(now) >= usd - 1e-6

    def teardown(self):
        if not hasattr(self, "gate"):
            return
        for _ in range(len(self.tickets) + 1):
            for ticket in self.tickets:
                if ticket.state is State.GRANTED:
                    self.gate.end(ticket)
            self.gate.run(self.gate.now + 2 * DAY)
        assert all(ticket.state is State.OVER for ticket in self.tickets), "somebody starved"
        buckets = [dimension.bucket for dimension in self.gate.admission.dimensions]
        assert all(bucket.used(self.gate.now) == pytest.approx(0.0, abs=1e-6) for bucket in buckets)


TestWindowMachine = WindowMachine.TestCase
TestWindowMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
