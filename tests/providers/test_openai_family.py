"""Those who speak the OpenAI wire with differences. Samples are validated wire samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestra.call import Charge, Headers, RateLimit, Usage
from orchestra.config import parse_config
from orchestra.errors import ConfigError
from orchestra.kinds import KINDS
from orchestra.policies.fault import Fault, Recovery
from orchestra.policies.traffic import TrafficClass
from orchestra.providers import Endpoint, Provider, StreamReader, provider_of_kind

SAMPLES = Path(__file__).parent.parent / "samples"
NOW = 1_795_950_000.0
KNOWN = {"certainty": "known"}
RETRY, PAUSE, NONE = Recovery.RETRY, Recovery.PAUSE, Recovery.NONE
SELF_HOSTED = ("vllm", "sglang", "llamacpp")
FAMILY = ("azure", "mistral", "groq", "together", "fireworks", *SELF_HOSTED, "openai", "openai-compatible")


def sample(name: str) -> Any:
    return json.loads((SAMPLES / f"{name}.json").read_text())


def headers_of(name: str) -> Headers:
    told = sample(name)
    return tuple(told.get("headers", told).items())


def sampled_fault(kind: str, name: str) -> Fault:
    answer = sample(name)
    body = json.dumps(answer["body"]).encode()
    return provider_of_kind(kind).fault(answer["status"], headers_of(name), body, NOW)


def fault(kind: str, status: int, message: str, headers: Headers = (), **error: Any) -> Fault:
    body = json.dumps({"error": {"message": message, **error}}).encode()
    return provider_of_kind(kind).fault(status, headers, body, NOW)


def read(kind: str, data: bytes, payload: dict[str, Any] | None = None) -> tuple[StreamReader, bytes]:
    reader = provider_of_kind(kind).stream(Endpoint.CHAT, payload or {"stream": True})
    return reader, reader.feed(data) + reader.finish()


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


def event(**chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("azure", "azure_429", Fault(RETRY, "429", 13.512, throttled=True, pause=13.512)),
        ("mistral", "mistral_429", Fault(RETRY, "429 1300", 1, throttled=True, pause=1)),
        ("groq", "groq_429", Fault(RETRY, "429 rate_limit_exceeded", 4, throttled=True, pause=4)),
        ("groq", "groq_498_flex_capacity", Fault(RETRY, "498 capacity_exceeded", of_tier=True)),
        ("vllm", "vllm_400", Fault(NONE, "400 BadRequestError")),
        (
            "vllm",
            "vllm_503_queue_full",
            Fault(RETRY, "503 ServiceUnavailableError", elsewhere=True, throttled=True),
        ),
        (
            "sglang",
            "sglang_503_queue_full",
            Fault(RETRY, "503 ServiceUnavailableError", elsewhere=True, throttled=True),
        ),
        ("llamacpp", "llamacpp_503_loading", Fault(RETRY, "503 unavailable_error", 1, elsewhere=True)),
    ],
)
def test_sampled_errors(kind: str, name: str, expected: Fault):
    assert sampled_fault(kind, name) == expected


@pytest.mark.parametrize("kind", FAMILY)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("openai_429_insufficient_quota", Fault(PAUSE, "429 credit_balance_exhausted", elsewhere=True)),
        ("openai_503", Fault(RETRY, "503 server_is_overloaded", 5, elsewhere=True, unhealthy=True)),
    ],
)
def test_all_read_the_errors_of_the_wire(kind: str, name: str, expected: Fault):
    assert sampled_fault(kind, name) == expected


@pytest.mark.parametrize("kind", FAMILY)
def test_who_wants_money_is_paused(kind: str):
    assert fault(kind, 402, "no credit") == Fault(PAUSE, "402", elsewhere=True)


GROQ_DAY = (
    "Rate limit reached for model `m` in organization `o` service tier `on_demand` on {}: "
    "Limit 500000, Used 499000, Requested 2024. Please try again in 7m12.5s."
)


@pytest.mark.parametrize("limit", ["tokens per day (TPD)", "requests per day (RPD)"])
def test_a_day_s_limit_at_groq_pauses_its_model_until_the_time_it_says(limit: str):
    text = GROQ_DAY.format(limit)
    found = fault("groq", 429, text, type="tokens", code="rate_limit_exceeded")
    reason = "429 rate_limit_exceeded: a day's limit"
    assert found == Fault(PAUSE, reason, 432.5, elsewhere=True, of_model=True)
    assert fault("openai-compatible", 429, text).recovery is RETRY


def test_a_minute_s_limit_at_groq_is_retried():
    found = fault("groq", 429, GROQ_DAY.format("tokens per minute (TPM)"))
    assert found == Fault(RETRY, "429", 432.5, throttled=True, pause=432.5)


def test_azure_s_own_want_of_room_is_not_ours():
    found = fault("azure", 429, "Our system is currently experiencing high demand.", (("retry-after", "2"),))
    assert found == Fault(RETRY, "429", 2, elsewhere=True)


def test_together_is_full_or_we_are_above_our_rate():
    assert fault("together", 429, "rate limited") == Fault(RETRY, "429", throttled=True)
    assert fault("together", 503, "overloaded") == Fault(RETRY, "503", elsewhere=True, unhealthy=True)


@pytest.mark.parametrize(
    ("kind", "message", "unhealthy", "throttled"),
    [
        ("vllm", "the engine is dead", True, False),
        ("sglang", "aborted by a higher priority request", False, True),
        ("vllm", "aborted by a higher priority request", True, False),
        ("llamacpp", "the queue is full", False, True),
        ("openai-compatible", "The request queue is full.", True, False),
    ],
)
def test_a_full_server_is_no_ill_one(kind: str, message: str, unhealthy: bool, throttled: bool):
    found = fault(kind, 503, message)
    assert (found.recovery, found.elsewhere) == (RETRY, True)
    assert (found.unhealthy, found.throttled) == (unhealthy, throttled)


def test_a_loading_server_may_say_when_to_come_back():
    assert fault("llamacpp", 503, "Loading model", (("retry-after", "9"),)).retry_after == 9


AZURE = [
    RateLimit("requests", 1000, 999, 1, name="requests"),
    RateLimit("tokens", 1_000_000, 998_704, 12, name="tokens"),
]
MISTRAL = [
    RateLimit("requests", 720, 717, name="requests"),
    RateLimit("tokens", 5_000_000, 4_999_911, name="tokens"),
]
GROQ = [
    RateLimit("requests", 14400, 14370, 179.56, window=86400, name="requests_per_day"),
    RateLimit("tokens", 18000, 17997, 7.66, name="tokens"),
]
TOGETHER = [
    RateLimit("requests", 10, 9, 1, window=1, name="requests_per_second"),
    RateLimit("tokens", 33333, 33100, window=1, name="tokens_per_second"),
]


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("azure", "azure_headers", AZURE),
        ("azure", "azure_429", [RateLimit("tokens", None, 0, 14, name="tokens")]),
        ("mistral", "mistral_headers", MISTRAL),
        ("mistral", "mistral_429", []),
        ("groq", "groq_headers", GROQ),
        ("groq", "groq_429", [RateLimit("tokens", 18000, 0, 3.41, name="tokens")]),
        ("together", "together_headers", TOGETHER),
    ],
)
def test_sampled_limits(kind: str, name: str, expected: list[RateLimit]):
    found = provider_of_kind(kind).limits(headers_of(name), NOW)
    assert sorted(found, key=lambda one: one.name) == sorted(expected, key=lambda one: one.name)


@pytest.mark.parametrize("told", [(), (("x-groq-region", "us"),)])
def test_groq_counts_requests_by_the_day_however_it_signs(told: Headers):
    headers = (("x-ratelimit-limit-requests", "14400"), ("x-ratelimit-remaining-requests", "0"), *told)
    (found,) = provider_of_kind("groq").limits(headers, NOW)
    assert found == RateLimit("requests", 14400, 0, window=86400, name="requests_per_day")


def test_azure_says_minus_one_for_what_it_does_not_know():
    headers = (("x-ratelimit-limit-tokens", "-1"), ("x-ratelimit-remaining-tokens", "-1"))
    assert provider_of_kind("azure").limits(headers, NOW) == []


@pytest.mark.parametrize(("over", "left"), [("no", None), ("yes", 0)])
def test_fireworks_says_when_to_back_off(over: str, left: float | None):
    headers = (
        ("x-ratelimit-limit-requests", "6000"),
        ("x-ratelimit-remaining-requests", "5990"),
        ("x-ratelimit-limit-tokens-prompt", "60000"),
        ("x-ratelimit-limit-tokens-cache-adjusted-prompt", "15000"),
        ("x-ratelimit-limit-tokens-generated", "600"),
        ("x-ratelimit-over-limit", over),
    )
    requests, prompt, generated = provider_of_kind("fireworks").limits(headers, NOW)
    assert (requests.limit, requests.remaining, requests.window) == (6000, 5990, 60)
    assert (prompt.metric, prompt.limit, prompt.remaining, prompt.window) == ("input_tokens", 60000, left, 1)
    assert (generated.metric, generated.limit, generated.remaining) == ("output_tokens", 600, left)


TIMINGS = {"cache_n": 6, "prompt_n": 15, "predicted_n": 3, "predicted_per_second": 50.0}
ANSWER: dict[str, Any] = {"choices": [{"index": 0, "message": {"content": "x"}}]}


@pytest.mark.parametrize(
    ("kind", "answer", "usage"),
    [
        ("mistral", sample("mistral_chat_completion"), Usage(21, 4, **KNOWN, tier="standard")),
        ("groq", sample("groq_chat_completion"), Usage(80, 24, 64, **KNOWN, tier="on_demand")),
        ("vllm", sample("vllm_chat_completion"), Usage(21, 3, **KNOWN)),
        ("azure", sample("openai_chat_completion"), Usage(1204, 84, 1024, **KNOWN, tier="default")),
        (
            "sglang",
            {**ANSWER, "usage": {"prompt_tokens": 9, "completion_tokens": 7, "reasoning_tokens": 5}},
            Usage(9, 7, **KNOWN),
        ),
        ("llamacpp", {**ANSWER, "timings": TIMINGS}, Usage(21, 3, 6, **KNOWN)),
        (
            "llamacpp",
            {**ANSWER, "usage": {"prompt_tokens": 20, "completion_tokens": 2}, "timings": TIMINGS},
            Usage(20, 2, **KNOWN),
        ),
        ("llamacpp", {**ANSWER, "timings": {"prompt_n": "many"}}, Usage()),
        ("vllm", {**ANSWER, "timings": TIMINGS}, Usage()),
    ],
)
def test_usage_of_whole_answers(kind: str, answer: dict[str, Any], usage: Usage):
    assert provider_of_kind(kind).usage(Endpoint.CHAT, json.dumps(answer).encode()) == usage


@pytest.mark.parametrize("kind", FAMILY)
def test_the_stream_of_the_wire(kind: str):
    data = (SAMPLES / "sse_chat_stream.txt").read_bytes()
    reader, passed = read(kind, data)
    assert (reader.ended, reader.usage) == (True, Usage(1204, 84, 1024, **KNOWN, tier="default"))
    assert b'"choices":[]' not in passed
    asked, whole = read(kind, data, {"stream": True, "stream_options": {"include_usage": True}})
    assert (asked.usage, whole.strip()) == (reader.usage, data.strip())
    cut, _ = read(kind, (SAMPLES / "sse_chat_stream_cut.txt").read_bytes())
    assert (cut.started, cut.ended, cut.fault) == (True, False, None)


def test_groq_s_stream():
    data = (SAMPLES / "sse_groq_stream.txt").read_bytes()
    reader, passed = read("groq", data)
    assert (reader.ended, reader.usage, passed.strip()) == (True, Usage(80, 24, 64, **KNOWN), data.strip())


def test_groq_s_stream_may_break_under_x_groq():
    error = {"id": "req_1", "error": "the model has stopped"}
    reader, passed = read("groq", event(choices=[{"delta": {"content": "x"}}]) + event(choices=[], x_groq=error))
    assert reader.fault == Fault(RETRY, "500", unhealthy=True)
    assert b"has stopped" in passed


def test_a_full_sglang_says_so_in_its_stream():
    reader, _ = read("sglang", (SAMPLES / "sse_sglang_queue_full.txt").read_bytes())
    assert not reader.started
    assert reader.fault == Fault(RETRY, "503 ServiceUnavailableError", elsewhere=True, throttled=True)


def test_llamacpp_s_stream_tells_its_timings_in_the_last_chunk():
    text = event(choices=[{"delta": {"content": "x"}}])
    last = event(choices=[{"delta": {}, "finish_reason": "stop"}], timings=TIMINGS)
    reader, passed = read("llamacpp", text + last + b"data: [DONE]\n\n")
    assert (reader.ended, reader.usage) == (True, Usage(21, 3, 6, **KNOWN))
    assert last in passed


def test_azure_opens_with_a_chunk_that_has_no_choices():
    opening = event(choices=[], model="", prompt_filter_results=[{"prompt_index": 0}])
    reader, passed = read("azure", opening)
    assert (reader.started, reader.ended, passed) == (False, False, opening)


def test_vllm_keeps_a_stream_alive():
    alive = b": keep-alive\n\n"
    reader, passed = read("vllm", alive * 2 + event(choices=[{"delta": {"content": "x"}}]) + alive)
    assert (reader.started, reader.fault, passed.count(alive)) == (True, None, 3)


ASKS = ("azure", "together", "fireworks", *SELF_HOSTED, "openai", "openai-compatible")


@pytest.mark.parametrize("kind", FAMILY)
def test_who_is_asked_for_a_stream_s_usage(kind: str):
    provider = provider_of_kind(kind)
    payload = chat("hi", stream=True)
    prepared = provider.prepare(Endpoint.CHAT, payload)
    if kind in ASKS:
        assert prepared["stream_options"] == {"include_usage": True}
    else:
        assert prepared is payload
    asked = chat("hi", stream=True, stream_options={"include_usage": True})
    assert provider.prepare(Endpoint.CHAT, asked) == (payload if kind == "mistral" else asked)


@pytest.mark.parametrize("kind", [kind for kind in FAMILY if kind != "openai"])
def test_prompt_and_output_bound_are_charged(kind: str):
    charge = provider_of_kind(kind).charge(Endpoint.CHAT, chat("a" * 400, max_tokens=50, n=2))
    assert charge.tokens == pytest.approx(200, abs=10)
    assert charge.output_tokens == 100
    best = provider_of_kind(kind).charge(
        Endpoint.COMPLETIONS, {"prompt": "a" * 400, "max_tokens": 50, "best_of": 3}
    )
    assert best.tokens == pytest.approx(250, abs=10)


@pytest.mark.parametrize(
    ("kind", "settled"),
    [
        ("openai", Charge(1, 500, 90, 7)),
        ("azure", Charge(1, 500, 90, 7)),
        ("groq", Charge(1, 33, 26, 7)),
        *((kind, Charge(1, 97, 90, 7)) for kind in ("mistral", "together", "fireworks", *SELF_HOSTED)),
    ],
)
def test_settling(kind: str, settled: Charge):
    charge = Charge(tokens=500, input_tokens=400, output_tokens=100)
    assert provider_of_kind(kind).settle(charge, Usage(90, 7, 64, **KNOWN)) == settled


def test_azure_does_not_count_what_was_used_beyond_the_estimate():
    assert provider_of_kind("azure").settle(Charge(1, 10, 5, 5), Usage(90, 7, **KNOWN)).tokens == 10


@pytest.mark.parametrize("kind", FAMILY)
@pytest.mark.parametrize(
    ("path", "payload"),
    [
        ("/moderations", {"model": "m", "input": "a" * 400}),
        ("/images/generations", {"model": "m", "prompt": "a" * 400}),
        ("/audio/speech", {"model": "m", "input": "a" * 400}),
    ],
)
def test_what_we_do_not_understand_is_one_request(kind: str, path: str, payload: dict[str, Any]):
    provider = provider_of_kind(kind)
    endpoint = provider.endpoint(provider.root + path)
    assert endpoint is Endpoint.OTHER
    assert provider.meters(provider.root + path)
    assert provider.charge(endpoint, payload) == Charge(requests=1)


@pytest.mark.parametrize("kind", FAMILY)
def test_what_administers_is_not_metered(kind: str):
    provider = provider_of_kind(kind)
    for path in ("/batches", "/batch/jobs", "/files", "/fine_tuning/jobs", "/models/m"):
        assert not provider.meters(provider.root + path)
    for path in ("/chat/completions", "/responses", "/embeddings", "/moderations"):
        assert provider.meters(provider.root + path)


def test_azure_s_older_batches_are_not_metered_either():
    azure = provider_of_kind("azure")
    assert not azure.meters("/openai/batches")
    assert azure.meters("/openai/deployments/files/chat/completions")


@pytest.mark.parametrize("kind", FAMILY)
def test_endpoints_stand_below_the_root(kind: str):
    provider = provider_of_kind(kind)
    assert provider.endpoint(f"{provider.root}/chat/completions") is Endpoint.CHAT
    assert provider.endpoint(f"{provider.root}/embeddings/") is Endpoint.EMBEDDINGS
    assert provider.endpoint(f"{provider.root}/messages") is Endpoint.OTHER
    assert provider.path_below("/whatever/v1/chat/completions") == f"{provider.root}/chat/completions"


def test_azure_s_deployments_are_its_models():
    azure = provider_of_kind("azure")
    path = "/openai/deployments/my%20model/chat/completions"
    assert (azure.endpoint(path), azure.model_in(path)) == (Endpoint.CHAT, "my model")
    assert azure.path_for(path, "a/b") == "/openai/deployments/a%2Fb/chat/completions"
    for other in ("/openai/v1/chat/completions", "/openai/deployments/m"):
        assert (azure.model_in(other), azure.path_for(other, "x")) == (None, other)


def test_credentials():
    for kind in FAMILY:
        headers = dict(provider_of_kind(kind).credentials("secret"))
        assert headers == ({"api-key": "secret"} if kind == "azure" else {"authorization": "Bearer secret"})


def test_who_gives_a_minute_anew_all_at_once():
    assert [kind for kind in FAMILY if provider_of_kind(kind).window == "fixed"] == ["azure"]


def test_priorities():
    interactive, bulk = TrafficClass.INTERACTIVE, TrafficClass.BULK
    for kind in FAMILY:
        provider: Provider = provider_of_kind(kind)
        assert (provider.priorities is not None) is KINDS[kind].has_priority
    vllm, sglang = provider_of_kind("vllm").priorities, provider_of_kind("sglang").priorities
    assert vllm is not None
    assert sglang is not None
    assert vllm[interactive] < vllm[bulk]
    assert sglang[interactive] > sglang[bulk]


@pytest.mark.parametrize("kind", FAMILY)
def test_priority_is_for_those_who_have_it(kind: str):
    settings = {"kind": kind, "base_url": "http://x.invalid/v1", "priority": True}
    if KINDS[kind].has_priority:
        assert parse_config({"providers": {"one": settings}}).providers["one"].priority
    else:
        with pytest.raises(ConfigError, match=r"providers\.one\.priority: the kind '.*' has no such field"):
            parse_config({"providers": {"one": settings}})


@pytest.mark.parametrize("kind", FAMILY)
def test_base_urls(kind: str):
    default = KINDS[kind].base_url
    if default is not None:
        assert parse_config({"providers": {"one": {"kind": kind}}}).providers["one"].base_url == default
    else:
        with pytest.raises(ConfigError, match="base_url"):
            parse_config({"providers": {"one": {"kind": kind}}})
