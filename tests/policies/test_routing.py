"""Which route a call takes next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestra.policies.fault import Fault, Recovery
from orchestra.policies.routing import Itinerary, Step, moves_on
from orchestra.policies.traffic import TrafficClass

INTERACTIVE, BULK = TrafficClass


def test_the_preferred_route_goes_first_and_a_cooling_one_is_skipped():
    assert Itinerary(3).next([5, 5, 5], now=5) == Step(0, 5, again=False)
    assert Itinerary(3).next([9, 5, 5], now=5) == Step(1, 5, again=False)


def test_all_cooling_waits_for_the_first_to_return():
    assert Itinerary(3).next([9, 7, 8], now=5) == Step(1, 7, again=False)


def test_a_fault_moves_on_and_comes_back_when_the_others_are_worse():
    way = Itinerary(2)
    way.failed(0, again_at=6, stay=False)
    assert way.next([5, 5], now=5) == Step(1, 5, again=False)
    way.failed(1, again_at=7, stay=False)
    assert way.next([5, 5], now=5) == Step(0, 6, again=True)


def test_moving_on_means_the_others_first_even_when_the_backoff_is_over():
    way = Itinerary(2)
    way.failed(0, again_at=5, stay=False)
    assert way.next([5, 5], now=5) == Step(1, 5, again=False)


def test_a_fault_that_stays_waits_although_another_route_is_free():
    way = Itinerary(2)
    way.failed(0, again_at=6, stay=True)
    assert way.next([5, 5], now=5) == Step(0, 6, again=True)


def test_staying_ends_when_the_breaker_opens():
    way = Itinerary(2)
    way.failed(0, again_at=6, stay=True)
    assert way.next([30, 5], now=5) == Step(1, 5, again=False)


def test_used_up_attempts_still_allow_a_route_that_was_never_tried():
    way = Itinerary(2)
    way.failed(0, again_at=6, stay=True)
    assert way.next([5, 5], now=5, fresh_only=True) == Step(1, 5, again=False)
    way.failed(1, again_at=6, stay=False)
    assert way.next([5, 5], now=5, fresh_only=True) is None


def test_a_route_that_is_out_stays_out():
    way = Itinerary(1)
    way.failed(0, again_at=None, stay=True)
    assert way.next([5], now=5) is None


def test_who_moves_on():
    overloaded = Fault(Recovery.RETRY, "503", elsewhere=True)
    short, long = Fault(Recovery.RETRY, "429", retry_after=0.2), Fault(Recovery.RETRY, "429", retry_after=20)
    spent = Fault(Recovery.PAUSE, "quota")
    assert [moves_on(fault, INTERACTIVE) for fault in (overloaded, short, long, spent)] == [
        True,
        False,
        True,
        True,
    ]
    assert [moves_on(fault, BULK) for fault in (overloaded, short, long, spent)] == [True, False, False, True]


@given(st.data(), st.integers(1, 5))
def test_every_route_gets_its_turn_before_a_call_gives_up(data: st.DataObject, routes: int):
    way, now, tried = Itinerary(routes), 0.0, set()
    for attempt in range(3 * routes):
        ready = [data.draw(st.floats(0, 20)) for _ in range(routes)]
        step = way.next(ready, now, fresh_only=attempt >= 2)
        if step is None:
            break
        assert step.again == (step.route in tried)
        assert step.at >= now
        now = step.at
        tried.add(step.route)
        again = data.draw(st.none() | st.floats(0, 3))
        way.failed(step.route, again_at=None if again is None else now + again, stay=data.draw(st.booleans()))
    assert tried == set(range(routes))
