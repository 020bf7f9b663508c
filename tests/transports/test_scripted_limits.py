"""The scripted provider's limits: how it counts, what it tells, and who else uses them."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import httpx2
import pytest

from orchestra.testing import Limits, Reply, ScriptedProvider, StreamScript, Tenant
from orchestra.testing.limiter import Limiter

CHAT = {"model": "m", "max_tokens": 30, "messages": [{"role": "user", "content": "hi"}]}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def limiter(clock: Clock, tenant: Tenant | None = None, **limits: object) -> Limiter:
    return Limiter(Limits(**limits), tenant, clock)  # type: ignore[arg-type]


async def ask(url: str, **fields: object) -> httpx2.Response:
    async with httpx2.AsyncClient(trust_env=False) as client:
        return await client.post(url, json={**CHAT, **fields})


def left(one: Limiter) -> dict[str, float]:
    return {gauge.metric: gauge.remaining for gauge in one.gauges()}


@pytest.mark.parametrize(
    ("charge", "on_arrival", "in_the_end"),
    [("bound", 150, 150), ("usage", 150, 120), ("prompt", 100, 120), ("larger", 100, 100)],
)
def test_tokens_are_counted_by_the_rule(charge: str, on_arrival: float, in_the_end: float):
    one = limiter(Clock(), tokens_per_minute=1000, charge=charge)
    assert one.admit(100, 50, 1) is None
    assert left(one)["tokens"] == 1000 - on_arrival
    assert one.settle(100, 50, 20)["tokens"] == in_the_end
    assert left(one)["tokens"] == 1000 - in_the_end


def test_input_and_output_have_limits_of_their_own():
    one = limiter(Clock(), input_tokens_per_minute=100, output_tokens_per_minute=60, charge="prompt")
    assert one.admit(80, 50, 1) is None
    one.settle(80, 50, 90)
    assert left(one) == {"input_tokens": 20, "output_tokens": 0}
    assert one.admit(10, 0, 1) == pytest.approx(30)  # the output that was more than there was


def test_the_bucket_holds_the_burst_and_refills():
    clock = Clock()
    one = limiter(clock, requests_per_minute=60, burst_seconds=2)
    assert [one.admit(1, 0, 1) for _ in range(3)] == [None, None, 1.0]
    clock.now += 1
    assert one.admit(1, 0, 1) is None


def test_limits_change_while_it_runs():
    clock = Clock()
    one = limiter(clock, requests_per_minute=60)
    one.change(Limits(requests_per_minute=30))
    assert left(one)["requests"] == 30
    one.change(Limits(requests_per_minute=120))
    assert left(one)["requests"] == 30
    clock.now += 10
    assert left(one)["requests"] == 50


def test_a_tenant_takes_its_share_of_the_refill():
    clock = Clock()
    steady = limiter(clock, Tenant(0.4), requests_per_minute=60)
    alternating = limiter(clock, Tenant(0.8, on=10, off=10), requests_per_minute=60)
    for one in (steady, alternating):
        while one.admit(1, 0, 1) is None:
            pass
    clock.now += 10
    assert left(steady)["requests"] == pytest.approx(6)
    assert left(alternating)["requests"] == pytest.approx(2)
    clock.now += 15
    assert left(steady)["requests"] == pytest.approx(15)
    assert left(alternating)["requests"] == pytest.approx(2 + 10 + 1)


@pytest.mark.parametrize("tenant", [{"share": 1.0}, {"share": -0.1}, {"share": 0.5, "on": 0}])
def test_no_such_tenant(tenant: dict[str, float]):
    with pytest.raises(ValueError, match="tenant"):
        Tenant(**tenant)


async def test_headers_tell_everything_or_only_when_to_come_back_or_nothing():
    told = {}
    for style in ("limits", "retry-after", "none"):
        limits = Limits(requests_per_minute=60, burst_seconds=1, headers=style)  # type: ignore[arg-type]
        async with ScriptedProvider(limits=limits, clock=Clock()) as provider:
            answers = [await ask(f"{provider.base_url}/chat/completions") for _ in range(2)]
            assert [answer.status_code for answer in answers] == [200, 429]
            told[style] = [
                {name for name in answer.headers if name.startswith(("x-ratelimit", "retry-after"))}
                for answer in answers
            ]
    state = {f"x-ratelimit-{part}-requests" for part in ("limit", "remaining", "reset")}
    assert told == {
        "limits": [state, {*state, "retry-after"}],
        "retry-after": [set(), {"retry-after"}],
        "none": [set(), set()],
    }


async def test_limits_change_on_time():
    clock = Clock()
    changes = [(0.2, Limits(requests_per_minute=30))]
    async with ScriptedProvider(limits=Limits(requests_per_minute=60), changes=changes, clock=clock) as provider:
        url = f"{provider.base_url}/chat/completions"
        assert (await ask(url)).headers["x-ratelimit-limit-requests"] == "60"
        clock.now += 0.25
        assert (await ask(url)).headers["x-ratelimit-limit-requests"] == "30"


async def test_the_log_tells_what_each_request_counted_for():
    limits = Limits(tokens_per_minute=50, charge="usage")
    async with ScriptedProvider(limits=limits, text="x" * 80, clock=Clock()) as provider:
        url = f"{provider.base_url}/chat/completions"
        answer = await ask(url)
        assert (await ask(url)).status_code == 429
        assert [hit.tokens for hit in provider.log] == [answer.json()["usage"]["total_tokens"], 0]
        assert provider.log[0].answered_at is not None
        assert provider.log[0].answered_at >= provider.log[0].at


async def test_prompts_may_be_longer_than_their_characters_say():
    async with ScriptedProvider() as plain, ScriptedProvider(tokens_per_character=0.75) as dense:
        usual, long = [
            (await ask(f"{one.base_url}/chat/completions")).json()["usage"]["prompt_tokens"]
            for one in (plain, dense)
        ]
        assert long == pytest.approx(3 * usual, abs=3)


async def test_a_message_in_anthropics_form():
    limits = Limits(requests_per_minute=1, input_tokens_per_minute=9000, charge="prompt")
    async with ScriptedProvider(text="hello", limits=limits, clock=Clock()) as provider:
        url = f"{provider.origin}/v1/messages"
        first, second = await ask(url, system="be brief"), await ask(url)
        message = first.json()
        assert (message["type"], message["content"][0]["text"]) == ("message", "hello")
        assert message["usage"]["input_tokens"] > 5
        assert first.headers["anthropic-ratelimit-requests-remaining"] == "0"
        assert first.headers["anthropic-ratelimit-input-tokens-remaining"] == "9000"  # told in thousands
        datetime.fromisoformat(first.headers["anthropic-ratelimit-requests-reset"])
        assert second.status_code == 429
        assert second.json()["error"]["type"] == "rate_limit_error"
        assert float(second.headers["retry-after"]) == pytest.approx(60, abs=1)


async def test_a_refusal_in_anthropics_form_says_when_in_its_own_headers():
    limits = Limits(input_tokens_per_minute=10, headers="retry-after", hint="iso")
    async with ScriptedProvider(limits=limits) as provider:
        url = f"{provider.origin}/v1/messages"
        refused = [await ask(url) for _ in range(2)][1]
        assert refused.status_code == 429
        assert refused.headers["anthropic-ratelimit-input-tokens-remaining"] == "0"
        reset = datetime.fromisoformat(refused.headers["anthropic-ratelimit-input-tokens-reset"])
        assert 0 < (reset - datetime.now(UTC)).total_seconds() < 60


async def test_a_stream_in_anthropics_form():
    async with ScriptedProvider(default=Reply(stream=StreamScript(chunks=["a", "b"]))) as provider:
        body = (await ask(f"{provider.origin}/v1/messages", stream=True)).text
    kinds = [line.removeprefix("event: ") for line in body.splitlines() if line.startswith("event: ")]
    data = [json.loads(line.removeprefix("data: ")) for line in body.splitlines() if line.startswith("data: ")]
    assert kinds == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert [event["type"] for event in data] == kinds
    assert "".join(event["delta"]["text"] for event in data if event["type"] == "content_block_delta") == "ab"
    assert data[-2]["usage"]["output_tokens"] == 1


async def test_a_stream_in_anthropics_form_breaks_off_with_an_error():
    broken = StreamScript(chunks=["a", "b"], error_after=1, error={"type": "overloaded_error", "message": "busy"})
    replies = [Reply(stream=broken), Reply.anthropic_error(529, "overloaded_error")]
    async with ScriptedProvider(replies) as provider:
        url = f"{provider.origin}/v1/messages"
        body = (await ask(url, stream=True)).text
        assert body.count("text_delta") == 1
        assert body.rstrip().endswith('{"type":"error","error":{"type":"overloaded_error","message":"busy"}}')
        assert (await ask(url)).json()["error"]["type"] == "overloaded_error"
