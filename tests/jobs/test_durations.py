"""Durations as people write them."""

from __future__ import annotations

import pytest

from orchestra.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("24h", 86_400),
        ("24 h", 86_400),
        ("24 hours", 86_400),
        ("1 hour", 3600),
        ("90 minutes", 5400),
        ("90 min", 5400),
        ("1 day", 86_400),
        ("2 Days 3 hrs", 183_600),
        ("1d12h", 129_600),
        ("1.5 h", 5400),
        ("250ms", 0.25),
        (" 10 ", 10),
        ("3 seconds", 3),
        (7, 7),
    ],
)
def test_what_is_a_duration(text: float | str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "h", "24 hourss", "24 h x", "1 2", "- 1 h", "-1h", "0", "inf", "nan", "1 month", True]
)
def test_what_is_none(text: float | str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(("text", "told"), [("8", "8"), (" 0.50 ", "0.5"), ("1e3", "1000")])
def test_a_bare_number_where_a_unit_is_needed(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"write {told}ms, {told}s, {told}m or {told}h"):
        parse_duration(text, needs_unit=True)
    assert parse_duration("8 ms", needs_unit=True) == 0.008
