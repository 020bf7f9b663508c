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
