"""Who is next, and when; in virtual time."""

import math

import pytest
from budget_lab import BULK, INTERACTIVE, Gate, per_day, per_minute, slots

from orchestra.budget.admission import Admission
from orchestra.budget.bucket import Bucket
from orchestra.budget.ticket import State, Ticket
from orchestra.call import Charge
from orchestra.errors import AdmissionTimeout, BudgetExceeded, QueueFull


def drained(*buckets, **settings):
    """A gate whose buckets are empty and whose line is as well."""
    gate = Gate(*buckets, **settings)
    for dimension in gate.admission.dimensions:
        if dimension.bucket.rate:
            dimension.bucket.reserve(dimension.bucket.capacity, 0.0)
            dimension.bucket.settle(dimension.bucket.capacity, dimension.bucket.capacity, 0.0)
    return gate


class TestOrder:
    def test_interactive_precedes_bulk_that_came_before(self):
        """litellm 6867, 31830: order matters whenever the budget is the bottleneck."""
        gate = drained(per_minute("requests", 60))
        bulk = [gate.ask(BULK) for _ in range(50)]
        interactive = [gate.ask(INTERACTIVE) for _ in range(5)]
        gate.run(120.0)
        assert gate.granted == interactive + bulk
        assert [ticket.granted_at for ticket in interactive] == pytest.approx([1, 2, 3, 4, 5])

    def test_all_who_ask_at_the_same_instant_are_ordered_before_anyone_goes(self):
        gate = Gate(per_minute("requests", 60, burst_seconds=10))
        bulk = [gate.ask(BULK, decide=False) for _ in range(20)]
        last = gate.ask(INTERACTIVE, decide=False)
        assert gate.decide()[0] is last
        assert not all(ticket.state is State.GRANTED for ticket in bulk)

    def test_a_retry_reenters_at_the_front_of_its_class_only(self):
        gate = drained(per_minute("requests", 60))
        first, second = gate.ask(BULK), gate.ask(BULK)
        retry = gate.ask(BULK, front=True)
        person = gate.ask(INTERACTIVE)
        gate.run(60.0)
        assert gate.granted == [person, retry, first, second]

    def test_jobs_share_what_bulk_gets_by_cost(self):
        gate = drained(per_minute("tokens", 6000))
        for _ in range(100):
            gate.ask(BULK, tokens=100.0, job="large")
            gate.ask(BULK, tokens=10.0, job="small")
        gate.run(15.0)
        used = {job: sum(t.charge.tokens for t in gate.granted if t.job == job) for job in ("large", "small")}
        assert used["small"] == pytest.approx(used["large"], abs=110)

    def test_small_calls_do_not_keep_a_large_one_out(self):
        gate = drained(per_minute("tokens", 600))
        large = gate.ask(BULK, tokens=400.0, job="a")
        for second in range(200):
            gate.at(float(second), lambda: gate.ask(BULK, tokens=5.0, job="b"))
        gate.run(120.0)
        assert large.state is State.GRANTED

    def test_inside_a_job_the_urgent_go_first(self):
        gate = drained(per_minute("requests", 60), reserve=0.0)
        patient = gate.ask(BULK)
        urgent = gate.ask(BULK, expires_at=10.0)
        gate.run(2.0)
        assert gate.granted == [urgent, patient]

    def test_a_large_charge_is_granted_even_under_steady_small_interactive_load(self):
        gate = drained(per_minute("tokens", 6000, burst_seconds=10))
        large = gate.ask(BULK, tokens=5000.0)
        for tick in range(600):
            gate.at(tick * 0.1, lambda: gate.ask(INTERACTIVE, tokens=5.0))
        gate.run(60.0)
        assert large.state is State.GRANTED


class TestReserve:
    def test_bulk_leaves_the_reserve_and_interactive_uses_it(self):
        gate = Gate(per_minute("requests", 600, burst_seconds=10))
        for _ in range(200):
            gate.ask(BULK)
        assert len(gate.granted) == 85
        people = [gate.ask(INTERACTIVE) for _ in range(15)]
        assert all(ticket.state is State.GRANTED for ticket in people)

    def test_quiet_interactive_leaves_bulk_the_whole_refill(self):
        gate = Gate(per_minute("requests", 600, burst_seconds=10))
        for _ in range(2000):
            gate.ask(BULK)
        gate.run(100.0)
        assert len(gate.granted) == 85 + 1000

    def test_auto_follows_the_largest_recent_burst(self):
        gate = Gate(per_minute("requests", 600, burst_seconds=10))
        for _ in range(4000):
            gate.ask(BULK)
        waits = []
        for burst in range(10):
            for _ in range(30):
                gate.at(20.0 + 20.0 * burst, lambda: waits.append(gate.ask(INTERACTIVE, decide=False)))
            gate.at(20.0 + 20.0 * burst, gate.decide)
        gate.run(300.0)
        waited = [ticket.granted_at - ticket.entered_at for ticket in waits]
        assert max(waited[:30]) > 1.0, "nobody could know the first burst"
        assert max(waited[30:]) == 0.0

    def test_the_reserve_of_slots_is_whole_and_comes_from_the_demand(self):
        gate = Gate(slots(4))
        assert len([gate.ask(BULK) for _ in range(4)]) == len(gate.granted) == 4
        for ticket in list(gate.granted):
            gate.end(ticket)
        gate.end(gate.ask(INTERACTIVE))
        bulk = [gate.ask(BULK) for _ in range(4)]
        assert sum(ticket.state is State.GRANTED for ticket in bulk) == 3

    def test_a_steady_trickle_is_no_burst(self):
        gate = Gate(per_minute("requests", 600, burst_seconds=10))
        for tick in range(3000):
            gate.at(tick * 0.2, lambda: gate.ask(INTERACTIVE))
        gate.run(600.0)
        assert gate.admission.dimensions[0].floor(gate.now) == 15.0

    def test_bulk_that_comes_together_with_a_person_is_no_interactive_demand(self):
        gate = Gate(slots(20))
        for _ in range(100):
            gate.ask(BULK, decide=False)
        gate.ask(INTERACTIVE, decide=False)
        gate.decide()
        assert sum(ticket.traffic is BULK for ticket in gate.granted) == 16

    def test_an_outage_is_not_remembered_for_its_length(self):
        gate = Gate(per_minute("requests", 600, burst_seconds=10))
        gate.admission.pause(600.0, "quota")
        for second in range(600):
            gate.at(float(second), lambda: [gate.ask(INTERACTIVE, queue_bound=5.0) for _ in range(20)])
        gate.run(600.0 + 595.0)
        assert gate.ask(INTERACTIVE).state is State.GRANTED
        assert gate.admission.dimensions[0].floor(gate.now) == pytest.approx(25.0, abs=1.0), (
            "half a half-life later"
        )

    def test_one_slot_serves_both_classes(self):
        gate = Gate(slots(1))
        bulk = gate.ask(BULK)
        assert bulk.state is State.GRANTED
        person, another = gate.ask(INTERACTIVE), gate.ask(BULK)
        gate.end(bulk)
        assert (person.state, another.state) == (State.GRANTED, State.WAITING)
        gate.end(person)
        assert another.state is State.GRANTED

    def test_a_fixed_share(self):
        gate = Gate(per_minute("requests", 600, burst_seconds=10), reserve=0.4)
        for _ in range(100):
            gate.ask(BULK)
        assert len(gate.granted) == 60


class TestBulkMinShare:
    @pytest.mark.parametrize("share", [0.1, 0.3])
    def test_bulk_gets_its_share_of_the_refill_under_endless_interactive_load(self, share):
        gate = drained(per_minute("requests", 600, burst_seconds=10), bulk_min_share=share)
        for _ in range(3000):
            gate.ask(INTERACTIVE, decide=False)
            gate.ask(BULK, decide=False)
        gate.decide()
        gate.run(100.0)
        bulk = sum(ticket.traffic is BULK for ticket in gate.granted)
        assert bulk == pytest.approx(1000 * share, abs=3)
        assert len(gate.granted) == pytest.approx(1000, abs=3), "and the refill is used whole"

    def test_without_it_bulk_waits(self):
        gate = drained(per_minute("requests", 600, burst_seconds=10))
        for _ in range(2000):
            gate.ask(INTERACTIVE, decide=False)
            gate.ask(BULK, decide=False)
        gate.decide()
        gate.run(100.0)
        assert all(ticket.traffic is INTERACTIVE for ticket in gate.granted)

    def test_what_bulk_is_owed_does_not_wait_for_a_large_interactive_call(self):
        gate = drained(per_minute("requests", 60), bulk_min_share=0.2)
        person, bulk = gate.ask(INTERACTIVE, requests=50.0), gate.ask(BULK)
        gate.run(100.0)
        assert bulk.granted_at == pytest.approx(1.0)
        assert person.granted_at == pytest.approx(51.0)

    def test_of_slots_bulk_gets_at_least_one(self):
        gate = Gate(slots(3), bulk_min_share=0.2)
        for _ in range(200):
            gate.ask(INTERACTIVE, hold=1.0, decide=False)
            gate.ask(BULK, hold=1.0, decide=False)
        gate.decide()
        gate.run(30.0)
        bulk = sum(ticket.traffic is BULK for ticket in gate.granted)
        assert 25 <= bulk <= 32


class TestCharges:
    def test_tokens_bind_where_requests_do_not(self):
        """litellm 5783: twenty calls of 200 tokens at once against 1,000 a minute."""
        gate = Gate(per_minute("tokens", 1000), per_minute("requests", 1e6))
        calls = [gate.ask(INTERACTIVE, tokens=200.0, hold=0.3) for _ in range(20)]
        assert sum(ticket.state is State.GRANTED for ticket in calls) == 5
        gate.run(179.0)
        assert len(gate.granted) == 5 + 14
        gate.run(181.0)
        assert len(gate.granted) == 20, "none is lost"

    def test_usage_above_the_estimate_is_a_debt_that_delays_the_next(self):
        """litellm 18730."""
        gate = Gate(per_minute("tokens", 600))
        first = gate.ask(INTERACTIVE, tokens=300.0)
        second = gate.ask(INTERACTIVE, tokens=400.0)
        assert second.state is State.WAITING
        gate.end(first, Charge(tokens=900.0))
        gate.run(69.0)
        assert second.state is State.WAITING
        gate.run(70.1)
        assert second.state is State.GRANTED

    def test_an_oversize_charge_is_sent_within_one_refill_and_never_hangs(self):
        """openlimit 8."""
        gate = drained(per_minute("tokens", 600))
        call = gate.ask(INTERACTIVE, tokens=800.0)
        gate.run(60.0)
        assert call.state is State.GRANTED
        after = gate.ask(INTERACTIVE, tokens=10.0)
        gate.run(60.0 + 20.9)
        assert after.state is State.WAITING
        gate.run(60.0 + 21.1)
        assert after.state is State.GRANTED

    def test_a_refund_admits_the_next_at_once(self):
        gate = Gate(per_minute("tokens", 600))
        first, second = gate.ask(tokens=600.0), gate.ask(tokens=600.0)
        gate.withdraw(first)
        assert second.state is State.GRANTED

    def test_a_slot_is_free_only_when_a_call_ends(self):
        """oh-my-pi 3749, zed 47494."""
        gate = Gate(slots(1))
        first, second = gate.ask(), gate.ask()
        gate.run(1e6)
        assert second.state is State.WAITING
        gate.end(first)
        assert second.state is State.GRANTED

    def test_the_first_end_counts(self):
        gate = Gate(slots(5), per_minute("tokens", 600))
        call = gate.ask(tokens=100.0)
        for _ in range(3):
            gate.end(call, Charge(tokens=50.0))
        tokens = next(d for d in gate.admission.dimensions if d.metric == "tokens")
        assert tokens.bucket.used(0.0) == 50.0
        assert gate.admission.interactive.in_use == 0

    def test_what_can_never_fit_fails_at_once(self):
        gate = Gate(Bucket("tokens", capacity=100.0))
        call = gate.ask(tokens=101.0)
        assert isinstance(call.error, BudgetExceeded)
        assert "tokens" in str(call.error)

    def test_parallel_calls_never_pass_a_hard_limit_together(self):
        """litellm 34732, gbrain 4365: outstanding reservations are part of what is spent."""
        gate = Gate(per_day("tokens", 100.0))
        calls = [gate.ask(tokens=30.0, decide=False, queue_bound=60.0) for _ in range(10)]
        gate.decide()
        running = [ticket for ticket in calls if ticket.state is State.GRANTED]
        assert len(running) == 3
        for ticket in running:
            gate.end(ticket)
        assert sum(isinstance(ticket.error, BudgetExceeded) for ticket in calls) == 7

    @pytest.mark.parametrize("amount", [-1.0, math.nan, math.inf])
    @pytest.mark.parametrize("metric", ["requests", "tokens", "input_tokens", "output_tokens"])
    def test_bad_charges(self, metric, amount):
        with pytest.raises(ValueError, match="charge"):
            Ticket(Charge(**{metric: amount}), INTERACTIVE)


class TestBounds:
    def test_a_bound_ends_the_wait_at_its_instant(self):
        gate = Gate(slots(1))
        gate.ask(BULK)
        call = gate.ask(INTERACTIVE, queue_bound=2.0)
        gate.run(1.9)
        assert call.state is State.WAITING
        gate.run(2.0)
        assert isinstance(call.error, AdmissionTimeout)
        assert call.error.timed_out
        assert gate.admission.interactive.waiting == 0

    def test_the_earlier_bound_counts(self):
        gate = Gate(slots(1))
        gate.ask(BULK)
        call = gate.ask(INTERACTIVE, queue_bound=5.0, expires_at=3.0)
        gate.run(3.0)
        assert isinstance(call.error, AdmissionTimeout)

    def test_it_fails_at_once_where_it_is_certain_to_be_too_late(self):
        gate = drained(per_minute("requests", 60))
        call = gate.ask(INTERACTIVE, requests=30.0, queue_bound=5.0)
        assert isinstance(call.error, AdmissionTimeout)
        assert not call.error.timed_out
        assert call.error.expected_wait == pytest.approx(30.0)

    def test_it_waits_where_a_refund_could_still_help(self):
        gate = Gate(per_minute("requests", 60))
        first = gate.ask(INTERACTIVE, requests=60.0)
        call = gate.ask(INTERACTIVE, requests=30.0, queue_bound=5.0)
        assert call.state is State.WAITING
        gate.run(2.0)
        gate.withdraw(first)
        assert call.state is State.GRANTED

    def test_no_time_at_all_means_now_or_never(self):
        gate = Gate(slots(1))
        first, second = gate.ask(queue_bound=0.0), gate.ask(queue_bound=0.0)
        assert first.state is State.GRANTED
        assert isinstance(second.error, AdmissionTimeout)

    def test_a_call_that_comes_after_its_bound_is_not_sent(self):
        gate = Gate(now=100.0)
        assert isinstance(gate.ask(expires_at=99.0).error, AdmissionTimeout)

    def test_the_expected_wait_is_about_right(self):
        gate = drained(per_minute("requests", 60))
        for _ in range(30):
            gate.ask(INTERACTIVE)
        gate.ask(BULK, queue_bound=10.0)
        gate.run(10.0)
        error = gate.failed[0].error
        assert error.expected_wait == pytest.approx(31.0 + 9.0 * 2.5, rel=0.2), "the reserve grew with the burst"
        assert "would have waited about" in str(error)

    def test_a_waiter_that_is_gone_blocks_nobody(self):
        """litellm 20059."""
        gate = drained(per_minute("requests", 60))
        for _ in range(1000):
            gate.ask(INTERACTIVE, requests=50.0, queue_bound=55.0)
        gate.run(49.0)
        for ticket in list(gate.admission._fresh):
            gate.withdraw(ticket)
        gate.run(55.0)
        assert gate.admission.interactive.waiting == 0
        assert gate.ask(INTERACTIVE).state is State.GRANTED

    @pytest.mark.parametrize(
        "bounds", [{"expires_at": math.nan}, {"queue_bound": math.nan}, {"queue_bound": -1.0}]
    )
    def test_bad_bounds(self, bounds):
        with pytest.raises(ValueError, match="must be"):
            Ticket(Charge(), INTERACTIVE, **bounds)


class TestQueueBound:
    def test_the_overflow_fails_at_once_with_the_expected_wait(self):
        """buttercup 4."""
        gate = drained(per_minute("requests", 60), max_waiting=5)
        calls = [gate.ask(BULK) for _ in range(8)]
        errors = [ticket.error for ticket in calls if ticket.error]
        assert [type(error) for error in errors] == [QueueFull] * 3
        assert errors[0].expected_wait == pytest.approx(6.0 + 9.0)
        assert gate.ask(INTERACTIVE).state is State.WAITING, "each class has its own bound"
        assert gate.ask(BULK, front=True).state is State.WAITING, "a retry had its place already"

    def test_those_who_come_together_count(self):
        gate = drained(per_minute("requests", 60), max_waiting=5)
        calls = [gate.ask(BULK, decide=False) for _ in range(8)]
        gate.decide()
        assert sum(isinstance(ticket.error, QueueFull) for ticket in calls) == 3

    def test_those_who_need_not_wait_are_not_waiting(self):
        gate = Gate(per_minute("requests", 60), max_waiting=2)
        calls = [gate.ask(INTERACTIVE, decide=False) for _ in range(70)]
        gate.decide()
        assert [ticket.state is State.GRANTED for ticket in calls] == [True] * 60 + [False] * 10
        assert [isinstance(ticket.error, QueueFull) for ticket in calls[60:]] == [False] * 2 + [True] * 8

    def test_nor_are_those_whom_only_the_size_of_a_decision_keeps(self):
        gate = Gate(max_waiting=0)
        calls = [gate.ask(BULK, decide=False) for _ in range(2000)]
        gate.decide()
        gate.run(1.0)
        assert gate.granted == calls

    def test_unbounded_thirty_calls_at_ten_a_minute_all_go_in_order(self):
        gate = Gate(per_minute("requests", 10))
        calls = [gate.ask(INTERACTIVE) for _ in range(30)]
        gate.run(120.1)
        assert gate.granted == calls

    @pytest.mark.parametrize("bound", [-1, True, math.nan])
    def test_bad_bounds(self, bound):
        with pytest.raises(ValueError, match="max_waiting"):
            Admission(max_waiting=bound)


class TestPause:
    def test_nobody_goes_before_the_pause_ends(self):
        gate = Gate(per_minute("requests", 600))
        gate.admission.pause(30.0, "429 with Retry-After")
        call = gate.ask(INTERACTIVE)
        assert gate.admission.wait.reason == "429 with Retry-After"
        assert gate.admission.wait.until == 30.0
        gate.run(29.9)
        assert call.state is State.WAITING
        gate.run(30.0)
        assert call.state is State.GRANTED

    def test_the_longest_pause_counts_and_resume_ends_it(self):
        gate = Gate()
        gate.admission.pause(30.0, "long")
        gate.admission.pause(10.0, "short")
        call = gate.ask()
        gate.run(20.0)
        assert call.state is State.WAITING
        gate.admission.resume()
        gate.decide()
        assert call.state is State.GRANTED

    def test_whoever_cannot_outwait_it_fails_at_once(self):
        gate = Gate(per_minute("requests", 600))
        gate.admission.pause(30.0, "quota")
        assert isinstance(gate.ask(queue_bound=20.0).error, AdmissionTimeout)
        patient = gate.ask(queue_bound=40.0)
        assert patient.state is State.WAITING
        gate.admission.pause(math.inf, "insufficient_quota")
        gate.decide()
        assert isinstance(patient.error, AdmissionTimeout)
        assert "insufficient_quota" in str(patient.error)
        assert patient.error.expected_wait is None
        bulk = gate.ask(BULK)
        gate.run(1e6)
        assert bulk.state is State.WAITING, "bulk without a bound waits for as long as it takes"


class TestLimits:
    def test_changed_limits_count_at_once(self):
        gate = drained(per_minute("requests", 60))
        call = gate.ask(requests=10.0)
        gate.admission.set_limits([per_minute("requests", 600)], gate.now)
        gate.decide()
        gate.run(1.0)
        assert call.state is State.GRANTED

    def test_calls_under_way_count_against_a_new_concurrency_limit(self):
        gate = Gate()
        calls = [gate.ask() for _ in range(3)]
        gate.admission.set_limits([slots(2)], gate.now)
        waiting = gate.ask()
        gate.end(calls[0])
        assert waiting.state is State.WAITING
        gate.end(calls[1])
        assert waiting.state is State.GRANTED

    def test_a_concurrency_limit_that_goes_and_comes_again_counts_whoever_is_under_way(self):
        gate = Gate(slots(2))
        old = gate.ask()
        gate.admission.set_limits([], gate.now)
        calls = [gate.ask() for _ in range(2)]
        gate.admission.set_limits([slots(2)], gate.now)
        waiting = gate.ask()
        (limit,) = gate.admission.dimensions
        for call, used in ((calls[0], 2.0), (old, 2.0), (calls[1], 1.0), (waiting, 0.0)):
            gate.end(call)
            assert limit.bucket.used(gate.now) == limit.bucket.reserved == used
        assert waiting.state is State.OVER

    def test_a_lease_from_before_ends_well_when_its_limit_is_gone(self):
        gate = Gate(per_minute("tokens", 60))
        call = gate.ask(tokens=60.0)
        gate.admission.set_limits([per_minute("requests", 60)], gate.now)
        gate.end(call)
        assert [d.metric for d in gate.admission.dimensions] == ["requests"]
        assert gate.admission.interactive.in_use == 0


class TestScale:
    def test_a_decision_grants_a_bounded_number_and_asks_to_be_called_again(self):
        gate = Gate()
        for _ in range(1000):
            gate.ask(decide=False)
        assert len(gate.admission.decide(0.0, limit=100).granted) == 100
        assert gate.admission.decide(0.0, limit=100).next_at == 0.0

    def test_a_hundred_thousand_waiters_come_go_and_leave_nothing(self):
        gate = drained(per_minute("requests", 60))
        tickets = [gate.ask(BULK, decide=False, queue_bound=1e6, job=f"job {n % 7}") for n in range(100_000)]
        gate.decide()
        gate.run(60.0)
        assert len(gate.granted) == pytest.approx(51, abs=1)
        person = gate.ask(INTERACTIVE)
        gate.run(61.1)
        assert person.state is State.GRANTED
        for ticket in reversed(tickets):
            gate.admission.withdraw(ticket, gate.now)
        gate.decide()
        assert gate.admission.bulk.waiting == 0
        assert gate.admission.bulk.backlog == 0.0
        heaps = [gate.admission._expiries, *(job.waiting for job in gate.admission.bulk.queue._jobs.values())]
        assert all(len(heap._run) + len(heap._heap) <= 8 for heap in heaps)


def test_nobody_knows_how_long_slots_are_held_before_a_call_has_ended():
    gate = Gate(slots(2), max_waiting=4)
    calls = [gate.ask(hold=10.0) for _ in range(7)]
    assert isinstance(calls[-1].error, QueueFull)
    assert calls[-1].error.expected_wait is None
    gate.withdraw(gate.ask(front=True, decide=False))  # which was never under way tells nothing
    gate.run(10.0)
    late = [gate.ask(hold=10.0) for _ in range(3)][-1]
    assert isinstance(late.error, QueueFull)
    assert 20.0 <= late.error.expected_wait <= 30.0
