"""When a failed call is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tenacity import RetryCallState, Retrying
from tenacity.wait import wait_fixed

from orchestra.policies.course import wait_full_jitter
from orchestra.policies.fault import Fault, Recovery
from orchestra.policies.retry import RetryPolicy
from orchestra.policies.retry_budget import RetryBudget
from orchestra.policies.traffic import TrafficClass

INTERACTIVE, BULK = TrafficClass
seconds = st.floats(0, 1e4)
shares = st.floats(0, 1, exclude_max=True)


def retry(retry_after: float | None = None) -> Fault:
    return Fault(Recovery.RETRY, "test", retry_after=retry_after)


@given(floor=seconds, share=shares, attempts=st.integers(1, 50), left=st.none() | seconds)
def test_a_delay_respects_the_demanded_wait_the_ceiling_and_the_time_left(
    floor: float, share: float, attempts: int, left: float | None
):
    policy = RetryPolicy(base=0.5, cap=30, rand=lambda: share)
    delay = policy.delay(retry(floor), attempts, time_left=left)
    if left is not None and floor >= left:
        assert delay is None
        return
    assert delay is not None
    assert floor <= delay <= floor + min(30, 0.5 * 2 ** (attempts - 1)) + 1e-6
    assert left is None or delay <= left


def test_callers_refused_together_spread_out():
    policy = RetryPolicy(base=1, cap=8)
    delays = [policy.delay(retry(2.0), 4, time_left=None) or 0.0 for _ in range(200)]
    assert min(delays) >= 2.0
    assert max(delays) - min(delays) > 0.5 * 8


@pytest.mark.parametrize("recovery", [Recovery.PAUSE, Recovery.NONE])
def test_what_no_waiting_helps_is_not_retried(recovery: Recovery):
    assert RetryPolicy().delay(Fault(recovery, "test"), 1, time_left=None) is None


def test_how_often_each_class_tries():
    policy = RetryPolicy()
    assert not policy.exhausted(2, INTERACTIVE, has_deadline=True)
    assert policy.exhausted(3, INTERACTIVE, has_deadline=True)
    assert not policy.exhausted(7, BULK, has_deadline=False)
    assert policy.exhausted(8, BULK, has_deadline=False)
    assert not policy.exhausted(10_000, BULK, has_deadline=True)


def test_the_jitter_composes_with_tenacitys_own_waits():
    wait = wait_fixed(3) + wait_full_jitter(2, 10, rand=lambda: 0.5)
    state = RetryCallState(Retrying(), None, (), {})
    state.attempt_number = 2
    assert wait(state) == 3 + 0.5 * 4


def test_a_retry_budget_runs_out_and_fills_with_calls_and_with_time():
    budget = RetryBudget(ratio=0.5, per_second=1, capacity=2)
    assert budget.take(0)
    assert budget.take(0)
    assert not budget.take(0)
    budget.deposit(0)
    assert not budget.take(0)
    budget.deposit(0)
    assert budget.take(0)
    assert budget.take(1)
    assert not budget.take(1)


def test_those_who_can_wait_get_their_retries_one_after_another():
    budget = RetryBudget(ratio=0, per_second=2, capacity=1)
    assert [budget.reserve(0) for _ in range(4)] == [0, 0.5, 1.0, 1.5]
    assert budget.reserve(2) == 0


@given(st.lists(st.tuples(st.sampled_from(["deposit", "take", "reserve"]), st.floats(0, 5)), max_size=60))
def test_retries_never_exceed_what_was_put_in(steps: list[tuple[str, float]]):
    budget, now, calls, taken = RetryBudget(ratio=0.2, per_second=1, capacity=3), 0.0, 0, 0
    for step, pause in steps:
        now += pause
        if step == "deposit":
            budget.deposit(now)
            calls += 1
        elif step == "take":
            taken += budget.take(now)
        else:
            taken += budget.reserve(now) == 0
        assert taken <= 3 + 0.2 * calls + now + 1e-6


@pytest.mark.parametrize("wrong", [{"ratio": -1}, {"per_second": 0}, {"capacity": 0.5}])
def test_a_retry_budget_that_cannot_work_is_refused(wrong: dict[str, float]):
    with pytest.raises(ValueError, match="retry budget"):
        RetryBudget(**wrong)
