"""The Gemini wire: charges, errors, usage, streams, models in URLs. Samples are validated wire samples."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfoNotFoundError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.call import Call, Charge, Usage
from orchestra.policies.fault import Fault, Recovery
from orchestra.providers import Endpoint, FormatError, StreamReader, gemini, provider_of_kind
from orchestra.providers.estimate import estimate_tokens

SAMPLES = Path(__file__).parent.parent / "samples"
NOW = 1_795_950_000.0  # 2026-11-29T11:00:00Z
GEMINI = provider_of_kind("gemini")
STREAM = (SAMPLES / "sse_gemini_stream.txt").read_bytes()
FIRST, LAST, _ = (event.removeprefix(b"data: ") for event in STREAM.split(b"\n\n"))
USAGE = Usage(1204, 84, 1024, certainty="known")
UNAVAILABLE = Fault(Recovery.RETRY, "503 UNAVAILABLE", elsewhere=True, unhealthy=True)
"""As everything else reads it, too."""


def sample(name: str) -> Any:
    return json.loads((SAMPLES / f"{name}.json").read_text())


def play(data: bytes, size: int = 7, payload: dict[str, Any] | None = None) -> tuple[StreamReader, bytes]:
    """Feed a stream in small pieces; return the reader and all that it handed on."""
    reader = GEMINI.stream(Endpoint.STREAM_GENERATE_CONTENT, payload or {})
    passed = b"".join(reader.feed(data[at : at + size]) for at in range(0, len(data), size))
    return reader, passed + reader.finish()


DAILY = Fault(
    Recovery.PAUSE,
    "429 RESOURCE_EXHAUSTED: a day's quota",
    retry_after=21 * 3600,
    elsewhere=True,
    of_model=True,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "gemini_429",
            Fault(Recovery.RETRY, "429 RESOURCE_EXHAUSTED", retry_after=43.8, throttled=True, pause=43.8),
        ),
        ("gemini_429_daily", DAILY),
        ("gemini_503", UNAVAILABLE),
    ],
)
@pytest.mark.parametrize("listed", [False, True])
def test_sampled_errors(name: str, expected: Fault, listed: bool):
    answer = sample(name)
    body = json.dumps([answer["body"]] if listed else answer["body"]).encode()
    assert GEMINI.fault(answer["status"], tuple(answer["headers"].items()), body, NOW) == expected
    assert GEMINI.limits(tuple(answer["headers"].items()), NOW) == []


@pytest.mark.parametrize(
    ("moment", "hours"),
    [
        ("2026-11-29T11:00", 21),  # winter: midnight is 08:00 UTC
        ("2026-07-01T06:30", 0.5),  # summer: midnight is 07:00 UTC
        ("2026-07-01T07:30", 23.5),
        ("2026-03-08T09:00", 22),  # the day that has 23 hours
        ("2026-11-01T08:00", 24),  # the day that has 25
        ("2026-12-31T23:59", 8 + 1 / 60),
    ],
)
def test_a_days_quota_is_back_at_midnight_in_california(moment: str, hours: float):
    now = datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()
    body = json.dumps(sample("gemini_429_daily")["body"]).encode()
    assert GEMINI.fault(429, (), body, now).retry_after == pytest.approx(hours * 3600)


def test_without_zone_data_midnight_is_an_hour_late_in_summer(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> None:
        raise ZoneInfoNotFoundError(name)

    monkeypatch.setattr(gemini, "ZoneInfo", missing)
    gemini._pacific.cache_clear()
    try:
        body = json.dumps(sample("gemini_429_daily")["body"]).encode()
        summer = datetime(2026, 7, 1, 6, 30, tzinfo=UTC).timestamp()
        assert GEMINI.fault(429, (), body, summer).retry_after == 1.5 * 3600
        assert GEMINI.fault(429, (), body, NOW).retry_after == 21 * 3600
    finally:
        gemini._pacific.cache_clear()


@pytest.mark.parametrize(
    ("status", "word", "recovery", "elsewhere"),
    [
        (400, "INVALID_ARGUMENT", Recovery.NONE, False),
        (402, "FAILED_PRECONDITION", Recovery.PAUSE, True),
        (403, "PERMISSION_DENIED", Recovery.NONE, False),
        (404, "NOT_FOUND", Recovery.NONE, False),
        (429, "RESOURCE_EXHAUSTED", Recovery.RETRY, False),
        (500, "INTERNAL", Recovery.RETRY, False),
        (504, "DEADLINE_EXCEEDED", Recovery.RETRY, True),
    ],
)
def test_documented_errors(status: int, word: str, recovery: Recovery, elsewhere: bool):
    body = json.dumps({"error": {"code": status, "message": "no", "status": word}}).encode()
    read = GEMINI.fault(status, (), body, NOW)
    assert (read.recovery, read.elsewhere, read.reason) == (recovery, elsewhere, f"{status} {word}")
    assert read.retry_after is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>busy</html>",
        b"[]",
        b'{"error": "busy"}',
        b'{"error": {"details": 5}}',
        b'{"error": {"details": [5, {"violations": 5}, {"violations": [5]}, {"retryDelay": []}]}}',
    ],
)
def test_an_error_in_no_form_goes_by_its_status(body: bytes):
    assert GEMINI.fault(503, (), body, NOW).recovery is Recovery.RETRY
    assert GEMINI.fault(429, (), body, NOW).recovery is Recovery.RETRY
    assert GEMINI.fault(403, (), body, NOW).recovery is Recovery.NONE


def test_a_sampled_answer():
    body = json.dumps(sample("gemini_generate_response")).encode()
    assert GEMINI.usage(Endpoint.GENERATE_CONTENT, body) == USAGE


def test_results_of_tools_are_input():
    told = {"promptTokenCount": 10, "toolUsePromptTokenCount": 30, "candidatesTokenCount": 2}
    body = json.dumps({"candidates": [], "usageMetadata": told}).encode()
    assert GEMINI.usage(Endpoint.GENERATE_CONTENT, body) == Usage(40, 2, 0, certainty="known")


@pytest.mark.parametrize(
    ("endpoint", "body", "certainty"),
    [
        (Endpoint.GENERATE_CONTENT, {"promptFeedback": {"blockReason": "SAFETY"}}, "unknown"),
        (Endpoint.GENERATE_CONTENT, {"candidates": [], "usageMetadata": 5}, "unknown"),
        (Endpoint.EMBED_CONTENT, {"embedding": {"values": [0.0]}}, "unknown"),
        (Endpoint.BATCH_EMBED_CONTENTS, {"embeddings": [], "usageMetadata": {"promptTokenCount": 3}}, "known"),
    ],
)
def test_answers_of_every_endpoint(endpoint: Endpoint, body: dict[str, Any], certainty: str):
    assert GEMINI.usage(endpoint, json.dumps(body).encode()).certainty == certainty


@pytest.mark.parametrize("endpoint", [Endpoint.GENERATE_CONTENT, Endpoint.EMBED_CONTENT])
@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"choices": []}', b'{"error": {"message": "busy"}}'])
def test_what_is_not_the_endpoints_format_is_told(endpoint: Endpoint, body: bytes):
    with pytest.raises(FormatError, match="says: busy" if b"busy" in body else None):
        GEMINI.usage(endpoint, body)


LISTED = b"[" + FIRST + b"\n,\r\n" + LAST + b"\n]\n"


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("data", [STREAM, LISTED, STREAM.replace(b"\n", b"\r\n")])
def test_a_sampled_stream(data: bytes, size: int):
    reader, passed = play(data, size)
    assert passed == data
    assert (reader.started, reader.ended, reader.fault) == (True, True, None)
    assert reader.usage == USAGE


def test_it_ends_with_its_last_event_not_with_the_connection():
    reader = GEMINI.stream(Endpoint.STREAM_GENERATE_CONTENT, {})
    reader.feed(b"data: " + FIRST + b"\n\n")
    assert (reader.started, reader.ended) == (True, False)
    assert reader.usage == Usage(1204, 1, 0, certainty="estimated")
    reader.feed(b"data: " + LAST + b"\n\n")
    assert (reader.ended, reader.usage) == (True, USAGE)


@pytest.mark.parametrize("data", [STREAM[: STREAM.index(b"\n\n") + 2], b"[" + FIRST + b"\n,\n", LISTED[:-40]])
def test_a_cut_stream_has_not_ended(data: bytes):
    reader, _ = play(data)
    assert (reader.started, reader.ended) == (True, False)


def chunk(*candidates: dict[str, Any], **fields: Any) -> bytes:
    return b"data: " + json.dumps({"candidates": list(candidates), **fields}).encode() + b"\n\n"


def text(words: str, index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"content": {"role": "model", "parts": [{"text": words}]}, "index": index, **fields}


def test_every_candidate_that_was_asked_for_finishes():
    two = {"generationConfig": {"candidateCount": 2}}
    done = chunk(text("a", finishReason="STOP"))
    reader = GEMINI.stream(Endpoint.STREAM_GENERATE_CONTENT, two)
    reader.feed(done)
    assert not reader.ended
    reader.feed(chunk(text("b", 1, finishReason="STOP")))
    assert reader.ended
    assert play(done, payload=two)[0].ended  # only one came after all
    assert not play(done + chunk(text("b", 1)), payload=two)[0].ended


@pytest.mark.parametrize(
    ("data", "started", "ended"),
    [
        (chunk(text("")), False, False),
        (chunk(usageMetadata={"promptTokenCount": 5}), False, False),
        (chunk({"content": {"parts": [{"functionCall": {"name": "f"}}]}}), True, False),
        (chunk({"content": {"parts": [{"text": "hm", "thought": True}]}}), True, False),
        (chunk({"content": {}, "finishReason": "SAFETY"}), True, True),
        (b'data: {"promptFeedback": {"blockReason": "OTHER"}}\n\n', True, True),
    ],
)
def test_what_starts_and_what_ends_a_stream(data: bytes, started: bool, ended: bool):
    reader, passed = play(data)
    assert (passed, reader.started, reader.ended) == (data, started, ended)


ERROR = json.dumps(sample("gemini_503")["body"], indent=2).encode()


@pytest.mark.parametrize("after", [b"", STREAM[: STREAM.index(b"\n\n") + 2]])
@pytest.mark.parametrize("error", [ERROR, ERROR + b"\n\n", b"data: " + ERROR.replace(b"\n", b" ") + b"\n\n"])
def test_an_error_in_a_stream_in_every_form(after: bytes, error: bytes):
    reader, passed = play(after + error)
    assert passed == after + error
    assert (reader.started, reader.ended, reader.fault) == (bool(after), False, UNAVAILABLE)


def test_an_error_in_a_list():
    reader, _ = play(b"[" + FIRST + b",\n" + ERROR + b"]")
    assert (reader.started, reader.fault) == (True, UNAVAILABLE)
    reader, _ = play(b"[" + ERROR + b"]")
    assert (reader.started, reader.fault) == (False, UNAVAILABLE)


def test_a_days_quota_that_ends_in_a_stream_is_asked_for_again_soon():
    body = json.dumps(sample("gemini_429_daily")["body"]).encode()
    read = play(b"data: " + body + b"\n\n")[0].fault
    assert read is not None
    assert (read.recovery, read.retry_after) == (Recovery.PAUSE, None)


@pytest.mark.parametrize(
    "data", [b"<html>busy</html>", b"data: x\n\n", b"data: []\n\n", b'data: {"choices": []}\n\n', b'{"a": 1}']
)
def test_what_is_no_stream_of_content_is_told(data: bytes):
    with pytest.raises(FormatError):
        play(data)


@given(st.binary(max_size=200), st.sampled_from([b"", b"data: ", b"[", b"{"]))
def test_no_bytes_break_the_reader(data: bytes, head: bytes):
    try:
        play(head + data, size=5)
    except FormatError:
        pass


def test_input_alone_is_charged_and_settled():
    charge = GEMINI.charge(Endpoint.GENERATE_CONTENT, sample("gemini_generate_request"))
    assert charge == Charge(tokens=charge.input_tokens, input_tokens=charge.input_tokens)
    assert 10 <= charge.input_tokens < 30
    settled = GEMINI.settle(charge, USAGE)
    assert settled == Charge(requests=1, tokens=1204, input_tokens=1204, output_tokens=84)


LONG = {"parts": [{"text": "x" * 400}]}


@pytest.mark.parametrize(
    ("payload", "tokens"),
    [
        ({"contents": [], "systemInstruction": LONG}, 100),
        ({"contents": [], "tools": [{"functionDeclarations": [{"description": "x" * 400}]}]}, 100),
        ({"contents": [], "generationConfig": {"responseSchema": {"description": "x" * 400}}}, 100),
        ({"content": LONG}, 100),
        ({"requests": [{"model": "models/m", "content": LONG}] * 3}, 300),
    ],
)
def test_everything_that_is_input_counts(payload: dict[str, Any], tokens: int):
    assert GEMINI.charge(Endpoint.GENERATE_CONTENT, payload).tokens == pytest.approx(tokens, rel=0.1)


BASE64 = "A" * 400_000


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        ({"inlineData": {"mimeType": "image/png", "data": BASE64}}, 1120),
        ({"inline_data": {"mime_type": "image/png", "data": BASE64}}, 1120),
        ({"fileData": {"mimeType": "video/mp4", "fileUri": "files/x"}}, 15_780),
        ({"inlineData": {"mimeType": "audio/wav", "data": BASE64}}, 1920),
        ({"inlineData": {"mimeType": "application/pdf", "data": BASE64}}, 2000),
        ({"inlineData": {"data": BASE64}}, 2000),
        ({"text": "x" * 400, "thoughtSignature": BASE64}, 100),
    ],
)
def test_media_count_by_rule(part: dict[str, Any], tokens: int):
    assert estimate_tokens({"role": "user", "parts": [part]}) == pytest.approx(tokens, abs=16)


@pytest.mark.parametrize(
    ("path", "endpoint", "model"),
    [
        ("/v1beta/models/m:generateContent", Endpoint.GENERATE_CONTENT, "m"),
        ("/v1beta/models/m:streamGenerateContent", Endpoint.STREAM_GENERATE_CONTENT, "m"),
        ("/v1/models/m:embedContent", Endpoint.EMBED_CONTENT, "m"),
        ("/models/m:batchEmbedContents", Endpoint.BATCH_EMBED_CONTENTS, "m"),
        ("/v1beta/tunedModels/t:generateContent", Endpoint.GENERATE_CONTENT, "tunedModels/t"),
        ("/v1beta/models/m:countTokens", Endpoint.OTHER, "m"),
        ("/v1beta/models/m:batchGenerateContent", Endpoint.OTHER, "m"),
        ("/v1beta/models/m", Endpoint.OTHER, None),
        ("/v1beta/models", Endpoint.OTHER, None),
        ("/upload/v1beta/files", Endpoint.OTHER, None),
        ("/v1beta/cachedContents", Endpoint.OTHER, None),
        ("/v1/chat/completions", Endpoint.OTHER, None),
    ],
)
def test_endpoints_and_the_model_in_their_paths(path: str, endpoint: Endpoint, model: str | None):
    assert (GEMINI.endpoint(path), GEMINI.model_in(path)) == (endpoint, model)
    assert GEMINI.meters(path) is (endpoint is not Endpoint.OTHER)
    call = Call("id", "POST", f"https://g.example:8080{path}?alt=sse", (), b"{}", {})
    assert call.model == model
    assert call.streams is (endpoint is Endpoint.STREAM_GENERATE_CONTENT)


@pytest.mark.parametrize(
    ("model", "place"), [("b", "models/b"), ("models/b", "models/b"), ("tunedModels/b", "tunedModels/b")]
)
def test_another_model_takes_its_place(model: str, place: str):
    assert GEMINI.path_for("/v1beta/models/a:generateContent", model) == f"/v1beta/{place}:generateContent"
    payload = {"contents": []}
    assert GEMINI.payload_for(payload, model) is payload
    batch = {"requests": [{"model": "models/a", "content": {}}, {"content": {}}]}
    assert GEMINI.payload_for(batch, model) == {"requests": [{"model": place, "content": {}}, {"content": {}}]}


@pytest.mark.parametrize(
    ("path", "below"),
    [
        ("/v1beta/models/m:generateContent", "/v1beta/models/m:generateContent"),
        ("/proxy/v1alpha/models/m:countTokens", "/v1alpha/models/m:countTokens"),
        (
            "/v1beta1/projects/p/locations/l/publishers/google/models/m:generateContent",
            "/v1beta/models/m:generateContent",
        ),
        ("/models/m:generateContent", "/v1beta/models/m:generateContent"),
        ("/v1/files/x", "/v1/files/x"),
    ],
)
def test_where_paths_of_other_hosts_belong(path: str, below: str):
    assert GEMINI.path_below(path) == below
