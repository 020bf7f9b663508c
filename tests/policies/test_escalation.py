"""When lines leave a batch that is not done."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestra.policies.diversion import BatchOutlet, SyncPace, choose
from orchestra.policies.escalation import escalate

HOUR = 3600.0
DAY = 24 * HOUR

BATCH = BatchOutlet("openai/gpt")
SEEN = replace(BATCH, observed=HOUR)
PACE = SyncPace(10.0)

outlets = st.builds(
    BatchOutlet,
    name=st.just("a"),
    keeps_finished=st.booleans(),
    cancelling=st.floats(0.0, HOUR),
    observed=st.none() | st.floats(0.0, 2 * DAY),
)
paces = st.builds(SyncPace, st.none() | st.floats(0.0, 1e4), st.floats(0.0, 600.0))
instants = st.floats(-1e9, 1e9)
spans = st.floats(0.0, 8 * DAY)
counts = st.integers(0, 2_000_000)


def test_a_batch_has_all_the_time_that_the_rest_does_not_need():
    """500 lines need 90 seconds, with the margin, and the cancelled batch ten minutes before."""
    assert escalate(6 * HOUR, 0.0, 500, PACE, SEEN) == (6 * HOUR - 90.0 - 600.0, 6 * HOUR - 90.0)


def test_an_outlet_that_keeps_nothing_is_not_cancelled_before_its_lines_leave():
    gemini = replace(SEEN, keeps_finished=False)
    assert escalate(6 * HOUR, 0.0, 500, PACE, gemini) == (6 * HOUR - 90.0, 6 * HOUR - 90.0)


def test_finished_lines_need_no_time():
    assert escalate(6 * HOUR, 0.0, 0, PACE, SEEN).release_at == 6 * HOUR


@pytest.mark.parametrize("lines", [100_000_000, 1_000_000])
def test_more_lines_than_could_be_answered_leave_the_batch_its_usual_time(lines):
    """And then it is cancelled first, and has its ten minutes to settle."""
    assert escalate(6 * HOUR, 0.0, lines, PACE, SEEN) == (HOUR, HOUR + 600.0)
    slow = replace(SEEN, observed=5 * HOUR)
    assert escalate(6 * HOUR, 0.0, lines, PACE, slow) == (3 * HOUR, 3 * HOUR + 600.0)
    assert escalate(6 * HOUR, 0.0, lines, PACE, BATCH) == (3 * HOUR, 3 * HOUR + 600.0)


def test_but_half_of_what_is_left_at_most():
    slow_to_end = replace(SEEN, cancelling=10 * HOUR)
    assert escalate(6 * HOUR, 0.0, 1_000_000, PACE, slow_to_end) == (HOUR, 3.5 * HOUR)


def test_a_pace_that_breaks_down_does_not_throw_a_fresh_batch_away():
    assert escalate(6 * HOUR, 0.0, 500, SyncPace(0.0), SEEN).cancel_at == HOUR


@pytest.mark.parametrize("late", [0.0, 1.0, DAY])
def test_a_deadline_that_leaves_no_time_is_now(late):
    assert escalate(1000.0 - late, 1000.0, 500, PACE, SEEN) == (1000.0 - late, 1000.0 - late)


@given(instants, instants, counts, paces, outlets)
def test_both_instants_are_in_order_and_never_after_the_deadline(deadline, created, lines, pace, outlet):
    plan = escalate(deadline, created, lines, pace, outlet)
    assert math.isfinite(plan.cancel_at)
    assert math.isfinite(plan.release_at)
    assert min(created, deadline) <= plan.cancel_at <= plan.release_at <= deadline


@given(instants, spans, spans, counts, paces, outlets)
def test_a_later_deadline_never_ends_a_batch_sooner(created, span, more, lines, pace, outlet):
    sooner = escalate(created + span, created, lines, pace, outlet)
    later = escalate(created + span + more, created, lines, pace, outlet)
    slack = 1e-6  # of the clock's own precision
    assert later.cancel_at >= sooner.cancel_at - slack
    assert later.release_at >= sooner.release_at - slack


@given(instants, spans, counts, counts, paces, outlets)
def test_more_lines_never_wait_longer(created, span, lines, more, pace, outlet):
    few = escalate(created + span, created, lines, pace, outlet)
    many = escalate(created + span, created, lines + more, pace, outlet)
    assert many.cancel_at <= few.cancel_at
    assert many.release_at <= few.release_at


@given(instants, spans, counts, st.floats(0.1, 1e4), st.floats(1.0, 10.0), outlets)
def test_a_faster_way_is_never_taken_sooner(created, span, lines, rate, times, outlet):
    slow = escalate(created + span, created, lines, SyncPace(rate), outlet)
    fast = escalate(created + span, created, lines, SyncPace(rate * times), outlet)
    slack = 1e-6
    assert fast.release_at >= slow.release_at - slack


@dataclass
class Night:
    """A job in virtual time: a batch that stops working, and a synchronous way that answers at its pace.

    ``speed`` is how much of its pace the synchronous way really keeps, ``settles`` how long the cancelled batch
    takes to end.
    """

    outlet: BatchOutlet
    pace: SyncPace
    deadline: float
    stuck_at: float
    settles: float
    speed: float = 1.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    answered_at: dict[int, float] = field(default_factory=dict)
    paid: Counter[int] = field(default_factory=Counter)
    _free_at: float = 0.0

    def run(self, lines: int) -> int:
        """Return how many lines rode."""
        choice = choose(self.deadline, 0.0, [self.outlet], self.pace, lines)
        riding = set(range(choice.lines))
        for line in range(choice.lines, lines):
            self._send(line, 0.0)
        finished = set(self.rng.sample(sorted(riding), math.floor(self.stuck_at * len(riding))))
        self.paid.update(finished)
        events = [(0.0, "look")]
        cancelled_at = math.inf
        while riding:
            now, what = heapq.heappop(events)
            plan = escalate(self.deadline, 0.0, len(riding), self.pace, self.outlet)
            if what == "settled":
                if self.outlet.keeps_finished:
                    for line in finished & riding:
                        self._answer(line, now)
                    riding -= finished
                self._release(riding, now)
            elif now >= plan.release_at:
                self._release(riding, now)
            elif now >= plan.cancel_at and cancelled_at == math.inf:
                cancelled_at = now
                heapq.heappush(events, (now + self.settles, "settled"))
                heapq.heappush(events, (plan.release_at, "look"))
            else:
                soon = plan.release_at if cancelled_at < math.inf else plan.cancel_at
                heapq.heappush(events, (max(soon, math.nextafter(now, math.inf)), "look"))
        return choice.lines

    def _release(self, riding: set[int], now: float) -> None:
        for line in sorted(riding):
            self._send(line, now)
        riding.clear()

    def _send(self, line: int, now: float) -> None:
        self._free_at = max(self._free_at, now) + 1 / (self.pace.rate * self.speed)
        self.paid[line] += 1
        self._answer(line, self._free_at + self.pace.answer_seconds)

    def _answer(self, line: int, now: float) -> None:
        self.answered_at[line] = min(now, self.answered_at.get(line, math.inf))


def test_a_batch_stuck_at_sixty_percent_with_ninety_seconds():
    outlet = replace(BATCH, expected=20.0, cancelling=15.0)
    night = Night(outlet, SyncPace(20.0, 2.0), deadline=90.0, stuck_at=0.6, settles=10.0)
    assert night.run(300) == 300
    assert len(night.answered_at) == 300
    assert max(night.answered_at.values()) <= 90.0
    assert set(night.paid.values()) == {1}, "finished ones are not paid twice"
    late = [at for at in night.answered_at.values() if at > 60.0]
    assert len(late) == 120, "it was left as late as could be, and what it had finished came from it"


def test_one_that_does_not_even_end_when_it_is_cancelled():
    """Then what it finished is paid twice, and the deadline holds all the same."""
    outlet = replace(BATCH, expected=20.0, cancelling=15.0)
    night = Night(outlet, SyncPace(20.0, 2.0), deadline=90.0, stuck_at=0.6, settles=1e6)
    night.run(300)
    assert max(night.answered_at.values()) <= 90.0
    assert Counter(night.paid.values()) == {1: 120, 2: 180}


@given(
    st.integers(1, 300),
    st.floats(60.0, 20 * HOUR),
    st.floats(0.0, 1.0),
    st.floats(0.0, 0.99),
    st.floats(0.01, 100.0),
    st.floats(0.0, 60.0),
    st.floats(1.0, 5 * HOUR),
    st.floats(1.0, 900.0),
    st.booleans(),
    st.floats(0.8, 1.0),
)
@example(300, 3 * HOUR, 0.5, 0.99, 0.05, 10.0, HOUR, 600.0, True, 0.8)  # a part of them rides
def test_whatever_the_batch_does_all_are_answered_before_the_deadline(
    lines, deadline, stuck_at, settles, rate, answer, observed, cancelling, keeps, speed
):
    outlet = BatchOutlet("a", observed=observed, cancelling=cancelling, keeps_finished=keeps)
    pace = SyncPace(rate, answer)
    night = Night(outlet, pace, deadline, stuck_at, settles * cancelling, speed)
    night.run(lines)
    assert len(night.answered_at) == lines
    if pace.seconds(lines) <= deadline:
        assert max(night.answered_at.values()) <= deadline
        if keeps:
            assert set(night.paid.values()) == {1}
