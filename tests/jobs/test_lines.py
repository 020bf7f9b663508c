"""Lines: what is taken, what is refused, and that the refusal says where and what to do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.errors import InputError
from orchestra.jobs.intake.line_parser import ENDPOINTS, MAX_LINE_BYTES, LineParser, faults_error
from orchestra.jobs.ledger.line import Fault, Line

USER = [{"role": "user", "content": "hi"}]
BATCH = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"model": "m", "messages": USER},
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def parse(line: object, number: int = 17, **options: Any) -> Line | Fault:
    raw = line if isinstance(line, bytes) else json.dumps(line).encode()
    return LineParser(**options).from_json(number, raw)


def without(key: str, line: dict[str, Any] = BATCH) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != key}


def with_body(**changes: Any) -> dict[str, Any]:
    return {**BATCH, "body": {**BATCH["body"], **changes}}


@pytest.mark.parametrize(
    ("line", "custom_id", "path", "body"),
    [
        (BATCH, "a", "/v1/chat/completions", {"model": "m", "messages": USER}),
        (without("method"), "a", "/v1/chat/completions", {"model": "m", "messages": USER}),
        ({"model": "m", "messages": USER}, "line-17", "/v1/chat/completions", {"model": "m", "messages": USER}),
        ({"model": "m", "prompt": "hi"}, "line-17", "/v1/completions", {"model": "m", "prompt": "hi"}),
        ({"custom_id": "b", "model": "m", "prompt": "hi"}, "b", "/v1/completions", {"model": "m", "prompt": "hi"}),
        (
            {"custom_id": "e", "url": "/v1/embeddings", "body": {"model": "m", "input": ["x"]}},
            "e",
            "/v1/embeddings",
            {"model": "m", "input": ["x"]},
        ),
    ],
)
def test_takes_both_forms(line: dict[str, Any], custom_id: str, path: str, body: dict[str, Any]) -> None:
    taken = parse(line)
    assert isinstance(taken, Line)
    assert (taken.number, taken.custom_id, taken.path, json.loads(taken.body)) == (17, custom_id, path, body)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"messages": [}', "not valid JSON"),
        (b"{'messages': 1}", "each line must be one JSON object"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8"),
        (b'{"model": "m", "prompt": "caf\xe9"}', "save the file as UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"model": "m", "prompt": "x", "seed": ' + b"9" * 5000 + b"}", "not usable JSON"),
        (b'{"model": "m", "prompt": "x", "temperature": NaN}', "cannot be written as JSON"),
        (b'{"model": "m", "prompt": "\\ud83d"}', "lone surrogate"),
        (b'{"custom_id": "\\ud83d", "model": "m", "prompt": "x"}', "lone surrogate"),
        (b" " * MAX_LINE_BYTES, "longer than 32 MiB"),
        ([1], "must be a JSON object, not a list"),
        ("hi", "must be a JSON object, not a text"),
        (None, "not null"),
        (without("custom_id"), '"custom_id"'),
        ({**BATCH, "custom_id": 7}, "must be a text that is not empty, not a number"),
        ({**BATCH, "custom_id": ""}, "not an empty text"),
        ({**BATCH, "method": "GET"}, 'must be "POST"'),
        (without("url"), "it must be one of /v1/chat/completions"),
        ({**BATCH, "url": "/v1/images/generations"}, "not supported"),
        ({**BATCH, "url": ["/v1/embeddings"]}, "not supported"),
        (without("body"), 'has no "body"'),
        ({**BATCH, "body": "text"}, '"body" must be a JSON object'),
        ({"model": "m"}, 'neither "messages" nor "prompt"'),
        ({"model": "m", "input": "x"}, 'write a batch line with a "url"'),
        ({"messages": USER}, "--model"),
        (with_body(model=""), "--model"),
        (with_body(model=5), "--model"),
        (with_body(messages=[]), "at least one message"),
        (with_body(messages="hi"), "at least one message"),
        (with_body(messages=["hi"]), '"role"'),
        (with_body(messages=[{"content": "hi"}]), '"role"'),
        (with_body(stream=True), '"stream" is not possible'),
        ({"model": "m", "prompt": ""}, "not empty"),
        ({"model": "m", "prompt": None}, "not empty"),
    ],
)
def test_refuses_with_a_reason(line: object, told: str) -> None:
    fault = parse(line)
    assert isinstance(fault, Fault)
    assert told in fault.message
    assert fault.number == 17


def test_model_of_the_caller_replaces_the_lines_own() -> None:
    taken = parse(BATCH, model="other")
    assert isinstance(taken, Line)
    assert json.loads(taken.body)["model"] == "other"
    assert isinstance(parse({"messages": USER}, model="other"), Line)


def test_check_may_refuse() -> None:
    def check(path: str, body: Any) -> None:
        assert path in ENDPOINTS
        if body["model"] != "fast":
            raise InputError("unknown model")

    fault = parse(BATCH, check=check)
    assert isinstance(fault, Fault)
    assert fault.message == "unknown model"
    assert isinstance(parse(BATCH, check=check, model="fast"), Line)


def test_byte_order_mark_is_no_part_of_the_first_line() -> None:
    raw = b"\xef\xbb\xbf" + json.dumps(BATCH).encode()
    assert isinstance(parse(raw, number=1), Line)
    assert isinstance(parse(raw, number=2), Fault)


@given(st.dictionaries(st.text(), json_values, max_size=4), st.text(min_size=1))
def test_body_is_kept_as_it_is(extra: dict[str, Any], custom_id: str) -> None:
    body = {**extra, "model": "m", "messages": USER}
    body.pop("stream", None)
    taken = LineParser().from_json(1, json.dumps({**BATCH, "custom_id": custom_id, "body": body}).encode())
    assert isinstance(taken, Line)
    assert json.loads(taken.body) == body
    assert list(json.loads(taken.body)) == list(body), "a model may answer differently to another order"
    assert b"\n" not in taken.body
    assert taken == LineParser().from_object(1, {**BATCH, "custom_id": custom_id, "body": body})


@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_never_raises(raw: bytes) -> None:
    entry = LineParser().from_json(3, raw)
    assert entry.number == 3
    assert len(entry.digest) == 16


@given(json_values | st.builds(object) | st.sets(st.integers()))
def test_never_raises_for_objects(value: object) -> None:
    assert LineParser().from_object(3, value).number == 3


@pytest.mark.parametrize("change", [{"custom_id": "b"}, {"url": "/v1/messages"}, with_body(max_tokens=5)])
def test_digest_tells_requests_apart(change: dict[str, Any]) -> None:
    assert parse({**BATCH, **change}).digest != parse(BATCH).digest
    assert parse(BATCH, number=4).digest == parse(BATCH, number=5).digest


def test_faults_are_told_together() -> None:
    faults = [Fault(number, f"wrong {number}", b"") for number in range(1, 11)]
    assert str(faults_error("in.jsonl", faults[:1], 1)) == "in.jsonl, line 1: wrong 1"
    message = str(faults_error("in.jsonl", faults, 25))
    assert message.startswith("in.jsonl: 25 lines cannot be used\n  line 1: wrong 1\n")
    assert message.endswith("\n  ... and 15 more")


@pytest.mark.parametrize("levels", [101, 400, 900, 100_000])
def test_deep_nesting_is_refused(levels: int) -> None:
    head = b'{"model": "m", "messages": [{"role": "user", "content": "["}], "x": '
    line = LineParser().from_json(1, head + b"[" * levels + b"]" * levels + b"}")
    assert isinstance(line, Fault)
    assert "nested" in line.message


def test_wide_lines_are_not_deep() -> None:
    content = [{"type": "text", "text": "[{" * 100}] * 200
    raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
    assert isinstance(LineParser().from_json(1, raw), Line)
    nested = b"[" * 99 + b"]" * 99
    assert isinstance(LineParser().from_json(1, b'{"model": "m", "prompt": "x", "y": %s}' % nested), Line)


def test_a_broken_line_names_the_column_at_which_it_breaks() -> None:
    for raw in (b'{"prompt": "x"\n', b'{"prompt": "x"', b'{"prompt": "x"  \r\n'):
        fault = LineParser().from_json(1, raw)
        assert isinstance(fault, Fault)
        assert "at column 15;" in fault.message


def agreed(raw: bytes, number: int = 3, **options: Any) -> str | None:
    """Return the custom_id that the check of a line gives, which must be what reading it gives."""
    parser = LineParser(**options)
    checked, read = parser.check(number, raw), parser.from_json(number, raw)
    if isinstance(checked, Fault):
        assert checked == read
        return None
    assert isinstance(read, Line)
    assert checked == read.custom_id
    return checked


@given(json_values, st.text(min_size=1), st.booleans(), st.sampled_from([1, 2]))
def test_a_check_finds_what_reading_finds(extra: Any, custom_id: str, escaped: bool, number: int) -> None:
    line = {**BATCH, "custom_id": custom_id, "body": {"x": extra, "model": "m", "messages": USER}}
    raw = json.dumps(line, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    agreed(raw, number)
    agreed(raw + b"\r\n", number)


LINE = b"""{"custom_id": "\\u00e9", "url": "/v1/completions","body": {"model": "m", "prompt": ["\xc3\xa9", 1.5e3]}}
"""


@given(st.data())
def test_a_check_of_a_spoiled_line_finds_what_reading_finds(data: st.DataObject) -> None:
    raw = bytearray(LINE)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 1))] = data.draw(
            st.sampled_from(
                [b"", *(bytes([byte]) for byte in b'{}[]",:\\uUdD89eE+-.01 \t\r\nNI\x00\x0b\x7f\xc3\xed\xa0\xff')]
            )
        )
    agreed(bytes(raw))


@pytest.mark.parametrize(
    "value",
    [b"1e400", b"-1E+400", b"9" * 400 + b".5", b"NaN", b"-Infinity", b'"\\ud800"', b'"\\uDFFF"', b"9" * 5000],
)
def test_a_check_sees_what_cannot_be_encoded(value: bytes) -> None:
    assert agreed(b'{"model": "m", "prompt": "x"}') == "line-3"
    assert agreed(b'{"model": "m", "prompt": "x", "y": %s}' % value) is None


def test_a_check_takes_whole_characters_in_any_form() -> None:
    for name in (b"\\ud83d\\ude00", b"\xf0\x9f\x98\x80"):
        assert agreed(b'{"custom_id": "%s", "model": "m", "prompt": "x"}' % name) == "\U0001f600"


def test_one_request_has_one_digest_however_it_is_written() -> None:
    """Lines that leave a doubt are read another way, which must not show."""
    line = {"model": "m", "prompt": "\U0001f600", "seed": 10**30, "temperature": 1e-7, "top_p": 1e22}
    forms = [
        json.dumps(line).encode(),
        json.dumps(line, ensure_ascii=False).encode(),
        b" " + json.dumps(line).encode(),
    ]
    entries = [LineParser().from_json(2, raw) for raw in forms] + [LineParser().from_object(2, line)]
    assert len(set(entries)) == 1
    assert json.loads(entries[0].body) == line  # type: ignore[union-attr]


def test_a_model_that_cannot_be_encoded_is_refused() -> None:
    assert agreed(b'{"prompt": "x"}', model="mod\u00e8le") == "line-3"
    assert agreed(b'{"prompt": "x"}', model="\udc80") is None
