"""What is asked, over real sockets: a server as it is, and a model through its routes."""

from __future__ import annotations

import json

import pytest

from orchestra.bench.load.clock import LoopClock
from orchestra.bench.load.endpoint_target import EndpointTarget
from orchestra.bench.load.generator import LoadRun, Phases
from orchestra.bench.load.prompts import messages_of
from orchestra.bench.load.route_target import RouteTarget
from orchestra.bench.load.target import Answer, ended_by, read_answer
from orchestra.bench.load.workload import Request
from orchestra.bench.results.measurement import Ended
from orchestra.call import Outcome
from orchestra.chat_stream import ChatStream
from orchestra.config import parse_config
from orchestra.errors import AllRoutesFailed, ConnectionFailed, InputError, ProviderError, StreamInterrupted
from orchestra.policies.traffic import TrafficClass
from orchestra.testing import Reply, ScriptedProvider, StreamScript

KEY = "sk-very-secret"
INTERACTIVE, BULK = (Request(at, 0.0, traffic, 9, 5, seed=3) for at, traffic in enumerate(TrafficClass))
STREAM = Reply(stream=StreamScript(chunks=("one ", "two ", "three"), usage=True))


def pieces() -> tuple[list[int], object]:
    came: list[int] = []
    return came, lambda: came.append(len(came))


async def test_a_server_is_asked_once_and_as_it_is():
    came, count = pieces()
    script = [STREAM, Reply.error(429, message=f"not for {KEY},\n not now")]
    async with ScriptedProvider(script) as provider:
        target = EndpointTarget(provider.base_url, "m", api_key=KEY, body={"ignore_eos": True})
        async with target:
            answer = await target.ask(INTERACTIVE, count)
            with pytest.raises(ProviderError) as refused:
                await target.ask(INTERACTIVE, count)
        first, second = provider.log
    assert len(came) == 3
    assert answer.told
    assert answer.output_tokens > 0
    assert first.headers["authorization"] == f"Bearer {KEY}"
    asked = first.json
    assert (asked["model"], asked["max_tokens"], asked["ignore_eos"], asked["stream"]) == ("m", 5, True, True)
    assert len(asked["messages"][0]["content"].split()) == 9
    assert second.json == asked  # no retry came between: the second is ours
    assert ended_by(refused.value) is Ended.REFUSED
    assert KEY in str(refused.value)
    assert target.tell(refused.value).endswith("not for ***, not now")
    assert KEY not in target.name


async def test_a_server_without_usage_has_its_pieces_counted():
    came, count = pieces()
    bare = Reply(stream=StreamScript(chunks=("one ", "two "), usage=False))
    async with ScriptedProvider([bare]) as provider, EndpointTarget(provider.base_url, "m") as target:
        answer = await target.ask(BULK, count)
    assert (answer.told, answer.output_tokens, len(came)) == (False, 2, 2)


@pytest.mark.parametrize(
    "url",
    ["localhost:8000/v1", "http://", "ftp://host/v1", f"http://me:{KEY}@host/v1", f"https://host/v1?key={KEY}"],
)
def test_an_address_that_is_none_or_holds_a_secret_is_refused_unsaid(url):
    with pytest.raises(InputError, match="--url") as refused:
        EndpointTarget(url, "m")
    assert KEY not in str(refused.value)


async def test_a_route_is_asked_in_its_class_and_priced_by_the_settings(monkeypatch):
    monkeypatch.setenv("BENCH_KEY", KEY)
    broken = Reply(stream=StreamScript(chunks=("one ", "two "), drop_after=1))
    async with ScriptedProvider([STREAM, STREAM, broken]) as provider:
        config = parse_config(
            {
                "observe": {"status": False},
                "models": {"fast": {"routes": ["own/m"]}},
                "providers": {
                    "own": {
                        "kind": "vllm",
                        "base_url": provider.base_url,
                        "api_key": "env:BENCH_KEY",
                        "priority": True,
                        "prices": [{"input": 1.0, "output": 2.0}],
                    }
                },
            }
        )
        came, count = pieces()
        async with RouteTarget(config, "fast", length_field="max_completion_tokens") as target:
            answers = [await target.ask(request, count) for request in (INTERACTIVE, BULK)]
            with pytest.raises(StreamInterrupted):
                await target.ask(INTERACTIVE, count)
            assert target.tell(ValueError(f"x {KEY}")) == "x ***"
            assert target.tell(ValueError("x \x1b[2J \ud800")) == "x ?[2J ?"
        asked = [hit.json for hit in provider.log]
    assert target.name == "fast (own/m)"
    assert asked[0]["priority"] < asked[1]["priority"]  # vLLM serves lower ones first
    assert asked[0]["max_completion_tokens"] == 5
    for answer in answers:
        assert answer.route == "own/m"
        assert answer.usd == pytest.approx((answer.prompt_tokens + 2 * answer.output_tokens) / 1e6)
    assert len(came) == 7


async def test_a_call_costs_what_its_tier_costs():
    async with ScriptedProvider(default=STREAM) as provider:
        own = {
            "kind": "openai-compatible",
            "base_url": provider.base_url,
            "service_tiers": {"bulk": "flex"},
            "prices": [{"input": 1.0, "output": 2.0, "tiers": {"flex": 0.5}}],
        }
        config = parse_config({"observe": {"status": False}, "providers": {"own": own}})
        async with RouteTarget(config, "own/m") as target:
            dear, cheap = [await target.ask(request, lambda: None) for request in (INTERACTIVE, BULK)]
    tokens = dear.prompt_tokens + 2 * dear.output_tokens
    assert (dear.usd, cheap.usd) == pytest.approx((tokens / 1e6, tokens / 2e6))


async def test_tokens_of_a_reasoning_that_is_not_shown_are_hidden():
    usage = {"prompt_tokens": 3, "completion_tokens": 50, "completion_tokens_details": {"reasoning_tokens": 40}}

    async def answer(**delta: str) -> Answer:
        choice = {"index": 0, "delta": delta, "finish_reason": "stop"}
        chunks = [{"choices": [choice]}, {"choices": [], "usage": usage}]

        async def body():
            yield "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks).encode() + b"data: [DONE]\n\n"

        return await read_answer(ChatStream(Outcome(200, (), body(), "own/m")), lambda: None)

    told = await answer(content="yes")
    assert (told.output_tokens, told.hidden_tokens) == (50, 40)
    assert (await answer(reasoning_content="since")).hidden_tokens == 0


async def test_a_load_over_sockets_is_measured_whole():
    slow = Reply(stream=StreamScript(chunks=("a",) * 4, gap=0.01), delay=0.02)
    calls = [Request(number, number * 0.01, TrafficClass.INTERACTIVE, 4, 4) for number in range(20)]
    script = [Reply.error(503) if number == 7 else slow for number in range(20)]
    async with ScriptedProvider(script) as provider, EndpointTarget(provider.base_url, "m") as target:
        run = LoadRun(target, Phases(0.0, 10.0, 60.0), LoopClock())
        await run.run(iter(calls))
    found = run.measurements()
    assert sorted(call.intended for call in found) == [call.at for call in calls]
    assert [call.ended for call in found].count(Ended.REFUSED) == 1
    for call in found:
        if call.ended is Ended.ANSWERED:
            assert len(call.chunks) == 4
            assert call.ttft >= 0.02
            assert call.e2e >= 0.05


def test_prompts_begin_differently_and_are_those_of_the_seed():
    starts = {
        messages_of(Request(number, 0.0, TrafficClass.BULK, 60, 1))[0]["content"][:30] for number in range(200)
    }
    assert len(starts) == 200
    assert messages_of(INTERACTIVE) == messages_of(INTERACTIVE)


@pytest.mark.parametrize(
    ("last", "ended"),
    [
        (ProviderError("x", status=529, code=None, retry_after=None, body=b""), Ended.REFUSED),
        (ConnectionFailed("x", sent=False), Ended.FAILED),
    ],
)
def test_several_routes_end_as_the_last_did(last, ended):
    assert ended_by(AllRoutesFailed("none", attempts=[("a/m", InputError("x")), ("b/m", last)])) is ended
