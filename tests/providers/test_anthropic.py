"""The Anthropic wire: charges, limits, errors, usage, streams. Samples are validated wire samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.call import Charge, RateLimit, Usage
from orchestra.policies.fault import Fault, Recovery
from orchestra.providers import Endpoint, FormatError, StreamReader, provider_of_kind
from orchestra.providers.estimate import estimate_tokens

SAMPLES = Path(__file__).parent.parent / "samples"
NOW = 1_795_960_920.0  # 2026-11-29T14:02:00Z, as in the samples
ANTHROPIC = provider_of_kind("anthropic")
STREAM = (SAMPLES / "sse_messages_stream.txt").read_bytes()
OVERLOADED = (SAMPLES / "sse_messages_stream_overloaded.txt").read_bytes()


def sample(name: str) -> Any:
    return json.loads((SAMPLES / f"{name}.json").read_text())


def play(data: bytes, size: int = 7) -> tuple[StreamReader, bytes]:
    """Feed a stream in small pieces; return the reader and all that it handed on."""
    reader = ANTHROPIC.stream(Endpoint.MESSAGES, {"stream": True})
    passed = b"".join(reader.feed(data[at : at + size]) for at in range(0, len(data), size))
    return reader, passed + reader.finish()


def fault(status: int, kind: str, message: str = "no", *, headers: Any = (), code: str | None = None) -> Fault:
    details = {} if code is None else {"details": {"error_code": code}}
    body = {"type": "error", "error": {"type": kind, "message": message, **details}, "request_id": "req_1"}
    return ANTHROPIC.fault(status, headers, json.dumps(body).encode(), NOW)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "anthropic_429",
            Fault(Recovery.RETRY, "429 rate_limit_error", retry_after=11, throttled=True, pause=11),
        ),
        (
            "anthropic_429_ramp",
            Fault(Recovery.RETRY, "429 ramp_limit_exceeded", retry_after=30, throttled=True, pause=30),
        ),
        ("anthropic_429_spend", Fault(Recovery.PAUSE, "429 enforced_spend_limit_reached", elsewhere=True)),
        ("anthropic_529", Fault(Recovery.RETRY, "529 overloaded_error", elsewhere=True, unhealthy=True)),
    ],
)
def test_sampled_errors(name: str, expected: Fault):
    answer = sample(name)
    body = json.dumps(answer["body"]).encode()
    assert ANTHROPIC.fault(answer["status"], tuple(answer["headers"].items()), body, NOW) == expected


@pytest.mark.parametrize(
    ("status", "kind", "message", "code", "recovery", "elsewhere"),
    [
        (400, "invalid_request_error", "max_tokens: too large", None, Recovery.NONE, False),
        (
            400,
            "invalid_request_error",
            "You have reached your specified API usage limits. You will regain access on 2026-12-01.",
            None,
            Recovery.PAUSE,
            True,
        ),
        (401, "authentication_error", "invalid x-api-key", None, Recovery.NONE, False),
        (402, "billing_error", "pay", None, Recovery.PAUSE, True),
        (403, "permission_error", "no", None, Recovery.NONE, False),
        (404, "not_found_error", "no", None, Recovery.NONE, False),
        (409, "conflict_error", "no", None, Recovery.RETRY, False),
        (413, "request_too_large", "no", None, Recovery.NONE, False),
        (429, "rate_limit_error", "no", "contract_spend_limit_reached", Recovery.PAUSE, True),
        (429, "rate_limit_error", "no", "linked_organization_spend_limit_reached", Recovery.PAUSE, True),
        (429, "rate_limit_error", "no", "something_new", Recovery.RETRY, False),
        (500, "api_error", "no", None, Recovery.RETRY, False),
        (503, "api_error", "no", "cmek_key_disabled", Recovery.NONE, True),
        (504, "timeout_error", "no", None, Recovery.RETRY, True),
        (529, "overloaded_error", "no", "compaction_unavailable", Recovery.RETRY, True),
    ],
)
def test_documented_errors(
    status: int, kind: str, message: str, code: str | None, recovery: Recovery, elsewhere: bool
):
    read = fault(status, kind, message, code=code)
    assert (read.recovery, read.elsewhere) == (recovery, elsewhere)
    assert read.throttled == (status == 429 and recovery is Recovery.RETRY)
    assert read.unhealthy == (status >= 500 and recovery is Recovery.RETRY)


def test_a_reset_is_no_demand_to_wait_until_a_limit_is_full():
    headers = (
        ("anthropic-ratelimit-input-tokens-remaining", "0"),
        ("anthropic-ratelimit-input-tokens-reset", "2026-11-29T14:03:00Z"),
    )
    assert fault(429, "rate_limit_error", headers=headers).retry_after is None


@pytest.mark.parametrize(
    "body", [b"", b"<html>busy</html>", b"[]", b'{"error": "busy"}', b'{"error": {"type": 3}}']
)
def test_an_error_without_an_error_object_goes_by_its_status(body: bytes):
    assert ANTHROPIC.fault(529, (), body, NOW).recovery is Recovery.RETRY
    assert ANTHROPIC.fault(403, (), body, NOW).recovery is Recovery.NONE


LIMITS = {
    "requests": RateLimit("requests", 1000, 993, 1, name="requests"),
    "input_tokens": RateLimit("input_tokens", 2_000_000, 1_874_000, 4, name="input_tokens", resolution=1000),
    "output_tokens": RateLimit("output_tokens", 400_000, 399_000, 1, name="output_tokens", resolution=1000),
    "tokens": RateLimit("tokens", 2_400_000, 2_273_000, 1, name="tokens", resolution=1000),
}
SPENT = RateLimit("input_tokens", 2_000_000, 0, 60, name="input_tokens", resolution=1000)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("anthropic_headers", LIMITS),
        ("anthropic_429", {**LIMITS, "input_tokens": SPENT}),
        ("anthropic_429_ramp", {}),
        ("anthropic_529", {}),
    ],
)
def test_sampled_limits(name: str, expected: dict[str, RateLimit]):
    told = sample(name)
    headers = tuple(told.get("headers", told).items())
    assert {limit.name: limit for limit in ANTHROPIC.limits(headers, NOW)} == expected


def test_other_families_of_limits_are_left_alone():
    headers = tuple(
        (f"anthropic-{family}-{metric}-{part}", "1")
        for family in ("priority", "fast")
        for metric in ("input-tokens", "output-tokens")
        for part in ("limit", "remaining", "reset")
    )
    assert ANTHROPIC.limits(headers, NOW) == []


def test_a_sampled_answer():
    usage = ANTHROPIC.usage(Endpoint.MESSAGES, json.dumps(sample("anthropic_message")).encode())
    assert usage == Usage(2067, 5, 2048, certainty="known", tier="standard")


def test_what_was_written_to_the_cache_is_input():
    told = {"input_tokens": 10, "cache_creation_input_tokens": 300, "cache_read_input_tokens": None}
    body = {"content": [], "usage": {**told, "output_tokens": 2}}
    assert ANTHROPIC.usage(Endpoint.MESSAGES, json.dumps(body).encode()) == Usage(310, 2, 0, certainty="known")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"content": "x"}', b'{"choices": []}'])
def test_what_is_no_message_is_told(body: bytes):
    with pytest.raises(FormatError):
        ANTHROPIC.usage(Endpoint.MESSAGES, body)


def test_an_error_that_calls_itself_a_success_is_told_in_its_words():
    with pytest.raises(FormatError, match="says: busy"):
        ANTHROPIC.usage(Endpoint.MESSAGES, b'{"type": "error", "error": {"message": "busy"}}')


@pytest.mark.parametrize(
    "body", [b'{"content": []}', b'{"content": [], "usage": 5}', b'{"content": [], "usage": {}}']
)
def test_no_usage_is_unknown(body: bytes):
    assert ANTHROPIC.usage(Endpoint.MESSAGES, body).certainty == "unknown"


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_sampled_stream(size: int):
    reader, passed = play(STREAM, size)
    assert passed == STREAM
    assert (reader.started, reader.ended, reader.fault) == (True, True, None)
    assert reader.usage == Usage(2067, 5, 2048, certainty="known", tier="standard")


def test_content_starts_with_its_first_delta():
    reader = ANTHROPIC.stream(Endpoint.MESSAGES, {"stream": True})
    started = {}
    for event in STREAM.split(b"\n\n")[:-1]:
        reader.feed(event + b"\n\n")
        started[event.split(b"\n")[0].removeprefix(b"event: ").decode()] = reader.started
    assert started == {
        "message_start": False,
        "content_block_start": False,
        "ping": False,
        "content_block_delta": True,
        "content_block_stop": True,
        "message_delta": True,
        "message_stop": True,
    }


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


@pytest.mark.parametrize(
    "part",
    [
        event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "Hm"}),
        event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": "{"}),
        event("content_block_start", index=0, content_block={"type": "redacted_thinking", "data": "abc"}),
        event("content_block_start", index=0, content_block={"type": "web_search_tool_result", "content": [{}]}),
        event("message_delta", delta={"stop_reason": "refusal"}, usage={"output_tokens": 0}),
    ],
)
def test_content_of_every_sort(part: bytes):
    assert play(part)[0].started


@pytest.mark.parametrize(
    "part",
    [
        event("content_block_delta", index=0, delta={"type": "text_delta", "text": ""}),
        event("content_block_start", index=0, content_block={"type": "tool_use", "id": "t", "input": {}}),
        event("something_new", words="unheard of"),
        b": a comment\n\n",
    ],
)
def test_what_shows_nothing_yet_is_passed_on_unstarted(part: bytes):
    reader, passed = play(part)
    assert (reader.started, reader.ended, passed) == (False, False, part)


def test_a_cut_stream_has_not_ended_and_its_usage_is_no_count():
    reader, _ = play(STREAM[: STREAM.index(b"event: message_delta")])
    assert (reader.started, reader.ended) == (True, False)
    assert reader.usage == Usage(2067, 1, 2048, certainty="estimated", tier="standard")


def test_the_last_sums_count_and_what_they_leave_out_stays():
    start = {"message": {"usage": {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 1}}}
    data = event("message_start", **start)
    data += event("message_delta", delta={}, usage={"output_tokens": 7})
    data += event("message_delta", delta={}, usage={"output_tokens": 9, "input_tokens": 12})
    assert play(data)[0].usage == Usage(17, 9, 5, certainty="known")


def test_an_error_event_after_content():
    reader, passed = play(OVERLOADED)
    assert passed == OVERLOADED
    assert (reader.started, reader.ended) == (True, False)
    assert reader.fault == Fault(Recovery.RETRY, "529 overloaded_error", elsewhere=True, unhealthy=True)


def test_an_error_event_before_content_can_be_tried_again():
    start, _, rest = OVERLOADED.partition(b"event: content_block_delta")
    reader, _ = play(start + rest[rest.index(b"event: error") :])
    assert not reader.started
    assert reader.fault is not None
    assert reader.fault.recovery is Recovery.RETRY


@pytest.mark.parametrize(
    ("kind", "recovery", "throttled"),
    [
        ("rate_limit_error", Recovery.RETRY, True),
        ("api_error", Recovery.RETRY, False),
        ("invalid_request_error", Recovery.NONE, False),
        ("billing_error", Recovery.PAUSE, False),
        ("never_heard_of", Recovery.RETRY, False),
        (None, Recovery.RETRY, False),
    ],
)
def test_the_type_of_an_error_event_stands_for_a_status(kind: str | None, recovery: Recovery, throttled: bool):
    read = play(event("error", error={"type": kind, "message": "no"}))[0].fault
    assert read is not None
    assert (read.recovery, read.throttled) == (recovery, throttled)


@pytest.mark.parametrize(
    "data", [b"<html>busy</html>", b'{"type": "message"}', b"data: x\n\n", b"data: []\n\n", b'data: {"a": 1}\n\n']
)
def test_what_is_no_stream_of_messages_is_told(data: bytes):
    with pytest.raises(FormatError):
        play(data)


def test_text_that_looks_like_events_is_text():
    text = 'say "message_stop" and "error" and "message_delta"'
    data = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "x"})
    data += event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
    reader, passed = play(data)
    assert (passed, reader.ended, reader.fault) == (data, False, None)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes):
    try:
        play(data, size=5)
        play(b"data: " + data, size=5)
    except FormatError:
        pass


def test_the_bound_of_the_output_holds_nothing_back():
    charge = ANTHROPIC.charge(Endpoint.MESSAGES, {**sample("anthropic_message_request"), "max_tokens": 64_000})
    assert charge == Charge(tokens=charge.input_tokens, input_tokens=charge.input_tokens)
    assert 10 < charge.input_tokens < 30
    tools = [{"name": "f", "description": "x" * 400, "input_schema": {"type": "object"}}]
    more = ANTHROPIC.charge(Endpoint.MESSAGES, {**sample("anthropic_message_request"), "tools": tools})
    assert more.input_tokens > charge.input_tokens + 100


def test_cached_reads_are_free_in_the_end():
    charge = ANTHROPIC.charge(Endpoint.MESSAGES, {"messages": []})
    settled = ANTHROPIC.settle(charge, Usage(2067, 5, 2048, certainty="known"))
    assert settled == Charge(requests=1, tokens=24, input_tokens=19, output_tokens=5)


BASE64 = "A" * 400_000


@pytest.mark.parametrize(
    ("block", "tokens"),
    [
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}}, 1600),
        ({"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}}, 1600),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, 1600),
        (
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": BASE64}},
            6000,
        ),
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x" * 4000}}, 1013),
        (
            {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "x" * 400}]}},
            105,
        ),
    ],
)
def test_media_count_by_rule_and_text_by_its_length(block: dict[str, Any], tokens: int):
    assert estimate_tokens(block) == pytest.approx(tokens, rel=0.02)
    nested = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
    assert estimate_tokens(nested) == pytest.approx(tokens, abs=30)


def test_a_thoughts_signature_is_no_text():
    block = {"type": "thinking", "thinking": "x" * 400, "signature": BASE64}
    assert estimate_tokens(block) == pytest.approx(100, abs=5)


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v1/messages", Endpoint.MESSAGES),
        ("/v1/messages/", Endpoint.MESSAGES),
        ("/v1/messages/count_tokens", Endpoint.OTHER),
        ("/v1/messages/batches", Endpoint.OTHER),
        ("/v1/messages/batches/msgbatch_1/results", Endpoint.OTHER),
        ("/v1/files", Endpoint.OTHER),
        ("/v1/models", Endpoint.OTHER),
        ("/v1/chat/completions", Endpoint.OTHER),
        ("/v1/threads/t/messages", Endpoint.OTHER),
    ],
)
def test_only_messages_are_metered(path: str, endpoint: Endpoint):
    assert ANTHROPIC.endpoint(path) is endpoint
    assert ANTHROPIC.meters(path) is (endpoint is Endpoint.MESSAGES)


def test_what_we_do_not_meter_passes_as_it_is():
    payload = {"model": "m", "messages": []}
    assert ANTHROPIC.prepare(Endpoint.MESSAGES, payload) is payload
    assert ANTHROPIC.usage(Endpoint.OTHER, b"anything") == Usage()
    reader = ANTHROPIC.stream(Endpoint.OTHER, {})
    assert reader.feed(b"anything") == b"anything"


@pytest.mark.parametrize("path", ["/v1/messages", "/anthropic/v1/messages", "/v1/messages/count_tokens"])
def test_paths_of_other_hosts_begin_with_the_version(path: str):
    assert ANTHROPIC.path_below(path) == path[path.index("/v1/") :]
