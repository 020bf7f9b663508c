"""A circuit breaker opens on failures in a row and comes back by a single probe."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestra.policies.breaker import BreakerState, CircuitBreaker


def opened(threshold: int = 3, **options: float) -> CircuitBreaker:
    breaker = CircuitBreaker(threshold=threshold, **options)
    for _ in range(threshold):
        breaker.failed(0.0)
    return breaker


def test_it_opens_only_on_failures_in_a_row():
    breaker = CircuitBreaker(threshold=3)
    for _ in range(5):
        breaker.failed(0)
        breaker.failed(0)
        breaker.succeeded()
    assert breaker.state is BreakerState.CLOSED
    assert opened().state is BreakerState.OPEN


def test_one_caller_probes_and_its_success_closes():
    breaker = opened(cooldown=2.0)
    assert not breaker.try_pass(1.9)
    assert breaker.ready_at(1.0) == 2.0
    assert breaker.try_pass(2.0)
    assert not breaker.try_pass(2.1)
    breaker.succeeded()
    assert breaker.try_pass(2.2)
    assert breaker.ready_at(2.2) == 2.2


def test_a_failed_probe_doubles_the_cooldown_up_to_its_bound():
    breaker = opened(cooldown=1.0, max_cooldown=4.0)
    now, waits = 0.0, []
    for _ in range(5):
        waits.append(breaker.ready_at(now) - now)
        now = breaker.ready_at(now)
        assert breaker.try_pass(now)
        breaker.failed(now)
    assert waits == [1, 2, 4, 4, 4]


def test_a_probe_that_is_never_heard_of_again_does_not_close_the_door_for_ever():
    breaker = opened(cooldown=1.0)
    assert breaker.try_pass(1.0)
    assert not breaker.try_pass(1.5)
    assert breaker.try_pass(2.0)


def test_an_answer_to_a_call_from_before_the_opening_does_not_close_it():
    breaker = opened()
    breaker.succeeded()
    assert breaker.state is BreakerState.OPEN


@given(st.lists(st.tuples(st.sampled_from(["pass", "ok", "fail"]), st.floats(0, 10)), max_size=80))
def test_it_always_lets_someone_through_again(steps: list[tuple[str, float]]):
    breaker, now = CircuitBreaker(threshold=2, cooldown=1, max_cooldown=8), 0.0
    for step, pause in steps:
        now += pause
        match step:
            case "pass":
                before = breaker.ready_at(now)
                assert breaker.try_pass(now) == (before <= now)
            case "ok":
                breaker.succeeded()
            case "fail":
                breaker.failed(now)
        assert breaker.ready_at(now) <= now + 8
        assert breaker.ready_at(now) >= now
