"""Result files are read in pieces of any size, whatever stands in them, and never held whole."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.providers.batches import Ask, LineResult, form_of_kind
from orchestra.providers.batches.reading import JsonLines


def line(name: str, text: str = "") -> bytes:
    answer = {"custom_id": name, "response": {"status_code": 200, "body": {"text": text}}, "error": None}
    return json.dumps(answer, ensure_ascii=False).encode()


def named(told: Mapping[str, Any]) -> LineResult | None:
    name = told.get("custom_id")
    return LineResult(name, "answered") if isinstance(name, str) else None


def read_in_pieces(data: bytes, cuts: list[int]) -> tuple[list[str], int]:
    reader = JsonLines(named)
    results = []
    marks = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, stop in pairwise(marks):
        results += reader.feed(data[start:stop])
    results += reader.finish()
    return [result.custom_id for result in results], reader.unreadable


GARBAGE = st.sampled_from(
    [b"{", b"[1]", b"null", b"nonsense", b"\xff\xfe", b'{"custom_id":7}', b"{}", b"[" * 5000]
)
WHITE = st.sampled_from([b"", b" ", b"\r"])


@given(
    st.lists(st.one_of(st.integers(0, 99), GARBAGE, WHITE), max_size=12),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
    st.lists(st.integers(0, 2000), max_size=20),
)
def test_every_line_is_read_once_however_it_is_cut(
    parts: list[int | bytes], ending: bytes, is_open: bool, cuts: list[int]
) -> None:
    told = [line(f"c{part}", "ä\u2028\n" * part) if isinstance(part, int) else part for part in parts]
    data = ending.join(told) + (b"" if is_open else ending)
    names, unreadable = read_in_pieces(data, cuts)
    assert names == [f"c{part}" for part in parts if isinstance(part, int)]
    assert unreadable == sum(isinstance(part, bytes) and bool(part.strip()) for part in parts)


def test_a_line_longer_than_the_bound_is_passed_over() -> None:
    reader = JsonLines(named, longest=100)
    data = line("a") + b"\n" + line("long", "x" * 500) + b"\n" + line("b") + b"\n" + line("end", "y" * 500)
    found = [one.custom_id for at in range(0, len(data), 7) for one in reader.feed(data[at : at + 7])]
    found += [one.custom_id for one in reader.finish()]
    assert found == ["a", "b"]
    assert reader.unreadable == 2


def test_a_byte_order_mark_is_no_garbage() -> None:
    assert read_in_pieces(b"\xef\xbb\xbf" + line("a") + b"\n", []) == (["a"], 0)


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_a_long_file_is_not_held(kind: str) -> None:
    form = form_of_kind(kind)
    assert form is not None
    reader = form.reader(Ask("GET", "/x"))
    succeeded = {"type": "succeeded", "message": {"content": ["x" * 1000]}}
    told = {
        "openai": line("a", "x" * 1000),
        "anthropic": json.dumps({"custom_id": "a", "result": succeeded}).encode(),
    }
    piece = (told[kind] + b"\n") * 50
    tracemalloc.start()
    try:
        before, count = tracemalloc.get_traced_memory()[0], 0
        for _ in range(100):
            count += len(reader.feed(piece[:30_000]) + reader.feed(piece[30_000:]))
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert (count, reader.unreadable) == (100 * 50, 0)
    assert peak < len(piece) * 8  # of the 5 MB that went by


def test_an_answer_is_kept_as_compact_json() -> None:
    form = form_of_kind("openai")
    assert form is not None
    (result,) = form.reader(Ask("GET", "/x")).feed(line("a", "ä") + b"\n")
    assert result.body == b'{"text":"\\u00e4"}'
    assert "text" not in repr(result)
