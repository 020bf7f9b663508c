"""Which lines ride in a batch, and which go out at once."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.policies.diversion import BatchOutlet, Choice, Durations, SyncPace, choose

HOUR = 3600.0
DAY = 24 * HOUR

BATCH = BatchOutlet("openai/gpt")
SEEN = replace(BATCH, observed=HOUR)
PACE = SyncPace(10.0)

outlets = st.builds(
    BatchOutlet,
    name=st.sampled_from(["a", "b", "c"]),
    price_factor=st.floats(0.1, 1.0),
    windows=st.lists(st.floats(60.0, 7 * DAY), min_size=1, max_size=3).map(tuple),
    keeps_finished=st.booleans(),
    cancelling=st.floats(0.0, HOUR),
    observed=st.none() | st.floats(0.0, 2 * DAY),
    expected=st.none() | st.floats(1.0, DAY),
)
seen_outlets = st.builds(
    BatchOutlet,
    name=st.just("a"),
    keeps_finished=st.booleans(),
    cancelling=st.floats(0.0, HOUR),
    observed=st.floats(0.0, 6 * HOUR),
)
paces = st.builds(SyncPace, st.none() | st.floats(0.0, 1e4), st.floats(0.0, 600.0))
spans = st.floats(-DAY, 8 * DAY)
counts = st.integers(0, 2_000_000)


class TestWithTimeForTheWindow:
    def test_everything_rides_even_while_the_synchronous_way_is_idle(self):
        choice = choose(DAY, 0.0, [BATCH], SyncPace(1e6), 500)
        assert (choice.outlet, choice.lines, choice.window) == (BATCH, 500, DAY)

    @pytest.mark.parametrize(("gone", "rides"), [(60.0, True), (HOUR, True), (2 * HOUR, False)])
    def test_a_day_that_was_promised_may_be_a_little_shorter_by_now(self, gone, rides):
        assert (choose(DAY, gone, [BATCH], PACE, 500).outlet is BATCH) is rides

    def test_a_million_lines_that_nothing_else_could_answer_ride_too(self):
        assert choose(DAY, 0.0, [BATCH], SyncPace(0.0), 1_000_000).lines == 1_000_000

    def test_a_provider_that_is_seen_to_take_longer_than_there_is_is_not_given_the_time(self):
        late = replace(BATCH, observed=30 * HOUR, hard_expiry=None)
        assert choose(DAY, 0.0, [late], PACE, 500).outlet is None


class TestWithLess:
    def test_a_line_without_a_deadline_goes_at_once(self):
        choice = choose(None, 0.0, [SEEN], PACE, 500)
        assert choice.outlet is None
        assert "no deadline" in choice.why

    def test_where_nobody_knows_how_long_batches_take_it_goes_at_once(self):
        assert choose(12 * HOUR, 0.0, [BATCH], PACE, 500).outlet is None

    def test_it_rides_where_batches_are_seen_to_be_back_in_time(self):
        choice = choose(6 * HOUR, 0.0, [SEEN], PACE, 500)
        assert (choice.outlet, choice.lines) == (SEEN, 500)
        assert "seen" in choice.why

    def test_the_settings_say_how_long_until_some_were_seen(self):
        expected = replace(BATCH, expected=HOUR)
        assert "expected" in choose(6 * HOUR, 0.0, [expected], PACE, 500).why
        assert choose(6 * HOUR, 0.0, [replace(expected, observed=7 * HOUR)], PACE, 500).outlet is None

    def test_time_is_kept_for_a_late_batch_to_be_cancelled_and_its_lines_to_be_answered(self):
        """An hour and a quarter for the batch, ten minutes to settle, and 1.5 times what 500 lines take."""
        needed = 1.25 * HOUR + 600.0 + 1.5 * (10.0 + 500 / 10.0)
        assert choose(needed + 1, 0.0, [SEEN], PACE, 500).lines == 500
        assert 0 < choose(needed - 1, 0.0, [SEEN], PACE, 500).lines < 500
        nothing_kept = replace(SEEN, keeps_finished=False)
        assert choose(needed - 600.0 + 1, 0.0, [nothing_kept], PACE, 500).lines == 500

    def test_what_cannot_be_insured_goes_synchronously_meanwhile(self):
        """30,000 lines need 75 minutes of three hours, with the margin; the batch leaves 95."""
        choice = choose(3 * HOUR, 0.0, [SEEN], PACE, 50_000)
        assert 30_000 < choice.lines < 50_000
        rest = 50_000 - choice.lines
        assert PACE.seconds(rest) <= 3 * HOUR - PACE.seconds(choice.lines)

    def test_lines_that_ride_already_have_the_first_claim_on_the_insurance(self):
        alone = choose(3 * HOUR, 0.0, [SEEN], PACE, 50_000)
        beside = choose(3 * HOUR, 0.0, [SEEN], PACE, 50_000, riding=10_000)
        assert beside.lines == alone.lines - 10_000

    def test_a_small_part_is_not_worth_a_batch(self):
        left = 1.25 * HOUR + 600.0 + PACE.seconds(10)
        assert choose(left, 0.0, [SEEN], PACE, 1000).outlet is None
        assert choose(left, 0.0, [SEEN], PACE, 50).lines == 10

    def test_more_lines_than_the_synchronous_way_could_ever_answer_ride_uninsured(self):
        """A million lines in six hours at one line a second: without the batch, 978,000 of them are late."""
        choice = choose(6 * HOUR, 0.0, [SEEN], SyncPace(1.0), 1_000_000)
        assert choice.lines == 1_000_000 - SyncPace(1.0).lines_in(6 * HOUR)
        assert "more lines" in choice.why

    def test_but_not_where_all_would_be_lost_when_it_is_given_up(self):
        gemini = replace(SEEN, keeps_finished=False)
        insured = SyncPace(1.0).lines_in(6 * HOUR - 1.25 * HOUR)
        assert choose(6 * HOUR, 0.0, [gemini], SyncPace(1.0), 100_000).lines == insured
        assert choose(6 * HOUR, 0.0, [gemini], SyncPace(1.0), 1_000_000).outlet is None


class TestAmongSeveral:
    def test_the_cheapest_of_those_that_fit(self):
        dear, cheap = replace(SEEN, name="dear", price_factor=0.7), replace(SEEN, name="cheap", price_factor=0.4)
        late = replace(SEEN, name="late", price_factor=0.1, observed=20 * HOUR)
        assert choose(6 * HOUR, 0.0, [late, dear, cheap], PACE, 500).outlet is cheap

    def test_of_equal_ones_the_first(self):
        first, second = replace(SEEN, name="first"), replace(SEEN, name="second")
        assert choose(6 * HOUR, 0.0, [first, second], PACE, 500).outlet is first

    def test_a_dearer_one_that_takes_all_saves_more_than_a_cheaper_one_for_a_few(self):
        left = 2 * HOUR
        few = replace(SEEN, name="few", price_factor=0.4)
        every = replace(SEEN, name="every", price_factor=0.5, observed=0.5 * HOUR)
        assert choose(left, 0.0, [few, every], PACE, 20_000).outlet is every


class TestTheWindow:
    GROQ = replace(BATCH, windows=(DAY, 2 * DAY, 7 * DAY), hard_expiry=7 * DAY)

    @pytest.mark.parametrize(
        ("observed", "window"), [(None, DAY), (HOUR, DAY), (22 * HOUR, 2 * DAY), (6 * DAY, 7 * DAY)]
    )
    def test_is_the_shortest_in_which_batches_are_seen_to_end(self, observed, window):
        outlet = replace(self.GROQ, observed=observed)
        assert choose(30 * DAY, 0.0, [outlet], PACE, 5).window == window


class TestSteadiness:
    def test_a_p90_that_moves_a_little_turns_nobody(self):
        """Around the point where 500 lines just fit: in by the margin, out only without it."""
        left = 1.25 * HOUR + 600.0 + PACE.seconds(500)
        last: Choice | None = None
        turns, before = 0, None
        for number in range(1000):
            p90 = HOUR * (1 + 0.1 * math.sin(number))
            last = choose(left, 0.0, [replace(SEEN, observed=p90)], PACE, 500, last=last)
            turns += before is not None and (last.outlet is None) != before
            before = last.outlet is None
        assert turns <= 1
        assert last is not None
        assert last.lines == 500

    def test_one_that_clearly_takes_longer_does(self):
        left = 1.25 * HOUR + 600.0 + PACE.seconds(500)
        rides = choose(left, 0.0, [SEEN], PACE, 500)
        assert choose(left, 0.0, [replace(SEEN, observed=2 * HOUR)], PACE, 500, last=rides).outlet is None

    def test_another_outlets_past_is_no_reason(self):
        left = 1.1 * HOUR + 600.0 + PACE.seconds(500)
        other = Choice("", replace(SEEN, name="other"), 500)
        assert choose(left, 0.0, [SEEN], PACE, 500, last=other).outlet is None
        assert choose(left, 0.0, [SEEN], PACE, 500, last=Choice("", SEEN, 500)).outlet is SEEN


@given(spans, st.lists(outlets, max_size=4), paces, counts, counts)
def test_a_choice_is_always_possible(left, batches, pace, waiting, riding):
    choice = choose(left, 0.0, batches, pace, waiting, riding=riding)
    assert 0 <= choice.lines <= waiting
    assert (choice.outlet is None) == (choice.lines == 0)
    assert choice.why
    if choice.outlet is not None:
        assert choice.outlet in batches
        assert choice.window in choice.outlet.windows
        assert left > 0


@given(st.floats(1.0, 22 * HOUR), seen_outlets, paces, st.integers(1, 2_000_000), counts)
def test_what_rides_on_a_guess_is_insured_or_could_not_be(left, outlet, pace, waiting, riding):
    choice = choose(left, 0.0, [outlet], pace, waiting, riding=riding)
    if choice.outlet is None:
        return
    insured = 1.25 * outlet.duration + outlet.settling + pace.seconds(choice.lines + riding) <= left * (1 + 1e-9)
    too_many = pace.seconds(waiting + riding) > left
    assert insured or (too_many and outlet.keeps_finished and outlet.duration <= left)


@given(st.floats(1.0, 22 * HOUR), seen_outlets, paces, st.integers(1, 2_000_000))
def test_asked_again_once_they_ride_it_sends_no_more_of_them(left, outlet, pace, waiting):
    first = choose(left, 0.0, [outlet], pace, waiting)
    if first.lines < waiting:
        again = choose(left, 0.0, [outlet], pace, waiting - first.lines, riding=first.lines)
        assert again.lines == 0


@given(st.floats(0.0, 8 * DAY), st.floats(0.0, DAY), seen_outlets, paces, st.data())
def test_more_time_never_keeps_lines_out_that_are_insured(left, more, outlet, pace, data):
    waiting = data.draw(st.integers(1, max(1, min(2_000_000, pace.lines_in(left)))))
    rides = choose(left, 0.0, [outlet], pace, waiting)
    if pace.seconds(waiting) <= left:
        assert choose(left + more, 0.0, [outlet], pace, waiting).lines >= rides.lines


@given(paces, st.floats(0.0, 30 * DAY))
def test_a_pace_says_the_same_both_ways(pace, seconds):
    lines = pace.lines_in(seconds)
    assert pace.seconds(lines) <= seconds * (1 + 1e-9)
    if pace.rate > 0:
        assert pace.seconds(lines + 1) >= seconds * (1 - 1e-9)


class TestDurations:
    def test_nine_of_ten_were_back_by_then(self):
        assert Durations().p90() is None
        assert Durations([7.0]).p90() == 7.0
        assert Durations(float(n) for n in range(1, 11)).p90() == 9.0

    def test_the_last_fifty_tell(self):
        durations = Durations([HOUR] * 50)
        for _ in range(50):
            durations.observe(60.0)
        assert durations.p90() == 60.0

    def test_batches_that_are_stuck_show_before_they_end(self):
        durations = Durations([60.0] * 10)
        assert durations.p90(open_for=[30.0, 59.0]) == 60.0
        assert durations.p90(open_for=[HOUR, 2 * HOUR]) == HOUR

    @given(st.lists(st.floats(0.0, 1e6), min_size=1), st.lists(st.floats(0.0, 1e6)))
    def test_open_ones_never_make_it_shorter(self, seen, open_for):
        durations = Durations(seen)
        assert durations.p90(open_for) >= durations.p90() >= min(seen[-50:])


def test_no_more_lines_go_to_an_outlet_than_it_has_room_for() -> None:
    few = BatchOutlet("few", price_factor=0.5, room=3)
    choice = choose(2 * DAY, 0.0, [few], SyncPace(), 10)
    assert (choice.outlet, choice.lines) == (few, 3)
    many = BatchOutlet("many", price_factor=0.7)
    assert choose(2 * DAY, 0.0, [few, many], SyncPace(), 10).outlet is many  # it saves more, all in all
    assert choose(2 * DAY, 0.0, [BatchOutlet("full", room=0)], SyncPace(), 10).outlet is None
