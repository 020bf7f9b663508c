"""What was seen over the last minutes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestra.observe.history import History, Look, look_at

KEY = ("p", 1)


@given(st.lists(st.tuples(st.floats(0.1, 50), st.floats(0, 1e6)), min_size=1, max_size=80), st.integers(1, 60))
def test_a_line_shows_the_most_of_each_part_and_nothing_older(looks, columns):
    history, at, seen = History(keep=100.0), 0.0, []
    for after, level in looks:
        at += after
        history.add(at, Look(levels={KEY: level}))
        seen.append((at, level))
    line = history.line(KEY, columns)
    recent = [level for when, level in seen if when > at - 100.0]
    assert len(line) == columns
    assert max(value for value in line if value is not None) == max(recent)
    assert {value for value in line if value is not None} <= set(recent)
    assert line[-1] is not None, "the last column is now"
    assert history.latest(KEY) == looks[-1][1]


@given(st.lists(st.tuples(st.floats(0.5, 5), st.integers(0, 10**6)), min_size=2, max_size=30))
def test_totals_become_growth_in_a_second(steps):
    history, at, total = History(), 0.0, 0
    history.add(at, Look(totals={KEY: 0}))
    assert history.latest(KEY) is None, "one look has no growth"
    for after, more in steps:
        at, total = at + after, total + more
        history.add(at, Look(totals={KEY: total}))
        assert abs((history.latest(KEY) or 0.0) * after - more) <= 1e-3 + 1e-6 * more


def test_what_begins_anew_has_not_shrunk():
    history = History()
    for at, total in ((0.0, 500.0), (1.0, 510.0), (2.0, 6.0)):
        history.add(at, Look(totals={KEY: total}))
    assert history.latest(KEY) == 6.0


def test_what_is_gone_is_forgotten():
    history = History(keep=10.0)
    history.add(0.0, Look(levels={KEY: 1.0}))
    history.add(5.0, Look())
    assert history.latest(KEY) is None
    assert [value for value in history.line(KEY, 10) if value is not None] == [1.0]
    history.add(10.0, Look())
    assert history.line(KEY, 10) == [None] * 10


def test_a_process_that_tells_nothing_known_leaves_the_others_alone():
    pool = {
        "provider": "openai",
        "key": "k",
        "models": ["m"],
        **{field: {"interactive": 1, "bulk": 2} for field in ("waiting", "in_use", "granted")},
    }
    report = {
        "processes": [
            {"pid": 1, "instance": 1, "snapshot": {"pools": [{"provider": "other"}]}},
            {"pid": 2, "instance": 1, "fault": "no answer"},
            {"pid": 3, "instance": 1, "snapshot": {"pools": [pool]}},
        ]
    }
    look = look_at(report)
    assert {key[0] for key in (*look.levels, *look.totals)} == {3}
    assert sorted(look.levels.values()) == [1.0, 1.0, 2.0, 2.0]
