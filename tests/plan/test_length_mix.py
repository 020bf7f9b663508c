"""The sizes of requests, of distributions and of traces."""

from __future__ import annotations

import json

import pytest

from orchestra.errors import InputError
from orchestra.lengths import Lengths
from orchestra.plan.length_mix import LengthMix, RequestSize


def test_a_long_prompt_has_a_long_output():
    mix = LengthMix.of(Lengths.parse("uniform:1:200"), Lengths.parse("200:p50,1500:p95"))
    assert [size.prompt for size in mix.requests] == list(range(1, 201))
    outputs = [size.output for size in mix.requests]
    assert outputs == sorted(outputs)
    assert outputs[99] <= 200 <= outputs[100]


def test_who_runs_is_longer_than_who_comes():
    mix = LengthMix((RequestSize(100, 10), RequestSize(1000, 90)))
    assert (mix.mean_prompt, mix.mean_output) == (550, 50)
    assert mix.mean_running == 992  # nine in ten of those that run are the long one
    assert mix.mean_context == (10 * 104.5 + 90 * 1044.5) / 100
    assert (mix.total_at(0.5), mix.total_at(0.95)) == (110, 1090)
    assert mix.doubled().requests == (RequestSize(200, 10), RequestSize(2000, 90))


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
    assert mix.requests == (RequestSize(7, 3), RequestSize(5, 1), RequestSize(1, 2))


@pytest.mark.parametrize(
    "line", ["{", "[1]", "{}", '{"prompt_tokens": true, "completion_tokens": 1}', '{"usage": 3}']
)
def test_what_is_no_trace(line):
    with pytest.raises(InputError, match=r"t\.jsonl, line 2"):
        LengthMix.of_trace(['{"prompt_tokens": 1, "completion_tokens": 1}', line], "t.jsonl")
    with pytest.raises(InputError, match="no request whose tokens were counted"):
        LengthMix.of_trace(["\n"], "t.jsonl")
