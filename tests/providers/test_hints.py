"""When to come back, in all the forms seen on the wire."""

from __future__ import annotations

import json
import math
from email.utils import formatdate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.call import RateLimit
from orchestra.providers.hints import demanded_wait, parse_instant, read_limits, retry_after

NOW = 1_795_950_000.0
SAMPLES = Path(__file__).parents[1] / "samples"


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


def test_a_reset_alone_is_no_demand():
    headers = (("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "2s"))
    assert demanded_wait(headers, {}, NOW) is None
    assert demanded_wait((*headers, ("retry-after", "1")), {}, NOW) == 1


def sample(name: str) -> tuple[tuple[str, str], ...]:
    told = json.loads((SAMPLES / name).read_text())
    return tuple(told.get("headers", told).items())


OPENAI = {
    "requests": RateLimit("requests", 5000, 4999, 0.012, name="requests"),
    "tokens": RateLimit("tokens", 800_000, 798_704, 0.097, name="tokens"),
    "project_tokens": RateLimit("tokens", 200_000, 198_704, 360, name="project_tokens"),
}
AZURE = {
    "requests": RateLimit("requests", 1000, 999, 1, name="requests"),
    "tokens": RateLimit("tokens", 1_000_000, 998_704, 12, name="tokens"),
}
GROQ = {
    "requests_per_day": RateLimit("requests", 14400, 14370, 179.56, window=86400, name="requests_per_day"),
    "tokens": RateLimit("tokens", 18000, 17997, 7.66, name="tokens"),
}


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("openai_headers.json", OPENAI),
        ("azure_headers.json", AZURE),
        ("groq_headers.json", GROQ),
        ("azure_429.json", {"tokens": RateLimit("tokens", None, 0, 14, name="tokens")}),
        ("groq_429.json", {"tokens": RateLimit("tokens", 18000, 0, 3.41, name="tokens")}),
        ("mistral_429.json", {}),
    ],
)
def test_limits_of_the_samples(file: str, expected: dict[str, RateLimit]):
    assert {limit.name: limit for limit in read_limits(sample(file), NOW)} == expected


def test_mistral_tells_no_reset():
    headers = (
        ("x-ratelimit-limit-req-minute", "720"),
        ("x-ratelimit-remaining-req-minute", "717"),
        ("x-ratelimit-limit-tokens-minute", "5000000"),
        ("x-ratelimit-remaining-tokens-minute", "4999911"),
        ("x-ratelimit-tokens-query-cost", "52"),
    )
    assert read_limits(headers, NOW) == [
        RateLimit("requests", 720, 717, name="requests"),
        RateLimit("tokens", 5_000_000, 4_999_911, name="tokens"),
    ]


def test_together_and_fireworks_count_by_the_second():
    together = (
        ("x-ratelimit-limit", "10"),
        ("x-ratelimit-remaining", "9"),
        ("x-ratelimit-reset", "1"),
        ("x-tokenlimit-limit", "33333"),
        ("x-tokenlimit-remaining", "33100"),
    )
    assert read_limits(together, NOW) == [
        RateLimit("requests", 10, 9, 1, window=1, name="requests_per_second"),
        RateLimit("tokens", 33333, 33100, window=1, name="tokens_per_second"),
    ]
    fireworks = (("x-ratelimit-limit-tokens-prompt", "60000"), ("x-ratelimit-limit-tokens-generated", "600"))
    assert [(one.metric, one.window, one.limit) for one in read_limits(fireworks, NOW)] == [
        ("input_tokens", 1, 60000),
        ("output_tokens", 1, 600),
    ]


def test_anthropic_resets_are_dates_by_the_clock_of_the_answer():
    headers = (
        ("date", "Sun, 29 Nov 2026 14:02:00 GMT"),
        ("anthropic-ratelimit-requests-limit", "1000"),
        ("anthropic-ratelimit-requests-remaining", "993"),
        ("anthropic-ratelimit-requests-reset", "2026-11-29T14:02:01Z"),
        ("anthropic-ratelimit-input-tokens-limit", "2000000"),
        ("anthropic-ratelimit-input-tokens-remaining", "1874000"),
        ("anthropic-ratelimit-input-tokens-reset", "2026-11-29T14:02:04Z"),
        ("anthropic-priority-input-tokens-limit", "5"),
        ("anthropic-fast-output-tokens-remaining", "0"),
    )
    assert read_limits(headers, NOW) == [
        RateLimit("requests", 1000, 993, 1, name="requests"),
        RateLimit("input_tokens", 2_000_000, 1_874_000, 4, name="input_tokens", resolution=1000),
    ]


@pytest.mark.parametrize(
    "headers",
    [
        [("x-ratelimit-limit-tokens", "-1"), ("x-ratelimit-remaining-tokens", "-1")],
        [("x-ratelimit-limit-tokens", "many"), ("x-ratelimit-remaining-tokens", "")],
        [("x-ratelimit-limit-images", "5")],
        [("x-ratelimit-reset-requests", "1s")],
        [("x-ratelimit-limit", "60"), ("x-ratelimit-remaining", "59"), ("x-ratelimit-reset", "1")],
    ],
)
def test_what_is_unknown_tells_nothing(headers: list[tuple[str, str]]):
    assert read_limits(tuple(headers), NOW) == []


def test_unknown_is_kept_apart_from_zero():
    headers = (("x-ratelimit-limit-tokens", "0"), ("x-ratelimit-remaining-tokens", "0"))
    assert read_limits(headers, NOW) == [RateLimit("tokens", None, 0, name="tokens")]


@given(st.lists(st.tuples(st.sampled_from(["x-ratelimit-limit-tokens", "x-ratelimit-reset-tokens"]), st.text())))
def test_no_header_breaks_it(headers: list[tuple[str, str]]):
    for limit in read_limits(tuple(headers), NOW):
        assert limit.limit is None or 0 < limit.limit < math.inf
