"""Fair order among jobs."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.policies.fairness import FairQueue

COSTS = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=30)


def filled(jobs):
    queue = FairQueue(lateness=60.0)
    for job, costs in jobs.items():
        for number, cost in enumerate(costs):
            queue.push((job, number, cost), job=job, cost=cost, now=float(number))
    return queue


def drain(queue):
    while queue:
        ahead = queue.peek()
        assert queue.pop() is ahead
        yield ahead
    assert queue.peek() is None


@given(st.dictionaries(st.sampled_from("abcd"), COSTS, min_size=1))
def test_backlogged_jobs_get_equal_cost_to_within_one_request(jobs):
    """Goyal, Vin and Cheng 1996, theorem 1: the difference is at most the largest request of each."""
    queue = filled(jobs)
    served = Counter()
    left = {job: len(costs) for job, costs in jobs.items()}
    for job, _, cost in drain(queue):
        served[job] += cost
        left[job] -= 1
        waiting = [other for other in jobs if left[other]]
        for one in waiting:
            for other in waiting:
                assert served[one] - served[other] <= max(jobs[one]) + max(jobs[other]) + 1e-6
    assert served == pytest.approx({job: sum(costs) for job, costs in jobs.items()})


@given(st.dictionaries(st.sampled_from("abcd"), COSTS, min_size=1))
def test_a_job_without_urgent_requests_is_served_in_order(jobs):
    order = list(drain(filled(jobs)))
    for job in jobs:
        numbers = [number for name, number, _ in order if name == job]
        assert numbers == sorted(numbers)


def test_a_weight_divides_the_cost():
    queue = FairQueue(lateness=60.0)
    for number in range(90):
        queue.push("heavy", job="heavy", cost=1.0 / 2.0, now=number)
        queue.push("light", job="light", cost=1.0, now=number)
    first = Counter(queue.pop() for _ in range(60))
    assert first["heavy"] == pytest.approx(40, abs=1)


def test_a_large_request_is_not_overtaken_for_ever_by_small_ones():
    queue = FairQueue(lateness=60.0)
    queue.push("large", job="a", cost=1000.0, now=0.0)
    for number in range(10):  # each from a job that nobody has seen before
        queue.push("small", job=f"b{number}", cost=0.001, now=0.0)
    order = []
    for number in range(10):
        order.append(queue.pop())
        queue.push("small", job=f"c{number}", cost=0.001, now=float(number))
    assert "large" in order


@pytest.mark.parametrize("known", [True, False])
def test_an_idle_job_gains_no_credit(known):
    queue = FairQueue(lateness=60.0)
    if known:
        queue.push("late", job="late", cost=1.0, now=0.0)
        queue.pop()
    for _ in range(100):
        queue.push("busy", job="busy", cost=1.0, now=0.0)
    for _ in range(50):
        queue.pop()
    for number in range(50):
        queue.push("late", job="late", cost=1.0, now=float(number))
    assert Counter(queue.pop() for _ in range(40))["busy"] == pytest.approx(20, abs=1)


def test_a_job_that_keeps_one_request_waiting_pays_for_its_size():
    queue = FairQueue(lateness=60.0)
    for _ in range(200):
        queue.push("small", job="small", cost=1.0, now=0.0)
    queue.push("large", job="large", cost=10.0, now=0.0)
    served = Counter()
    for _ in range(110):
        item = queue.pop()
        served[item] += 1
        if item == "large":
            queue.push("large", job="large", cost=10.0, now=0.0)
    assert served["large"] == pytest.approx(10, abs=1)


def test_the_urgent_overtake_inside_their_job_but_by_no_more_than_the_lateness():
    queue = FairQueue(lateness=60.0)
    queue.push("patient", job="a", cost=1.0, now=0.0)
    queue.push("urgent", job="a", cost=1.0, now=1.0, expires_at=11.0)
    queue.push("in an hour", job="a", cost=1.0, now=2.0, expires_at=3600.0)
    queue.push("too late to overtake", job="a", cost=1.0, now=61.0, expires_at=61.0)
    assert list(drain(queue)) == ["urgent", "patient", "too late to overtake", "in an hour"]


def test_cheap_ones_of_a_job_go_first_but_none_waits_for_those_that_come_later_than_it_yields():
    queue = FairQueue(lateness=60.0, yields=30.0)
    queue.push("dear", job="a", cost=10.0, now=0.0)  # lets pass for 30 s
    queue.push("middling", job="a", cost=0.2, now=0.0)  # for 20 s
    queue.push("cheap", job="a", cost=0.1, now=0.0)
    queue.push("cheap later", job="a", cost=0.1, now=9.0)
    queue.push("cheap and last", job="a", cost=0.1, now=21.0)
    assert list(drain(queue)) == ["cheap", "cheap later", "middling", "dear", "cheap and last"]


def test_a_stream_of_cheap_ones_never_keeps_a_dear_one_out():
    queue = FairQueue(lateness=60.0, yields=30.0)
    queue.push("dear", job="a", cost=1e6, now=0.0)
    for second in range(100):
        queue.push("cheap", job="a", cost=0.001, now=float(second))
        if queue.pop() == "dear":
            break
    assert 29 <= second <= 31


def test_an_expiry_goes_before_the_price():
    queue = FairQueue(lateness=60.0, yields=30.0)
    queue.push("cheap", job="a", cost=0.1, now=0.0)
    queue.push("dear and urgent", job="a", cost=10.0, now=0.0, expires_at=20.0)
    assert list(drain(queue)) == ["dear and urgent", "cheap"]


def test_the_front_goes_first_in_its_own_order_and_is_paid_for():
    queue = FairQueue(lateness=60.0)
    for job in "aab":
        queue.push(job, job=job, cost=1.0, now=0.0)
    queue.push("retry 1", job="a", cost=5.0, now=1.0, front=True)
    queue.push("retry 2", job="c", cost=1.0, now=1.0, front=True)
    assert list(drain(queue)) == ["retry 1", "retry 2", "b", "a", "a"]


@given(st.data())
def test_any_item_can_be_taken_out(data):
    queue = FairQueue(lateness=60.0)
    places = []
    for number in range(data.draw(st.integers(1, 30))):
        job, front = data.draw(st.sampled_from("abc")), data.draw(st.booleans())
        places.append(queue.push(number, job=job, cost=1.0, now=0.0, front=front))
    gone = data.draw(st.lists(st.sampled_from(places)))
    for place in gone:
        queue.remove(place)
        assert not queue.remove(place)
    left = {place.item for place in places} - {place.item for place in gone}
    assert len(queue) == len(left)
    assert set(drain(queue)) == left
    assert not queue._order
    assert not queue._front


def test_jobs_of_one_request_each_leave_no_trace():
    queue = FairQueue(lateness=60.0)
    queue.push("backlog", job="backlog", cost=1e9, now=0.0)
    for number in range(5000):
        queue.push(number, job=f"job {number}", cost=1.0, now=0.0)
        queue.pop()
    assert len(queue._jobs) <= 1024 + 2


@pytest.mark.parametrize("cost", [0.0, -1.0, math.inf, math.nan])
def test_bad_costs(cost):
    with pytest.raises(ValueError, match="cost"):
        FairQueue(lateness=1.0).push("x", job=None, cost=cost, now=0.0)


@pytest.mark.parametrize("lateness", [-1.0, math.nan])
def test_bad_lateness(lateness):
    with pytest.raises(ValueError, match="lateness"):
        FairQueue(lateness=lateness)
    with pytest.raises(ValueError, match="yields"):
        FairQueue(lateness=1.0, yields=lateness)
