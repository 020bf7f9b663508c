"""How long requests are, from percentiles and from traces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.errors import InputError
from orchestra.plan.lengths import LengthMix, Lengths


@given(st.integers(1, 5000), st.integers(0, 20_000), st.sampled_from(["p90", "p95", "p99"]))
def test_percentiles_are_kept(median, more, percentile):
    mix = LengthMix.of_percentiles(f"{median}:p50, {median + more}:{percentile}", "10")
    prompts = [lengths.prompt for lengths in mix.requests]
    assert prompts == sorted(prompts)
    below = sum(prompt <= median + more for prompt in prompts) / len(prompts)
    assert below >= float(percentile[1:]) / 100 - 0.005
    assert prompts[99] <= median <= prompts[100]
    assert {lengths.output for lengths in mix.requests} == {10}


def test_it_is_log_normal_between_them():
    mix = LengthMix.of_percentiles("200:p50,1500:p95", "1")
    # exp(ln 200 + (ln 1500 - ln 200) / 1.6449 * 0.6745), the third quartile
    assert mix.requests[149].prompt == pytest.approx(200 * (1500 / 200) ** (0.6745 / 1.6449), rel=0.01)


def test_who_runs_is_longer_than_who_comes():
    mix = LengthMix((Lengths(100, 10), Lengths(1000, 90)))
    assert (mix.mean_prompt, mix.mean_output) == (550, 50)
    assert mix.mean_running == 992  # nine in ten of those that run are the long one
    assert mix.mean_context == (10 * 104.5 + 90 * 1044.5) / 100
    assert (mix.total_at(0.5), mix.total_at(0.95)) == (110, 1090)
    assert mix.doubled().requests == (Lengths(200, 10), Lengths(2000, 90))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'' is no number of tokens"),
        ("0", "'0' is no number"),
        ("1e3", "'1e3' is no number"),
        ("99999999999", "no number"),
        ("5:50", "'50' is no percentile"),
        ("5:p0", "'p0' is no percentile"),
        ("5:p100", "'p100' is no percentile"),
        ("5:pnan", "'pnan' is no percentile"),
        ("5,6:p95", "each of several lengths needs its percentile"),
        ("5:p50,4:p95", "must have the greater length"),
        ("5:p50,6:p50", "must have the greater length"),
    ],
)
def test_what_is_no_length(text, why):
    with pytest.raises(InputError, match=r"the output lengths .* cannot be read") as error:
        LengthMix.of_percentiles("5", text)
    assert why in str(error.value)


def test_a_trace_of_either_kind():
    batch = {"custom_id": "a", "response": {"body": {"usage": {"prompt_tokens": 7, "completion_tokens": 3}}}}
    failed = {"custom_id": "b", "response": None, "error": {"code": "x"}}
    lines = [
        batch,
        failed,
        {"prompt_tokens": 5, "completion_tokens": 0},
        {"usage": {"input_tokens": 1, "output_tokens": 2}},
    ]
    mix = LengthMix.of_trace([*map(json.dumps, lines), "\n"], "t.jsonl")
    assert mix.requests == (Lengths(7, 3), Lengths(5, 1), Lengths(1, 2))


@pytest.mark.parametrize(
    "line", ["{", "[1]", "{}", '{"prompt_tokens": true, "completion_tokens": 1}', '{"usage": 3}']
)
def test_what_is_no_trace(line):
    with pytest.raises(InputError, match=r"t\.jsonl, line 2"):
        LengthMix.of_trace(['{"prompt_tokens": 1, "completion_tokens": 1}', line], "t.jsonl")
    with pytest.raises(InputError, match="no request whose tokens were counted"):
        LengthMix.of_trace(["\n"], "t.jsonl")
