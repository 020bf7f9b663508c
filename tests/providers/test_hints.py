"""When to come back, in all the forms seen on the wire."""

from __future__ import annotations

import math
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.providers.hints import parse_instant, read_windows, retry_after

NOW = 1_795_950_000.0


def test_a_wait_beyond_all_numbers_is_none():
    assert parse_instant("1" * 400 + "h", NOW) is None
    assert retry_after((), {"message": f"try again in {'9' * 400}s"}, NOW) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("42", 42),
        ("0", 0),
        ("1.5", 1.5),
        ("20ms", 0.02),
        ("500ms", 0.5),
        ("1s", 1),
        ("59.931s", 59.931),
        ("6m0s", 360),
        ("1h2m3s", 3723),
        ("2m59.56s", 179.56),
        ("1d", 86400),
        (str(NOW + 30), 30),
        (str(int((NOW + 30) * 1000)), 30),
        (str(NOW - 30), 0),
        (formatdate(NOW + 7, usegmt=True), 7),
        ("2026-11-29T11:00:05Z", 5),
        ("2026-11-29T11:00:05+00:00", 5),
    ],
)
def test_every_form_is_read(text: str, expected: float):
    assert parse_instant(text, NOW) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("text", ["", "soon", "-1", "nan", "inf", "6 m", "1y", "s", "m5", "Tuesday"])
def test_what_means_nothing_is_unknown_not_zero(text: str):
    assert parse_instant(text, NOW) is None


@given(st.floats(0, 9e8))
def test_small_numbers_are_relative(number: float):
    assert parse_instant(str(number), NOW) == pytest.approx(number)


@given(st.text(max_size=40))
def test_no_text_breaks_it_and_none_gives_a_wait_below_zero(text: str):
    seconds = parse_instant(text, NOW)
    assert seconds is None or (seconds >= 0 and math.isfinite(seconds))


@pytest.mark.parametrize(
    ("headers", "error", "expected"),
    [
        ([("retry-after-ms", "2410"), ("retry-after", "3")], {}, 2.41),
        ([("retry-after", "3")], {"message": "try again in 9s"}, 3),
        ([("retry-after", formatdate(NOW + 4, usegmt=True))], {}, 4),
        ([("retry-after", "nonsense")], {"retry_after": 2}, 2),
        ([], {"retryDelay": "43.8s"}, 43.8),
        ([], {"message": "Please try again in 2.41s."}, 2.41),
        ([], {"message": "Please retry after 14 seconds."}, 14),
        ([("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "2s")], {}, 2),
        ([], {}, None),
        ([("retry-after-ms", "x"), ("retry-after", "")], {"message": "no"}, None),
    ],
)
def test_the_demanded_wait(headers: list[tuple[str, str]], error: dict[str, object], expected: float | None):
    assert retry_after(tuple(headers), error, NOW) == (
        None if expected is None else pytest.approx(expected, abs=1e-3)
    )


def test_without_a_hint_the_exhausted_limit_tells():
    headers = (
        ("x-ratelimit-remaining-requests", "0"),
        ("x-ratelimit-reset-requests", "2s"),
        ("x-ratelimit-remaining-tokens", "9000"),
        ("x-ratelimit-reset-tokens", "40s"),
    )
    assert retry_after(headers, {}, NOW) == 2


def test_windows_keep_unknown_apart_from_zero():
    windows = read_windows((("x-ratelimit-limit-tokens", "800"), ("x-ratelimit-remaining-tokens", "-1")), NOW)
    assert [(one.metric, one.limit, one.remaining, one.reset) for one in windows] == [("tokens", 800, None, None)]
