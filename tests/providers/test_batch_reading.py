"""Whatever a provider says, what is read of it can be kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestra.providers import FormatError
from orchestra.providers.batches import form_of_kind
from orchestra.providers.batches.reading import JsonLines, answered, failed, named, result_of, text, unix, whole
from orchestra.providers.openai import OpenAI

HALF = "b\ud800"


@pytest.mark.parametrize("value", [10**20, 10**400, -1, 1.5, True, None, "x", "-1", "²", [1]])
def test_what_is_no_count(value: Any) -> None:
    assert whole(value) is None


@pytest.mark.parametrize(("value", "count"), [(0, 0), (7, 7), ("12", 12), (2**53, 2**53)])
def test_counts(value: Any, count: int) -> None:
    assert whole(value) == count


@pytest.mark.parametrize(
    "value", [10**400, 1e300, float("nan"), float("inf"), -1, True, "x", "0001-01-01T00:00:00+23:59", [1]]
)
def test_what_is_no_time(value: Any) -> None:
    assert unix(value) is None


def test_times() -> None:
    assert unix(12) == 12.0
    assert unix("1970-01-01T00:01:00Z") == unix("1970-01-01T00:01:00") == 60.0


def test_names_and_words() -> None:
    assert [named(value) for value in ("b", "", None, 3, HALF, "b" * 5000)] == ["b", None, None, None, None, None]
    assert [text(value) for value in ("b", "", None, 3, HALF)] == ["b", None, None, None, "b?"]


@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini", "mistral", "together"])
def test_an_id_that_nobody_can_send_is_none(kind: str) -> None:
    form = form_of_kind(kind)
    assert form is not None
    told = {"id": HALF, "name": HALF, "status": "s", "processing_status": "s"}
    with pytest.raises(FormatError):
        form.read(json.dumps(told).encode())


def test_numbers_that_json_does_not_have() -> None:
    body = json.loads('{"a": NaN, "b": [1e999, 2, {"c": -Infinity}], "d": "NaN"}')
    assert json.loads(answered("c", body).body or b"", parse_constant=pytest.fail) == {
        "a": None,
        "b": [None, 2, {"c": None}],
        "d": "NaN",
    }


def test_a_code_of_thousands_of_digits_is_no_status() -> None:
    assert failed(OpenAI(), "c", {"code": "4" * 5000}).status is None
    assert failed(OpenAI(), "c", {"code": "400"}).status == 400


def test_a_line_whose_name_is_too_long_is_unreadable() -> None:
    reader = JsonLines(lambda told: result_of(OpenAI(), told))
    line = {"custom_id": "c" * 100_000, "response": {"status_code": 200, "body": {}}}
    assert reader.feed(json.dumps(line).encode() + b"\n") == []
    assert reader.unreadable == 1
