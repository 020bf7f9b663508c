"""What headers teach about what is left, while calls are under way."""

from __future__ import annotations

import math

import pytest
from account_lab import BULK, INTERACTIVE
from budget_lab import Gate, per_minute
from hypothesis import given
from hypothesis import strategies as st

from orchestra.budget.admission import NOTHING
from orchestra.call import Charge, RateLimit

ONE = Charge()


def requests(remaining: float | None, reset: float | None = None, limit: float | None = 600, **fields: object):
    return RateLimit("requests", limit, remaining, reset, name="requests", **fields)


class Learner(Gate):
    """A gate before an unknown account, whose calls end when told to, by an answer."""

    def __init__(self, *buckets):
        super().__init__(*buckets, careful=not buckets)

    def answer(self, ticket, *told, ok=True):
        self.admission.answered(ticket, told, self.now, ok=ok)
        self.admission.end(ticket, ticket.charge, self.now)
        self.decide()

    def refuse(self, ticket, *told, pause=None):
        self.admission.end(ticket, Charge(), self.now)
        self.admission.throttled(ticket, told, pause, self.now)
        self.decide()

    def learned(self, name="requests"):
        return self.admission.learning.limits[name].dimension.bucket

    def left(self, name="requests"):
        return self.learned(name).available(self.now)

    def names(self):
        return [dimension.name for dimension in self.admission.learning.dimensions]


def after(gate, seconds):
    gate.run(gate.now + seconds)


def test_a_limit_that_is_told_is_taken_on_with_its_burst():
    gate = Learner()
    ticket = gate.ask()
    after(gate, 0.3)
    gate.answer(ticket, requests(99, reset=0.1))
    bucket = gate.learned()
    assert (bucket.rate, bucket.capacity) == (10.0, pytest.approx(100.0))
    assert gate.left() == 99.0
    assert gate.names() == ["requests (learned)"]


def test_calls_let_go_after_the_one_that_tells_are_taken_off():
    gate = Learner()
    first = gate.ask()
    after(gate, 1.0)
    for _ in range(30):
        gate.ask()
    gate.answer(first, requests(99, reset=0.1))
    assert gate.left() == pytest.approx(79.0, abs=1.0)


def test_a_tenant_lowers_what_is_left_at_once():
    gate = Learner()
    gate.answer(gate.ask(), requests(99, reset=0.1))
    after(gate, 0.5)
    gate.answer(gate.ask(), requests(40, reset=6.0))
    assert gate.left() == pytest.approx(40, abs=1.0)


def test_more_than_expected_raises_it_carefully_and_in_the_end():
    gate = Learner()
    gate.answer(gate.ask(), requests(10, reset=9.0))
    after(gate, 0.1)
    gate.answer(gate.ask(), requests(80, reset=2.0))
    assert 30 < gate.left() < 60
    for _ in range(8):
        after(gate, 0.1)
        gate.answer(gate.ask(), requests(80, reset=2.0))
    assert gate.left() == pytest.approx(80, abs=3.0)


def test_many_answers_that_tell_the_same_story_count_once():
    gate = Learner()
    gate.answer(gate.ask(), requests(100, reset=0.0))
    tickets = [gate.ask() for _ in range(10)]
    after(gate, 0.2)
    for number, ticket in enumerate(tickets):
        gate.answer(ticket, requests(49 - number, reset=5.0 + number / 10))
    assert gate.left() == pytest.approx(42, abs=2.0)


def test_answers_that_overtake_each_other_are_no_news():
    gate = Learner()
    gate.answer(gate.ask(), requests(100, reset=0.0))
    after(gate, 1.0)
    tickets = [gate.ask() for _ in range(20)]
    after(gate, 0.3)
    for number, ticket in enumerate(reversed(tickets)):
        gate.answer(ticket, requests(99 - number, reset=(1 + number) / 10))
    assert gate.left() == pytest.approx(83, abs=2.0)


def test_what_never_left_us_is_not_missing():
    gate = Learner()
    gate.answer(gate.ask(), requests(99, reset=0.1))
    ticket = gate.ask()
    for other in [gate.ask() for _ in range(10)]:
        gate.end(other, NOTHING)
    gate.answer(ticket, requests(98, reset=0.2))
    assert gate.left() == pytest.approx(98, abs=1.0)


def test_a_limit_that_changes_is_followed_both_ways():
    gate = Learner()
    gate.answer(gate.ask(), requests(99, reset=0.1))
    after(gate, 1.0)
    gate.answer(gate.ask(), requests(49, reset=0.2, limit=300))
    assert (gate.learned().rate, gate.learned().capacity) == (5.0, 50.0)
    after(gate, 1.0)
    gate.answer(gate.ask(), requests(90, reset=5.5, limit=1200))
    assert (gate.learned().rate, gate.learned().capacity) == (20.0, 200.0)


def test_an_old_answer_does_not_bring_an_old_limit_back():
    gate = Learner()
    old = gate.ask()
    after(gate, 1.0)
    gate.answer(gate.ask(), requests(49, reset=0.2, limit=300))
    gate.answer(old, requests(99, reset=0.1))
    assert gate.learned().rate == 5.0


def test_what_is_unknown_changes_nothing():
    gate = Learner()
    gate.answer(gate.ask(), requests(None, limit=None))
    assert gate.names() == ["concurrency (learned)"]
    gate.answer(gate.ask(), requests(5, limit=None))
    assert gate.names() == ["concurrency (learned)"], "how fast it comes back is not known"
    gate.answer(gate.ask(), requests(99, reset=0.1))
    before = gate.left()
    gate.answer(gate.ask(), requests(None))
    assert gate.left() == before - 1


def test_a_limit_alone_is_kept_to():
    gate = Learner()
    gate.answer(gate.ask(), requests(None, limit=10, window=1.0))
    assert (gate.learned().rate, gate.left()) == (10.0, 10.0)


def test_remainders_in_round_thousands_are_no_news():
    gate = Learner()
    told = RateLimit("tokens", 90_000, 90_000, 0.0, name="tokens", resolution=1000)
    gate.answer(gate.ask(tokens=100), told)
    for _ in range(5):
        ticket = gate.ask(tokens=300)
        before = gate.left("tokens")
        gate.answer(ticket, RateLimit("tokens", 90_000, round(before, -3), 1.0, name="tokens", resolution=1000))
        assert gate.left("tokens") == before


def test_a_configured_limit_is_lowered_by_headers_and_never_raised():
    gate = Learner(per_minute("requests", 600, burst_seconds=10))
    gate.answer(gate.ask(), requests(1199, reset=0.05, limit=1200))
    assert len(gate.decide() or [gate.ask() for _ in range(300)]) == 300
    assert gate.admission.interactive.in_use == 99, "the configured burst, of which one was used"
    after(gate, 60.0)
    assert gate.admission.interactive.in_use == pytest.approx(300, abs=0)
    gate.answer(gate.ask(), requests(3, reset=60.0, limit=1200))
    for _ in range(50):
        gate.ask()
    assert gate.admission.interactive.waiting >= 45, "three are left, whatever is configured"


def test_two_limits_of_one_metric_both_count():
    gate = Learner()
    project = RateLimit("tokens", 6000, 6000, 0.0, name="project_tokens")
    gate.answer(gate.ask(), RateLimit("tokens", 60_000, 60_000, 0.0, name="tokens"), project)
    gate.ask(tokens=5000)
    assert gate.ask(tokens=5000).place is not None
    assert gate.admission.wait.reason == "project_tokens (learned)"


def test_a_day_is_a_long_window():
    gate = Learner()
    told = RateLimit("requests", 14400, 14370, 180, window=86400, name="requests_per_day")
    gate.answer(gate.ask(), told)
    assert gate.learned("requests_per_day").capacity == pytest.approx(14400)
    assert gate.learned("requests_per_day").rate == pytest.approx(1 / 6)


def test_of_a_window_that_resets_all_at_once_bulk_does_not_take_everything_first():
    """A fixed minute: the count of what is left does not rise until the reset."""
    gate = Learner()
    left, sent = 600, []

    def serve(ticket):
        nonlocal left
        left -= 1
        sent.append(gate.now)
        return requests(left, reset=60 - gate.now % 60)

    for _ in range(2000):
        gate.ask(BULK, decide=False)
    gate.decide()
    seen = 0
    while gate.now < 59:
        while seen < len(gate.granted):
            gate.answer(gate.granted[seen], serve(gate.granted[seen]))
            seen += 1
        after(gate, 0.1)
    assert left > 0, "nothing was refused"
    assert sum(at < 10 for at in sent) < 300
    assert len(sent) > 500


def test_a_refusal_that_a_told_limit_explains_is_no_news_to_the_controllers():
    gate = Learner()
    gate.answer(gate.ask(), requests(99, reset=0.1))
    for _ in range(5):
        gate.refuse(gate.ask(), requests(0, reset=10.0))
        after(gate, 1.0)
    assert not gate.admission.learning.send_rate.awake
    assert gate.left() <= 10.0


def test_a_refusal_with_a_hint_pauses_everybody_and_leaves_concurrency_alone():
    gate = Learner()
    tickets = [gate.ask(BULK) for _ in range(7)]
    gate.refuse(tickets[0], pause=2.0)
    assert gate.admission.learning.concurrency.limit == 8
    person, bulk = gate.ask(INTERACTIVE), gate.ask(BULK)
    after(gate, 1.9)
    assert person.granted_at == bulk.granted_at == 0.0
    assert (person.place, bulk.place) != (None, None)
    after(gate, 0.2)
    assert person.granted_at == pytest.approx(2.0)


def test_an_unknown_account_is_tried_with_few_bulk_calls_and_no_person_waits_for_that():
    gate = Learner()
    for _ in range(50):
        gate.ask(BULK, decide=False)
    gate.decide()
    assert gate.admission.bulk.in_use == 7, "eight slots, of which people get one"
    for _ in range(20):
        gate.ask(INTERACTIVE)
    assert gate.admission.interactive.in_use == 20


def test_with_clean_answers_it_doubles_round_by_round():
    gate, sizes = Learner(), []
    for _ in range(500):
        gate.ask(BULK, decide=False)
    gate.decide()
    for _ in range(4):
        sizes.append(gate.admission.bulk.in_use)
        after(gate, 1.0)
        for ticket in list(gate.granted)[-sizes[-1] :]:
            gate.answer(ticket)
    assert sizes == [7, 14, 28, 55]


def test_a_limit_that_is_told_ends_the_guessing():
    gate = Learner()
    for _ in range(200):
        gate.ask(BULK, decide=False)
    gate.decide()
    gate.answer(gate.granted[0], requests(599, reset=0.1))
    assert gate.admission.bulk.in_use == 199
    assert gate.admission.learning.concurrency.limit == math.inf


def test_an_error_of_the_server_neither_cuts_nor_grows():
    gate = Learner()
    for _ in range(7):
        gate.answer(gate.ask(BULK), ok=False)
    assert gate.admission.learning.concurrency.limit == 8
    assert not gate.admission.learning.send_rate.awake


readings = st.lists(
    st.tuples(
        st.floats(0, 2),  # time passes
        st.integers(0, 5),  # so many calls are let go
        st.integers(0, 9),  # this one of those under way is answered
        st.one_of(st.none(), st.integers(0, 200)),
        st.one_of(st.none(), st.floats(0, 120)),
        st.sampled_from([None, 60, 600, 1200]),
        st.booleans(),
    ),
    max_size=60,
)


@given(readings)
def test_whatever_is_told_the_budget_stays_sound(steps):
    gate = Learner(per_minute("requests", 600, burst_seconds=10))
    under_way, seen = [], 0
    for seconds, calls, which, remaining, reset, limit, fine in steps:
        after(gate, seconds)
        for _ in range(calls):
            gate.ask(BULK)
        under_way += gate.granted[seen:]
        seen = len(gate.granted)
        if which < len(under_way):
            told = requests(remaining, reset=reset, limit=limit)
            (gate.answer if fine else gate.refuse)(under_way.pop(which), told)
            if remaining is not None and "requests" in gate.admission.learning.limits:
                rest = sum(one.stamp.at > 0 for one in under_way) + calls + seen
                assert gate.left() <= max(remaining, gate.learned().capacity) + rest
        for dimension in gate.admission.learning.dimensions:
            assert 0 < dimension.bucket.capacity < math.inf
            assert dimension.bucket.available(gate.now) <= dimension.bucket.capacity
    for ticket in under_way:
        gate.end(ticket)
    while seen < len(gate.granted):  # the end of one may let another go
        gate.end(gate.granted[seen])
        seen += 1
    for dimension in (*gate.admission.dimensions, *gate.admission.learning.dimensions):
        assert dimension.bucket.reserved == pytest.approx(0, abs=1e-6)


@given(
    st.integers(0, 100),
    st.integers(0, 40),
    st.integers(0, 40),
    st.floats(0.01, 3),
    st.sampled_from(["at once", "at last"]),
)
def test_what_is_left_is_never_taken_for_more_than_it_can_be(remaining, during, tenant, seconds, stamped):
    """A server of a hundred, ten a second; we and a tenant take while an answer is on its way."""
    gate = Learner()
    gate.answer(gate.ask(), requests(100, reset=0.0))
    after(gate, 20.0)
    ticket = gate.ask()
    level = float(remaining)
    early = math.floor(level)
    after(gate, seconds / 2)
    for _ in range(during):
        gate.ask()
    after(gate, seconds / 2)
    level = min(100.0, level + 10 * seconds) - during - tenant
    told = early if stamped == "at once" else math.floor(max(0.0, level))
    gate.answer(ticket, requests(told, reset=(100 - told) / 10))
    # When it was written is unknown, and so is what the tenant took, or what came back, since then.
    unseen = max(tenant if stamped == "at once" else 0, 10 * seconds - during)
    assert gate.left() <= max(level, told) + unseen + 1.0 + 1e-6


@pytest.mark.parametrize("limit", [5e-324, 1e-320, 1e-300, 1e300, 1.7e308])
def test_no_limit_that_a_header_tells_stops_the_pump(limit):
    """What it raised would reach some other call, and whoever had just come would wait for ever."""
    gate = Gate(careful=True)
    told = [RateLimit(metric, limit, 0.0, 1.0) for metric in ("requests", "tokens")]
    first = gate.ask(tokens=1e9)
    gate.admission.answered(first, told, gate.now, ok=True)
    gate.end(first)
    waits = [gate.ask(traffic, tokens=1e9, queue_bound=5.0) for traffic in (BULK, INTERACTIVE)]
    gate.run(10.0)
    assert all(ticket.decided for ticket in waits)


def test_the_first_answer_to_tell_a_small_limit_counts_its_call_once():
    gate = Learner()
    gate.answer(gate.ask(), requests(0, reset=10.0, limit=6))
    assert (gate.learned().capacity, gate.left()) == (1.0, 0.0)


@pytest.mark.parametrize("counts_refusals", [False, True])
def test_a_burst_that_is_mostly_refused_leaves_what_the_headers_say(counts_refusals: bool):
    """Thirty go at once, since the bucket is believed to be larger than it is: ten pass, twenty are refused."""
    gate = Learner(per_minute("requests", 60))
    tickets = [gate.ask() for _ in range(30)]
    after(gate, 0.3)
    for ticket in tickets[10:]:
        gate.refuse(ticket, requests(0, reset=1.0, limit=60), pause=0.05)
    for left, ticket in enumerate(tickets[:10]):
        gate.answer(ticket, requests(9 - left, reset=1.0 + left, limit=60))
    after(gate, 3.0)
    owed = -20 if counts_refusals else 0
    gate.answer(gate.ask(), requests(max(0, 2 + owed), reset=8.0, limit=60))
    assert -1.5 <= gate.left() <= 3.0
    after(gate, 4.0)
    assert gate.left() > 2.0, "and nobody waits for what was never taken"


def test_calls_under_way_when_a_limit_is_learned_give_back_what_they_did_not_take():
    gate = Learner()
    first, *others = [gate.ask(tokens=100.0) for _ in range(8)]
    told = RateLimit("tokens", 6000.0, 5900.0, 1.0, name="tokens")
    gate.answer(first, told)
    assert gate.left("tokens") == pytest.approx(5200.0, abs=1.0)
    for ticket in others:
        gate.refuse(ticket)
    assert gate.left("tokens") == pytest.approx(5900.0, abs=1.0)


def test_a_pause_of_decades_is_one_of_a_day():
    gate = Learner()
    gate.refuse(gate.ask(), pause=999_999_999.0)
    assert gate.admission.paused_until == gate.now + 86_400.0
