"""Orchestra as an application uses it, over a scripted engine and a scripted provider."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest

import orchestra
from orchestra import Orchestra
from orchestra.testing import Reply, ScriptedProvider, StreamScript

from .fake_engine import FakeEngine

ASK = [{"role": "user", "content": "Colour of a ripe banana?"}]


def over(provider: ScriptedProvider, *further_routes: str, **more: Any) -> dict[str, Any]:
    """Settings with the provider as the preferred route of ``fast``."""
    return {
        "providers": {
            "cloud": {"kind": "openai-compatible", "base_url": provider.base_url, "api_key": "sk-secret"}
        },
        "models": {"fast": {"routes": ["cloud/big", *further_routes]}},
        "local": {"small": {"weights": "small"}},
        **more,
    }


# chat


async def test_chat_returns_the_whole_answer(orc: Orchestra, engine: FakeEngine) -> None:
    reply = await orc.chat("fast", ASK, max_tokens=9, temperature=0)
    assert (reply.text, reply.model, reply.choices[0].finish_reason) == ("Yellow.", "local/small", "stop")
    assert reply.usage is not None
    assert reply.usage.total_tokens == 7
    ((prompt, sampling, traffic),) = engine.asked
    assert (prompt, sampling.max_tokens, sampling.temperature, traffic) == (ASK, 9, 0, "interactive")


async def test_an_answer_can_be_sent_back_as_a_message(orc: Orchestra, engine: FakeEngine) -> None:
    reply = await orc.chat("fast", ASK)
    await orc.chat("fast", [*ASK, reply.choices[0].message, {"role": "user", "content": "Sure?"}])
    assert [message["content"] for message in engine.asked[1][0]] == [ASK[0]["content"], "Yellow.", "Sure?"]


@pytest.mark.parametrize(
    ("model", "messages", "params", "told"),
    [
        ("", ASK, {}, "model"),
        (None, ASK, {}, "model"),
        ("fats", ASK, {}, "did you mean 'fast'"),
        ("fast", [], {}, "at least one message"),
        ("fast", "Hello", {}, "must be a list"),
        ("fast", ASK[0], {}, "must be a list"),
        ("fast", ["Hello"], {}, r"messages\[0\]"),
        ("fast", [*ASK, {"content": "x"}], {}, r"messages\[1\]"),
        ("fast", ASK, {"stream": True}, r"stream\(\)"),
        ("fast", ASK, {"tools": [{"type": "function"}]}, "tools"),
        ("fast", ASK, {"user": object()}, "JSON"),
        ("fast", ASK, {"temperature": float("nan")}, "JSON"),
    ],
)
async def test_what_cannot_be_meant_is_refused_before_anything_is_sent(
    orc: Orchestra, engine: FakeEngine, model: Any, messages: Any, params: dict[str, Any], told: str
) -> None:
    with pytest.raises(orchestra.InputError, match=told):
        await orc.chat(model, messages, **params)
    assert engine.asked == []


async def test_an_error_answer_is_a_typed_error() -> None:
    refusal = Reply.error(400, "context_length_exceeded", kind="invalid_request_error", message="too long by half")
    async with ScriptedProvider([refusal]) as provider, Orchestra.from_config(over(provider)) as orc:
        with pytest.raises(orchestra.ProviderError, match=r"cloud/big answered 400: too long by half") as caught:
            await orc.chat("fast", ASK)
    error = caught.value
    assert (error.status, error.code, error.retry_after) == (400, "context_length_exceeded", None)
    assert json.loads(error.body)["error"]["message"] == "too long by half"
    assert "sk-secret" not in str(error)


async def test_a_demanded_wait_is_told() -> None:
    spent = Reply.error(429, "insufficient_quota", kind="insufficient_quota", headers={"retry-after": "86400"})
    async with ScriptedProvider(default=spent) as provider, Orchestra.from_config(over(provider)) as orc:
        with pytest.raises(orchestra.ProviderError) as caught:
            await orc.chat("fast", ASK)
    assert (caught.value.status, caught.value.code, caught.value.retry_after) == (429, "insufficient_quota", 86400)


async def test_an_answer_in_another_format_is_no_answer() -> None:
    page = Reply(body="<html>Welcome to the hotel network</html>")
    async with ScriptedProvider(default=page) as provider, Orchestra.from_config(over(provider)) as orc:
        with pytest.raises(orchestra.CallError), orchestra.interactive(timeout=2):
            await orc.chat("fast", ASK)


# streams


async def test_a_stream_yields_text_and_then_tells_the_rest(orc: Orchestra) -> None:
    async with orc.stream("fast", ASK) as deltas:
        assert deltas.route == "local/small"
        assert [text async for text in deltas] == ["Yel", "low."]
    assert (deltas.text, deltas.finish_reason, deltas.model) == ("Yellow.", "stop", "local/small")
    assert deltas.usage is not None
    assert deltas.usage.completion_tokens == 2


async def test_a_stream_yields_whole_chunks(orc: Orchestra) -> None:
    async with orc.stream("fast", ASK) as deltas:
        first, *chunks = [chunk async for chunk in deltas.chunks]
    assert first.choices[0].delta.role == "assistant"
    assert [chunk.text for chunk in chunks] == ["Yel", "low.", "", ""]
    assert chunks[-1].usage == deltas.usage


async def test_leaving_a_stream_early_ends_the_request(orc: Orchestra, engine: FakeEngine) -> None:
    engine.pieces = ["Yel", None]
    async with orc.stream("fast", ASK) as deltas:
        async for text in deltas:
            assert text == "Yel"
            break
        assert engine.open_streams == 1
    assert engine.open_streams == 0


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (StreamScript(("Yel", "low."), drop_after=1), "broke off"),
        (StreamScript(("Yel", "low."), error_after=1), "the server broke"),
    ],
)
async def test_a_stream_that_breaks_is_a_typed_error(script: StreamScript, told: str) -> None:
    async with ScriptedProvider([Reply(stream=script)]) as provider, Orchestra.from_config(over(provider)) as orc:
        async with orc.stream("fast", ASK) as deltas:
            assert await anext(deltas) == "Yel"
            with pytest.raises(orchestra.StreamInterrupted, match=told):
                await anext(deltas)
        assert deltas.text == "Yel"


async def test_usage_is_asked_for_unless_the_caller_says_otherwise() -> None:
    async with ScriptedProvider() as provider, Orchestra.from_config(over(provider)) as orc:
        async with orc.stream("fast", ASK) as deltas:
            assert [text async for text in deltas]
        assert deltas.usage is not None
        async with orc.stream("fast", ASK, stream_options={"include_usage": False}) as deltas:
            assert [text async for text in deltas]
        assert deltas.usage is None


# classes and bounds


async def test_calls_take_the_class_of_their_block(orc: Orchestra, engine: FakeEngine) -> None:
    with orchestra.bulk():
        await orc.chat("fast", ASK)
        with orchestra.interactive():
            await orc.chat("fast", ASK)
    assert [traffic for _, _, traffic in engine.asked] == ["bulk", "interactive"]


@pytest.mark.parametrize(
    "tag",
    [lambda seconds: orchestra.interactive(timeout=seconds), lambda seconds: orchestra.bulk(deadline=seconds)],
)
async def test_a_bound_holds_for_the_whole_call(
    orc: Orchestra, engine: FakeEngine, tag: Callable[[float], Any]
) -> None:
    engine.pieces = [None]
    async with asyncio.timeout(30):
        with tag(0.05), pytest.raises(orchestra.DeadlineExceeded, match="no answer within the"):
            await orc.chat("fast", ASK)
        engine.pieces = ["Yel", None]
        with tag(3.0):
            async with orc.stream("fast", ASK) as deltas:
                assert await anext(deltas) == "Yel"
                with pytest.raises(orchestra.StreamInterrupted, match="no more within the"):
                    await anext(deltas)
    assert engine.open_streams == 0


# jobs


async def test_a_job_is_submitted_run_and_read_back(orc: Orchestra, engine: FakeEngine) -> None:
    requests = [{"custom_id": f"r{number}", "messages": ASK} for number in range(5)]
    job = await orc.submit(requests, model="fast", job="bananas")
    results = [result async for result in job]
    assert sorted(result.custom_id for result in results) == ["r0", "r1", "r2", "r3", "r4"]
    assert all(result.ok and result.route == "local/small" for result in results)
    assert {traffic for _, _, traffic in engine.asked} == {"bulk"}
    assert [job.name for job in orc.jobs.list()] == ["bananas"]
    again = await orc.submit(requests, model="fast", job="bananas")
    assert again.progress().done == 5
    assert len(engine.asked) == 5


async def test_a_job_takes_name_and_deadline_of_its_block(orc: Orchestra) -> None:
    with orchestra.bulk(job="tonight", deadline="1h") as tag:
        job = await orc.submit([{"messages": ASK}], model="fast")
    await job.wait()
    assert job.name == "tonight"
    assert job.record.deadline == pytest.approx(tag.deadline, abs=60)


async def test_a_line_that_no_route_could_serve_is_never_sent(
    orc: Orchestra, engine: FakeEngine, tmp_path: Path
) -> None:
    lines = tmp_path / "in.jsonl"
    lines.write_text('{"model": "fast", "messages": [{"role": "user", "content": "x"}], "best_of": 2}\n')
    with pytest.raises(orchestra.InputError, match=r"line 1.*cannot do 'best_of'"):
        await orc.submit(str(lines))
    lines.write_text('{"model": "slow", "messages": [{"role": "user", "content": "x"}]}\n')
    with pytest.raises(orchestra.InputError, match=r"line 1.*slow"):
        await orc.submit(str(lines))
    lines.write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
    with pytest.raises(orchestra.InputError, match=r"line 1.*model"):
        await orc.submit(str(lines))
    await orc.engine("small")  # once it is started, the length of prompts can be told
    lines.write_text(json.dumps({"model": "fast", "messages": [{"role": "user", "content": "long" * 99}]}))
    with pytest.raises(orchestra.InputError, match=r"line 1.*too long"):
        await orc.submit(str(lines))
    assert engine.asked == []


async def test_a_line_is_refused_only_where_every_route_would(
    engine: FakeEngine, settings: dict[str, Any]
) -> None:
    async with (
        ScriptedProvider(text="Two.") as provider,
        Orchestra.from_config({**over(provider, "local/small"), "bulk": settings["bulk"]}) as orc,
    ):
        job = await orc.submit([{"messages": ASK, "n": 2}], model="fast")
        (result,) = [result async for result in job]
    assert result.ok
    assert result.route == "cloud/big"


async def test_the_engine_can_be_had(orc: Orchestra, engine: FakeEngine) -> None:
    assert await orc.engine("small") is engine
    with pytest.raises(orchestra.UnknownModelError, match="there is: small"):
        await orc.engine("large")


# its state


async def test_the_snapshot_is_plain_and_whole(engine: FakeEngine, settings: dict[str, Any]) -> None:
    async with (
        ScriptedProvider() as provider,
        Orchestra.from_config({**over(provider), "bulk": settings["bulk"]}) as orc,
    ):
        before = orc.snapshot()
        await orc.chat("fast", ASK)
        await orc.chat("local/small", ASK)
        engine.pieces = [None]
        engine.asked_for.clear()
        await orc.submit([{"messages": ASK}], model="local/small", job="hangs")
        await engine.asked_for.wait()
        after = orc.snapshot()
    assert json.loads(json.dumps(before)) == before
    assert before == {
        "pools": [],
        "routes": {},
        "local": {"small": {"weights": "small", "state": "unused"}},
        "jobs": {},
        "batches": [],
    }
    assert json.loads(json.dumps(after)) == after
    assert [(pool["provider"], pool["models"]) for pool in after["pools"]] == [("cloud", ["big"])]
    assert after["local"]["small"]["state"] == "running"
    assert after["jobs"]["hangs"]["total"] == 1
    assert "cloud/big" in after["routes"]
    assert "sk-secret" not in json.dumps(after)


def test_a_snapshot_makes_no_store(settings: dict[str, Any]) -> None:
    Orchestra.from_config(settings).snapshot()
    assert not Path(settings["bulk"]["store"]).exists()


def test_one_orchestra_serves_one_loop_after_another(engine: FakeEngine, settings: dict[str, Any]) -> None:
    orc = Orchestra.from_config(settings)

    async def main() -> str:
        async with orc:
            return (await orc.chat("fast", ASK)).text

    assert [asyncio.run(main()) for _ in range(3)] == ["Yellow."] * 3
    assert engine.closed


async def test_it_works_without_async_with(engine: FakeEngine, settings: dict[str, Any]) -> None:
    orc = Orchestra.from_config(settings)
    assert (await orc.chat("fast", ASK)).text == "Yellow."
    await orc.aclose()
    await orc.aclose()
    assert engine.closed


async def test_without_settings_the_small_model_answers(engine: FakeEngine) -> None:
    async with Orchestra() as orc:
        assert (await orc.chat("local/smollm2", ASK)).text == "Yellow."
        assert orc.config.providers["openai"].base_url == "https://api.openai.com/v1"


def test_settings_come_from_a_file(tmp_path: Path, engine: FakeEngine) -> None:
    file = tmp_path / "orchestra.toml"
    with pytest.raises(orchestra.ConfigError, match="no such file"):
        Orchestra.from_file(file)
    file.write_text('[models.fast]\nroutes = ["local/small"]\n[local.small]\nweights = "small"\n')
    assert list(Orchestra.from_file(file).config.models) == ["fast"]


# underneath an SDK


@pytest.mark.parametrize(("family", "library"), [("httpx2", httpx2), ("httpx", httpx)])
async def test_a_client_of_either_family_is_answered(orc: Orchestra, family: Any, library: Any) -> None:
    async with orc.http_client(family) as client:
        assert isinstance(client, library.AsyncClient)
        response = await client.post(
            "https://api.openai.com/v1/chat/completions", json={"model": "fast", "messages": ASK}
        )
        assert response.json()["choices"][0]["message"]["content"] == "Yellow."
    assert (await orc.chat("fast", ASK)).text == "Yellow."
    async with library.AsyncClient(transport=orc.transport(family), base_url="https://any.invalid/v1") as client:
        refused = await client.post("/chat/completions", json={"model": "fast", "messages": []})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "messages"


async def test_a_family_that_we_do_not_know_is_refused(orc: Orchestra) -> None:
    with pytest.raises(ValueError, match="aiohttp"):
        orc.http_client("aiohttp")  # type: ignore[call-overload]


async def test_a_process_has_a_default(engine: FakeEngine) -> None:
    async with orchestra.http_client() as one, orchestra.http_client("httpx") as other:
        for client in (one, other):
            body = {"model": "local/smollm2", "messages": ASK}
            answer = await client.post("https://api.openai.com/v1/chat/completions", json=body)
            assert answer.json()["choices"][0]["message"]["content"] == "Yellow."


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "https:///v1",
        "http://h:99999/v1",
        "http://h:x/v1",
        "http://[::1/v1",
        "http://h h/v1",
        "http://me:secret@h/v1",
        "http://h/v1?api-version=1",
        "http://h/v1#x",
    ],
)
def test_an_address_that_cannot_be_used_is_refused_at_once(url: str) -> None:
    with pytest.raises(orchestra.ConfigError, match=r"providers\.one\.base_url") as caught:
        Orchestra.from_config({"providers": {"one": {"kind": "openai-compatible", "base_url": url}}})
    assert "secret" not in str(caught.value)
