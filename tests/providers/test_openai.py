"""The OpenAI wire: charges, errors, usage, streams. Samples are validated wire samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestra.call import Charge, Usage
from orchestra.policies.fault import Recovery
from orchestra.providers import Endpoint, FormatError, StreamReader, provider_of_kind

SAMPLES = Path(__file__).parent.parent / "samples"
NOW = 1_795_950_000.0
OPENAI = provider_of_kind("openai")
COMPATIBLE = provider_of_kind("openai-compatible")
KNOWN = {"certainty": "known"}


def sample(name: str) -> Any:
    return json.loads((SAMPLES / f"{name}.json").read_text())


def play(
    name: str, endpoint: Endpoint, payload: dict[str, Any] | None = None, size: int = 7
) -> tuple[StreamReader, bytes]:
    """Feed a sampled stream in small pieces; return the reader and all that it handed on."""
    reader = OPENAI.stream(endpoint, payload or {"stream": True})
    data = (SAMPLES / f"{name}.txt").read_bytes()
    passed = b"".join(reader.feed(data[at : at + size]) for at in range(0, len(data), size))
    return reader, passed + reader.finish()


@pytest.mark.parametrize(
    ("name", "recovery", "wait", "elsewhere", "unhealthy"),
    [
        ("openai_429", Recovery.RETRY, 2.41, False, False),
        ("openai_429_slow_down", Recovery.RETRY, 20, False, False),
        ("openai_429_flex_unavailable", Recovery.RETRY, None, False, False),
        ("openai_429_insufficient_quota", Recovery.PAUSE, None, True, False),
        ("openai_503", Recovery.RETRY, 5, True, True),
        ("azure_429", Recovery.RETRY, 13.512, False, False),
        ("groq_429", Recovery.RETRY, 4, False, False),
        ("groq_498_flex_capacity", Recovery.RETRY, None, False, False),
        ("mistral_429", Recovery.RETRY, 1, False, False),
        ("vllm_400", Recovery.NONE, None, False, False),
        ("vllm_503_queue_full", Recovery.RETRY, None, True, True),
        ("sglang_503_queue_full", Recovery.RETRY, None, True, True),
        ("llamacpp_503_loading", Recovery.RETRY, None, True, True),
    ],
)
def test_sampled_errors(name: str, recovery: Recovery, wait: float | None, elsewhere: bool, unhealthy: bool):
    answer = sample(name)
    body = json.dumps(answer["body"]).encode()
    fault = OPENAI.fault(answer["status"], tuple(answer["headers"].items()), body, NOW)
    assert (fault.recovery, fault.elsewhere, fault.unhealthy) == (recovery, elsewhere, unhealthy)
    assert fault.retry_after == (None if wait is None else pytest.approx(wait))


def test_a_stream_tells_its_tier_before_its_usage():
    reader, _ = play("sse_chat_stream_cut", Endpoint.CHAT)
    assert reader.usage == Usage(certainty="unknown", tier="default")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 422, 501])
def test_a_fault_of_the_request_is_not_retried(status: int):
    fault = OPENAI.fault(status, (), b'{"error": {"message": "no", "type": "invalid_request_error"}}', NOW)
    assert (fault.recovery, fault.elsewhere) == (Recovery.NONE, False)


@pytest.mark.parametrize(
    "body", [b"", b"<html>busy</html>", b"[]", b"null", b'"busy"', b'{"error": "busy"}', b"\xff"]
)
def test_an_error_without_an_error_object_goes_by_its_status(body: bytes):
    assert OPENAI.fault(502, (), body, NOW).recovery is Recovery.RETRY
    assert OPENAI.fault(403, (), body, NOW).recovery is Recovery.NONE


def test_a_redirect_sends_the_call_to_another_route():
    fault = OPENAI.fault(307, (("location", "https://elsewhere"),), b"", NOW)
    assert (fault.recovery, fault.elsewhere) == (Recovery.NONE, True)


@pytest.mark.parametrize(
    ("name", "endpoint", "usage"),
    [
        ("openai_chat_completion", Endpoint.CHAT, Usage(1204, 84, 1024, **KNOWN, tier="default")),
        ("openai_response", Endpoint.RESPONSES, Usage(1204, 84, 1024, **KNOWN, tier="default")),
        ("vllm_chat_completion", Endpoint.CHAT, Usage(21, 3, 0, **KNOWN)),
        ("groq_chat_completion", Endpoint.CHAT, Usage(80, 24, 64, **KNOWN, tier="on_demand")),
    ],
)
def test_sampled_answers(name: str, endpoint: Endpoint, usage: Usage):
    assert OPENAI.usage(endpoint, json.dumps(sample(name)).encode()) == usage


@pytest.mark.parametrize("body", [b"<html></html>", b"{}", b"[]", b'{"choices": null}', b"", b'{"error": {}}'])
def test_a_success_in_another_format_is_told(body: bytes):
    with pytest.raises(FormatError):
        OPENAI.usage(Endpoint.CHAT, body)


def test_an_answer_without_usage_is_unknown_not_zero():
    assert OPENAI.usage(Endpoint.CHAT, b'{"choices": []}').certainty == "unknown"


@pytest.mark.parametrize(
    ("name", "endpoint", "usage"),
    [
        ("sse_chat_stream", Endpoint.CHAT, Usage(1204, 84, 1024, **KNOWN, tier="default")),
        ("sse_groq_stream", Endpoint.CHAT, Usage(80, 24, 64, **KNOWN)),
        ("sse_responses_stream", Endpoint.RESPONSES, Usage(1204, 84, 1024, **KNOWN, tier="default")),
    ],
)
def test_sampled_streams(name: str, endpoint: Endpoint, usage: Usage):
    for size in (1, 7, 100_000):
        reader, _ = play(name, endpoint, size=size)
        assert (reader.started, reader.ended, reader.fault, reader.usage) == (True, True, None, usage)


def test_a_usage_chunk_that_nobody_asked_for_is_stripped():
    whole = (SAMPLES / "sse_chat_stream.txt").read_bytes()
    _, asked = play("sse_chat_stream", Endpoint.CHAT, {"stream": True, "stream_options": {"include_usage": True}})
    _, unasked = play("sse_chat_stream", Endpoint.CHAT)
    assert asked.strip() == whole.strip()
    assert b'"choices":[]' in asked
    assert b'"choices":[]' not in unasked
    assert unasked.count(b"data:") == asked.count(b"data:") - 1


def test_groq_keeps_its_last_chunk_which_has_a_choice():
    _, passed = play("sse_groq_stream", Endpoint.CHAT)
    assert passed.strip() == (SAMPLES / "sse_groq_stream.txt").read_bytes().strip()


def test_a_cut_stream_is_not_ended():
    reader, _ = play("sse_chat_stream_cut", Endpoint.CHAT)
    assert (reader.started, reader.ended, reader.fault) == (True, False, None)
    assert reader.usage.certainty == "unknown"


@pytest.mark.parametrize(
    ("name", "endpoint", "started", "elsewhere"),
    [
        ("sse_chat_stream_midstream_error", Endpoint.CHAT, True, False),
        ("sse_responses_stream_error", Endpoint.RESPONSES, True, False),
        ("sse_sglang_queue_full", Endpoint.CHAT, False, True),
    ],
)
def test_error_events_are_read(name: str, endpoint: Endpoint, started: bool, elsewhere: bool):
    reader, passed = play(name, endpoint)
    assert reader.started is started
    assert reader.fault is not None
    assert (reader.fault.recovery, reader.fault.elsewhere) == (Recovery.RETRY, elsewhere)
    assert b"error" in passed


@pytest.mark.parametrize(
    "body", [b"<!doctype html><p>\n\nlogin", b'{"choices": []}', b"<p>", b"data: no json\n\n"]
)
def test_what_is_no_event_stream_is_told(body: bytes):
    for size in (1, 1000):
        reader = OPENAI.stream(Endpoint.CHAT, {"stream": True})
        with pytest.raises(FormatError):  # noqa: PT012
            for at in range(0, len(body), size):
                reader.feed(body[at : at + size])
            reader.finish()


def test_the_words_of_a_model_are_not_mistaken_for_fields():
    reader = OPENAI.stream(Endpoint.CHAT, {"stream": True})
    chunk = {"choices": [{"index": 0, "delta": {"content": '{"error": "usage"}, [DONE]'}, "finish_reason": None}]}
    event = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    assert reader.feed(event) == event
    assert reader.feed(event) == event
    assert (reader.ended, reader.fault) == (False, None)


@pytest.mark.parametrize(
    ("delta", "starts"),
    [
        ({"role": "assistant", "content": ""}, False),
        ({"role": "assistant", "content": None}, False),
        ({"content": "x"}, True),
        ({"tool_calls": [{"index": 0}]}, True),
        ({"reasoning_content": "hm"}, True),
    ],
)
def test_what_shows_content(delta: dict[str, Any], starts: bool):
    reader = OPENAI.stream(Endpoint.CHAT, {"stream": True})
    reader.feed(b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n")
    assert reader.started is starts


def test_usage_is_asked_for_on_streams_and_nowhere_else():
    stream = {"model": "m", "stream": True}
    assert OPENAI.prepare(Endpoint.CHAT, stream)["stream_options"] == {"include_usage": True}
    kept = OPENAI.prepare(Endpoint.CHAT, {**stream, "stream_options": {"include_obfuscation": False}})
    assert kept["stream_options"] == {"include_obfuscation": False, "include_usage": True}
    for payload in ({"model": "m"}, {**stream, "stream_options": {"include_usage": True}}):
        assert OPENAI.prepare(Endpoint.CHAT, payload) is payload
    assert OPENAI.prepare(Endpoint.RESPONSES, stream) is stream


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


def test_openai_counts_the_larger_of_bound_and_estimate_times_n():
    long = "a" * 40_000
    assert OPENAI.charge(Endpoint.CHAT, chat("hi", max_tokens=500)).tokens == 500
    assert OPENAI.charge(Endpoint.CHAT, chat("hi", max_completion_tokens=500, n=3)).tokens == 1500
    assert OPENAI.charge(Endpoint.CHAT, chat(long, max_tokens=1)).tokens == pytest.approx(10_000, rel=0.01)
    assert OPENAI.charge(Endpoint.CHAT, chat("hi", max_tokens=100, n=5)).output_tokens == 500


def test_openai_gives_nothing_back_and_goes_into_debt():
    charge = Charge(tokens=500, input_tokens=10, output_tokens=500)
    assert OPENAI.settle(charge, Usage(10, 20, **KNOWN)) == Charge(1, 500, 10, 20)
    assert OPENAI.settle(charge, Usage(400, 300, **KNOWN)) == Charge(1, 700, 400, 300)


def test_a_compatible_server_counts_what_was_used():
    charge = COMPATIBLE.charge(Endpoint.CHAT, chat("a" * 400, max_tokens=50, n=2))
    assert charge.tokens == pytest.approx(200, abs=10)
    assert COMPATIBLE.settle(charge, Usage(90, 7, **KNOWN)) == Charge(1, 97, 90, 7)


@pytest.mark.parametrize("bound", [None, "many", -1, True, 1.5])
def test_a_bound_that_is_none_is_not_counted(bound: object):
    charge = COMPATIBLE.charge(Endpoint.CHAT, chat("hi", max_tokens=bound))
    assert 200 < charge.tokens < 300


def test_embeddings_have_no_output():
    charge = COMPATIBLE.charge(Endpoint.EMBEDDINGS, {"model": "m", "input": ["a" * 40, "b" * 40]})
    assert (charge.tokens, charge.output_tokens) == (20, 0)


def test_endpoints():
    assert OPENAI.endpoint("/chat/completions") is Endpoint.CHAT
    assert OPENAI.endpoint("/completions/") is Endpoint.COMPLETIONS
    assert OPENAI.endpoint("/models") is Endpoint.OTHER


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_stream_is_read_whatever_its_line_ends_and_cuts(end: str, size: int, mark: bytes):
    lines = ['data: {"choices":', 'data: [{"delta": {"content": "é"}}]}', "", ": hi", "", "data: [DONE]", "", ""]
    data = mark + end.join(lines).encode()
    reader = OPENAI.stream(Endpoint.CHAT, {})
    seen = b"".join(reader.feed(data[start : start + size]) for start in range(0, len(data), size))
    assert (reader.started, reader.ended, seen + reader.finish()) == (True, True, data)


def test_an_error_event_may_be_a_bare_message():
    chat = OPENAI.stream(Endpoint.CHAT, {})
    chat.feed(b'data: {"error": "overloaded"}\n\n')
    responses = OPENAI.stream(Endpoint.RESPONSES, {})
    responses.feed(b'data: {"type": "response.failed", "response": {"error": "overloaded"}}\n\n')
    assert [reader.fault and reader.fault.recovery for reader in (chat, responses)] == [Recovery.RETRY] * 2
