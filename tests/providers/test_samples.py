"""Every sampled answer and request of a provider is read by somebody, and comes to what it says.

The samples are validated wire samples. A new one without a reader fails here until it has one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestra.call import Headers
from orchestra.providers import Endpoint, provider_of_kind
from orchestra.providers.rate_limits import rate_limits_of_kind

SAMPLES = Path(__file__).parent.parent / "samples"
NOW = 1_795_950_000.0
CHAT, RESPONSES, MESSAGES = Endpoint.CHAT, Endpoint.RESPONSES, Endpoint.MESSAGES
GENERATE, STREAM_GENERATE = Endpoint.GENERATE_CONTENT, Endpoint.STREAM_GENERATE_CONTENT

Reading = tuple[Any, ...]
Reader = Callable[[str], Reading]


def load(name: str) -> Any:
    return json.loads((SAMPLES / name).read_text())


def lines(name: str) -> Iterator[Any]:
    yield from map(json.loads, (SAMPLES / name).read_text().splitlines())


def headers_of(told: Any) -> Headers:
    return tuple(told.get("headers", told).items())


def fault(kind: str, tier: str | None = None) -> Reader:
    """Read a refusal: its recovery, and whatever else it says about the account, the route or the tier."""

    def read(name: str) -> Reading:
        told = load(name)
        body = json.dumps(told["body"]).encode()
        found = provider_of_kind(kind).fault(told["status"], headers_of(told), body, NOW, tier=tier)
        words = ("elsewhere", "unhealthy", "throttled", "of_model", "of_tier")
        return found.recovery.value, found.retry_after, *(word for word in words if getattr(found, word))

    return read


def limits(kind: str) -> Reader:
    """Read headers: of each limit its name, its size and what is left."""

    def read(name: str) -> Reading:
        found = provider_of_kind(kind).limits(headers_of(load(name)), NOW)
        return tuple(sorted((one.name, one.limit, one.remaining) for one in found))

    return read


def usage(kind: str, endpoint: Endpoint) -> Reader:
    """Read a whole answer: its input, output, cached part, and tier."""

    def read(name: str) -> Reading:
        found = provider_of_kind(kind).usage(endpoint, (SAMPLES / name).read_bytes())
        assert found.certainty == "known"
        return found.input_tokens, found.output_tokens, found.cached_tokens, found.tier

    return read


def stream(kind: str, endpoint: Endpoint) -> Reader:
    """Read a stream: whether it is whole, the recovery from its fault, and its usage as far as that is known."""

    def read(name: str) -> Reading:
        reader = provider_of_kind(kind).stream(endpoint, {"stream": True})
        reader.feed((SAMPLES / name).read_bytes())
        reader.finish()
        known = (reader.usage.input_tokens, reader.usage.output_tokens, reader.usage.cached_tokens)
        recovery = reader.fault.recovery.value if reader.fault is not None else None
        return reader.ended, recovery, known if reader.usage.certainty == "known" else None

    return read


def request(kind: str, endpoint: Endpoint) -> Reader:
    """Read a request: the input and the output that it is charged for, and the tier that it asks for."""

    def read(name: str) -> Reading:
        provider, payload = provider_of_kind(kind), load(name)
        charge = provider.charge(endpoint, payload)
        assert charge.input_tokens > 0
        return charge.output_tokens, provider.tier_asked(payload)

    return read


def inputs_of_batch(kind: str, endpoint: Endpoint, field: str) -> Reader:
    """Read the lines of a batch as the requests that they hold: the input that each is charged for."""

    def read(name: str) -> Reading:
        charges = [provider_of_kind(kind).charge(endpoint, line[field]) for line in lines(name)]
        return tuple(charge.input_tokens > 0 for charge in charges)

    return read


def outputs_of_batch(kind: str, endpoint: Endpoint, field: str) -> Reader:
    """Read the lines of a batch's results as the answers that they hold: input and output of each that has one."""

    def read(name: str) -> Reading:
        answers = [json.dumps(line[field]).encode() for line in lines(name) if field in line]
        used = [provider_of_kind(kind).usage(endpoint, answer) for answer in answers]
        return tuple((one.input_tokens, one.output_tokens) for one in used)

    return read


def rate_limits(kind: str) -> Reader:
    """Read what an administrator is told: of each group its models and what is set, or what is only remarked."""

    def read(name: str) -> Reading:
        api = rate_limits_of_kind(kind)
        assert api is not None
        groups, cursor = api.read((SAMPLES / name).read_bytes())
        assert cursor is None
        set_ones = ((group.models, *group.settings.values()) for group in groups if group.settings)
        others = ((group.models, remark.limit, remark.value) for group in groups for remark in group.remarks)
        return (*set_ones, *others)

    return read


READ: dict[str, tuple[Reader, Reading]] = {
    "openai_429.json": (fault("openai"), ("retry", 2.41, "throttled")),
    "openai_429_flex_unavailable.json": (fault("openai"), ("retry", None, "of_tier")),
    "openai_429_insufficient_quota.json": (fault("openai"), ("pause", None, "elsewhere")),
    "openai_429_slow_down.json": (fault("openai"), ("retry", 20.0, "throttled")),
    "openai_503.json": (fault("openai"), ("retry", 5.0, "elsewhere", "unhealthy")),
    "azure_429.json": (fault("azure"), ("retry", 13.512, "throttled")),
    "mistral_429.json": (fault("mistral"), ("retry", 1.0, "throttled")),
    "groq_429.json": (fault("groq"), ("retry", 4.0, "throttled")),
    "groq_498_flex_capacity.json": (fault("groq"), ("retry", None, "of_tier")),
    "gemini_429.json": (fault("gemini"), ("retry", 43.8, "throttled")),
    "gemini_429_daily.json": (fault("gemini"), ("pause", 75600.0, "elsewhere", "of_model")),
    "gemini_503.json": (fault("gemini"), ("retry", None, "elsewhere", "unhealthy")),
    "anthropic_429.json": (fault("anthropic"), ("retry", 11.0, "throttled")),
    "anthropic_429_ramp.json": (fault("anthropic"), ("retry", 30.0, "throttled")),
    "anthropic_429_spend.json": (fault("anthropic"), ("pause", None, "elsewhere")),
    "anthropic_529.json": (fault("anthropic"), ("retry", None, "elsewhere", "unhealthy")),
    "vllm_400.json": (fault("vllm"), ("none", None)),
    "vllm_503_queue_full.json": (fault("vllm"), ("retry", None, "elsewhere", "throttled")),
    "sglang_503_queue_full.json": (fault("sglang"), ("retry", None, "elsewhere", "throttled")),
    "llamacpp_503_loading.json": (fault("llamacpp"), ("retry", 1.0, "elsewhere")),
    "bedrock_429.json": (fault("openai-compatible"), ("retry", None, "throttled")),
    "openai_headers.json": (
        limits("openai"),
        (("project_tokens", 200000.0, 198704.0), ("requests", 5000.0, 4999.0), ("tokens", 800000.0, 798704.0)),
    ),
    "azure_headers.json": (limits("azure"), (("requests", 1000.0, 999.0), ("tokens", 1000000.0, 998704.0))),
    "mistral_headers.json": (limits("mistral"), (("requests", 720.0, 717.0), ("tokens", 5000000.0, 4999911.0))),
    "groq_headers.json": (limits("groq"), (("requests_per_day", 14400.0, 14370.0), ("tokens", 18000.0, 17997.0))),
    "together_headers.json": (
        limits("together"),
        (("requests_per_second", 10.0, 9.0), ("tokens_per_second", 33333.0, 33100.0)),
    ),
    "anthropic_headers.json": (
        limits("anthropic"),
        (
            ("input_tokens", 2000000.0, 1874000.0),
            ("output_tokens", 400000.0, 399000.0),
            ("requests", 1000.0, 993.0),
            ("tokens", 2400000.0, 2273000.0),
        ),
    ),
    "openai_chat_completion.json": (usage("openai", CHAT), (1204, 84, 1024, "default")),
    "openai_response.json": (usage("openai", RESPONSES), (1204, 84, 1024, "default")),
    "mistral_chat_completion.json": (usage("mistral", CHAT), (21, 4, 0, "standard")),
    "groq_chat_completion.json": (usage("groq", CHAT), (80, 24, 64, "on_demand")),
    "vllm_chat_completion.json": (usage("vllm", CHAT), (21, 3, 0, None)),
    "anthropic_message.json": (usage("anthropic", MESSAGES), (2067, 5, 2048, "standard")),
    "gemini_generate_response.json": (usage("gemini", GENERATE), (1204, 84, 1024, None)),
    "sse_chat_stream.txt": (stream("openai", CHAT), (True, None, (1204, 84, 1024))),
    "sse_chat_stream_cut.txt": (stream("openai", CHAT), (False, None, None)),
    "sse_chat_stream_midstream_error.txt": (stream("openai", CHAT), (True, "retry", None)),
    "sse_responses_stream.txt": (stream("openai", RESPONSES), (True, None, (1204, 84, 1024))),
    "sse_responses_stream_error.txt": (stream("openai", RESPONSES), (False, "retry", None)),
    "sse_groq_stream.txt": (stream("groq", CHAT), (True, None, (80, 24, 64))),
    "sse_sglang_queue_full.txt": (stream("sglang", CHAT), (True, "retry", None)),
    "sse_messages_stream.txt": (stream("anthropic", MESSAGES), (True, None, (2067, 5, 2048))),
    "sse_messages_stream_overloaded.txt": (stream("anthropic", MESSAGES), (False, "retry", None)),
    "sse_gemini_stream.txt": (stream("gemini", STREAM_GENERATE), (True, None, (1204, 84, 1024))),
    "openai_chat_request.json": (request("openai", CHAT), (64, "auto")),
    "vllm_chat_request_priority.json": (request("vllm", CHAT), (16, None)),
    "anthropic_message_request.json": (request("anthropic", MESSAGES), (0.0, "auto")),
    "gemini_generate_request.json": (request("gemini", GENERATE), (0.0, "standard")),
    "bedrock_batch_input.jsonl": (inputs_of_batch("anthropic", MESSAGES, "modelInput"), (True, False)),
    "bedrock_batch_output.jsonl": (outputs_of_batch("anthropic", MESSAGES, "modelOutput"), ((14, 3),)),
    "anthropic_rate_limits_admin.json": (
        rate_limits("anthropic"),
        (
            (("claude-sonnet-5",), 1000, 2_000_000, 400_000),
            ((), "requests_per_minute", 1000),
            ((), "enqueued_batch_requests", 200_000),
        ),
    ),
}
"""What reads each sample, and what it comes to."""

READ_WITH_BATCHES = frozenset(
    {
        "anthropic_batch_create_request.json",
        "anthropic_batch_list.json",
        "anthropic_batch_object.json",
        "anthropic_batch_objects_by_status.json",
        "anthropic_batch_results.jsonl",
        "gemini_batch_create_file_request.json",
        "gemini_batch_create_inline_request.json",
        "gemini_batch_input.jsonl",
        "gemini_batch_operation_done_file.json",
        "gemini_batch_operation_done_inline.json",
        "gemini_batch_operation_expired.json",
        "gemini_batch_operation_pending.json",
        "gemini_batch_output.jsonl",
        "groq_batch_object.json",
        "mistral_batch_input.jsonl",
        "mistral_batch_job.json",
        "openai_batch_create_request.json",
        "openai_batch_error.jsonl",
        "openai_batch_input.jsonl",
        "openai_batch_list.json",
        "openai_batch_object.json",
        "openai_batch_objects_by_status.json",
        "openai_batch_output.jsonl",
        "openai_file_object.json",
        "together_batch_create_response.json",
        "together_batch_object.json",
        "vllm_run_batch_output.jsonl",
    }
)
"""What belongs to batch endpoints: each is read, or written, by the tests of those (`test_batch_*`)."""

READ_BY_NOBODY = {
    "bedrock_create_job_request.json": "there is no kind for Bedrock: its calls are signed, its batches lie in S3",
}


@pytest.mark.parametrize("name", READ)
def test_a_sample_comes_to_what_it_says(name: str):
    reader, expected = READ[name]
    assert reader(name) == expected


def test_every_sample_has_a_reader():
    there = sorted(path.name for path in SAMPLES.iterdir())
    assert sorted([*READ, *READ_WITH_BATCHES, *READ_BY_NOBODY]) == there


def test_gemini_s_flex_tier_is_shed_in_the_words_of_an_overload():
    assert fault("gemini", "flex")("gemini_503.json") == ("retry", None, "elsewhere", "of_tier")
    assert fault("gemini", "flex")("gemini_429.json") == READ["gemini_429.json"][1], "it names a quota"
