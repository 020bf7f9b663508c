"""When to look for readers that have gone away."""

from __future__ import annotations

import math

from orchestra.budget.unread import Unread


def test_nobody_looks_where_all_is_read():
    unread = Unread()
    assert unread.next_look() == math.inf
    unread.handed(1, 10.0)
    unread.asked(1)
    assert unread.next_look() == math.inf
    assert not unread.look(20.0)


def test_a_stream_is_looked_for_after_a_second_and_twice_at_most():
    unread = Unread()
    unread.handed(1, 10.0)
    assert unread.next_look() == 11.0
    assert not unread.look(10.9)
    assert unread.look(11.0)
    assert unread.next_look() == 12.0
    assert unread.look(12.0)
    assert unread.next_look() == math.inf


def test_a_reader_that_comes_back_is_looked_for_anew():
    unread = Unread()
    unread.handed(1, 10.0)
    assert unread.look(11.0)
    assert unread.look(12.0)
    unread.asked(1)
    unread.handed(1, 20.0)
    assert unread.next_look() == 21.0


def test_many_are_looked_for_once_a_second_together():
    unread = Unread()
    for stream in range(100):
        unread.handed(stream, 10.0 + stream / 1000)
    assert unread.look(11.5)
    assert unread.next_look() == 12.5
    unread.handed(1000, 12.0)
    assert unread.look(12.5)
    assert unread.next_look() == 13.5, "those from before were looked for twice, the last one is still fresh"


class Changing(dict):
    """As a dict is while another thread changes it."""

    def values(self):
        raise RuntimeError("dictionary changed size during iteration")
        yield


def test_a_stream_that_comes_while_another_thread_looks_does_no_harm():
    """`next_look` runs in whatever thread pumps: what it raised would reach somebody's call."""
    unread = Unread()
    unread.handed(1, 10.0)
    unread._since = Changing(unread._since)
    assert unread.next_look() <= 11.0


def test_a_slow_reader_is_looked_for_more_and_more_seldom():
    unread, looks, now = Unread(), 0, 0.0
    for _ in range(100):
        unread.handed(1, now)
        while (look_at := unread.next_look()) < now + 1.5:
            looks += unread.look(max(now, look_at))
        now += 1.5
        unread.asked(1)
    assert looks < 20, "one every time would be a hundred"


def test_a_look_that_was_of_use_is_followed_by_the_next_after_a_second():
    unread = Unread()
    for now in (10.0, 20.0, 30.0):
        unread.handed(1, now)
        assert unread.look(unread.next_look())
        unread.asked(1)
    unread.handed(1, 40.0)
    assert unread.look(41.0)
    unread.handed(2, 40.5)
    unread.ended(1)
    assert unread.next_look() == 42.0
