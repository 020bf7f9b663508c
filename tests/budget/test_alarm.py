"""The alarm rings once, in time."""

import _thread
import logging
import threading
import time

import pytest

from orchestra.budget.alarm import Alarm


class Bell:
    def __init__(self):
        self.times = []
        self.rung = threading.Event()

    def ring(self):
        self.times.append(time.monotonic())
        self.rung.set()


def test_it_rings_at_its_instant():
    alarm, bell = Alarm(), Bell()
    when = time.monotonic() + 0.05
    alarm.set(when, bell.ring)
    assert bell.rung.wait(30)
    assert bell.times[0] >= when  # a busy machine is late


def test_an_earlier_instant_replaces_a_later_one_and_a_later_one_is_ignored():
    alarm, bell, last = Alarm(), Bell(), Bell()
    now = time.monotonic()
    alarm.set(now + 400.0, bell.ring)
    alarm.set(now + 0.02, bell.ring)
    alarm.set(now + 300.0, bell.ring)
    alarm.set(now + 0.3, last.ring)
    assert last.rung.wait(30)
    assert len(bell.times) == 1
    assert bell.times[0] - now < 200.0


def test_it_can_be_set_again_from_inside_its_ring():
    alarm, done, count = Alarm(), threading.Event(), []

    def ring():
        count.append(1)
        if len(count) < 5:
            alarm.set(time.monotonic() + 0.001, ring)
        else:
            done.set()

    alarm.set(0.0, ring)
    assert done.wait(30)


def test_a_ring_that_fails_is_logged_and_silences_no_other(caplog):
    alarm, bell = Alarm(), Bell()

    def broken():
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR):
        alarm.set(0.0, broken)
        alarm.set(time.monotonic() + 0.02, bell.ring)
        assert bell.rung.wait(30)
    assert "ring failed" in caplog.text


def test_many_bells_in_order():
    now = [0.0]  # until all are set
    alarm, order, done = Alarm(lambda: now[0]), [], threading.Event()
    for number in reversed(range(20)):
        alarm.set(1.0 + number * 0.002, lambda number=number: order.append(number))
    alarm.set(2.0, done.set)
    while not alarm._posts.empty():  # its thread has seen them all
        time.sleep(0.001)
    now[0] = 3.0
    alarm.set(0.0, lambda: None)  # which has it look at the clock
    assert done.wait(30)
    assert order == list(range(20))


def test_it_tries_again_where_the_system_had_no_thread(monkeypatch):
    alarm, bell = Alarm(), Bell()

    def none_left(*args):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", none_left)
        with pytest.raises(RuntimeError, match="new thread"):
            alarm.set(time.monotonic() + 0.01, bell.ring)
    alarm.set(time.monotonic() + 0.01, bell.ring)
    assert bell.rung.wait(30)


def test_instants_that_were_replaced_are_not_kept_until_they_come(monkeypatch):
    """A pool is now near its turn, now waits for a bound a day away: each change would leave an entry behind."""
    from orchestra.budget import alarm as module

    sizes = []

    def push(heap, entry, push=module.heappush):
        push(heap, entry)
        sizes.append(len(heap))

    monkeypatch.setattr(module, "heappush", push)
    alarm, done = Alarm(), threading.Event()

    def ring():
        if len(sizes) > 1000:
            done.set()
        else:
            alarm.set(time.monotonic() + 86_400.0, ring)
            alarm.set(0.0, ring)

    alarm.set(0.0, ring)
    assert done.wait(30)
    assert max(sizes) < 100
