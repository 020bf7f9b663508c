"""The local route over a scripted engine: its wire, its errors, its single load."""

import asyncio
import gc
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestra.call import Call, Usage
from orchestra.config import LocalConfig
from orchestra.errors import InputError, LocalEngineError, QueueFull, StreamInterrupted
from orchestra.local_route.route import LocalRoute, open_engine
from orchestra.localengine import errors as engine_errors
from orchestra.openai_types import ChatCompletion, ChatCompletionChunk, Completion
from orchestra.policies.traffic import TrafficClass

from .fake_engine import FakeEngine

ASK = [{"role": "user", "content": "Colour of a ripe banana?"}]


def route_over(*engines: Any) -> LocalRoute:
    """A route that opens these engines, one after the other."""
    left = list(engines)
    return LocalRoute("small", LocalConfig(weights="w"), open_engine=lambda config: left.pop(0))


def chat(**fields: Any) -> Call:
    return Call.originate("/v1/chat/completions", {"model": "small", "messages": ASK, **fields})


def events(body: bytes) -> list[Any]:
    parts = body.decode().split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") for part in parts)
    assert parts.pop() == "data: [DONE]"
    return [json.loads(part[6:]) for part in parts]


async def test_a_plain_answer() -> None:
    engine = FakeEngine()
    outcome = await route_over(engine).send(chat(max_tokens=9))
    body = await outcome.read()
    reply = ChatCompletion.model_validate_json(body)
    assert (outcome.status, outcome.route, outcome.header("content-type")) == (
        200,
        "local/small",
        "application/json",
    )
    assert (reply.text, reply.choices[0].finish_reason, reply.model) == ("Yellow.", "stop", "local/small")
    assert reply.id.startswith("chatcmpl-")
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.total_tokens, reply.usage.cached_tokens) == (5, 7, 1)
    assert outcome.usage == Usage(5, 2, 1, certainty="known")
    ((prompt, sampling, traffic),) = engine.asked
    assert (prompt, sampling.max_tokens, traffic) == (ASK, 9, "interactive")


async def test_a_streamed_answer_has_role_pieces_end_and_done() -> None:
    outcome = await route_over(FakeEngine()).send(chat(stream=True))
    assert outcome.header("content-type") == "text/event-stream; charset=utf-8"
    chunks = events(await outcome.read())
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "Yel"},
        {"content": "low."},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert not any("usage" in chunk for chunk in chunks)
    assert outcome.usage == Usage(5, 2, 1, certainty="known")


async def test_usage_comes_last_where_asked_for() -> None:
    outcome = await route_over(FakeEngine()).send(chat(stream=True, stream_options={"include_usage": True}))
    *others, last = [ChatCompletionChunk.model_validate(chunk) for chunk in events(await outcome.read())]
    assert all(chunk.usage is None for chunk in others)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.total_tokens == 7


async def test_completions_have_text() -> None:
    route = route_over(FakeEngine())
    outcome = await route.send(Call.originate("/v1/completions", {"model": "small", "prompt": "A banana is"}))
    whole = Completion.model_validate_json(await outcome.read())
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("Yellow.", "stop")
    call = Call.originate("/v1/completions", {"model": "small", "prompt": [1, 2], "stream": True})
    chunks = [Completion.model_validate(chunk) for chunk in events(await (await route.send(call)).read())]
    assert [chunk.choices[0].text for chunk in chunks] == ["Yel", "low.", ""]


async def test_the_calls_class_reaches_the_engine() -> None:
    engine = FakeEngine()
    payload = {"model": "small", "messages": ASK}
    await route_over(engine).send(Call.originate("/v1/chat/completions", payload, traffic=TrafficClass.BULK))
    assert engine.asked[0][2] == "bulk"


async def test_a_bad_request_is_refused_before_anything_is_loaded() -> None:
    route = route_over()
    with pytest.raises(InputError, match="tools"):
        await route.send(chat(tools=[{"type": "function"}]))
    with pytest.raises(InputError, match="/v1/embeddings"):
        await route.send(Call.originate("/v1/embeddings", {"model": "small", "input": "x"}))
    assert route.snapshot()["state"] == "unused"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "ours"),
    [
        (engine_errors.PromptTooLong("too long"), InputError),
        (engine_errors.PromptError("no such token"), InputError),
        (engine_errors.EngineBusy("full"), QueueFull),
        (engine_errors.EngineClosed("closed"), LocalEngineError),
        (engine_errors.EngineDied("out of memory"), LocalEngineError),
    ],
)
async def test_engine_errors_before_content_are_ours(
    fault: Exception, ours: type[Exception], stream: bool
) -> None:
    engine = FakeEngine([fault])
    with pytest.raises(ours, match=str(fault)) as caught:
        await route_over(engine).send(chat(stream=stream))
    if isinstance(caught.value, InputError):
        assert caught.value.param == "messages"
        code = "context_length_exceeded" if isinstance(fault, engine_errors.PromptTooLong) else None
        assert caught.value.code == code
    assert engine.open_streams == 0


async def test_an_engine_error_after_content_interrupts_the_stream() -> None:
    engine = FakeEngine(["Yel", engine_errors.EngineDied("out of memory")])
    outcome = await route_over(engine).send(chat(stream=True))
    assert b"Yel" in await anext(outcome.body)
    with pytest.raises(StreamInterrupted, match="out of memory"):
        await anext(outcome.body)
    assert engine.open_streams == 0


@pytest.mark.parametrize("read_some", [False, True])
async def test_closing_the_outcome_ends_the_engines_request(read_some: bool) -> None:
    engine = FakeEngine(["Yel", None])
    outcome = await route_over(engine).send(chat(stream=True))
    assert engine.open_streams == 1
    if read_some:
        await anext(outcome.body)
    await outcome.aclose()
    assert engine.open_streams == 0
    await outcome.aclose()


@pytest.mark.parametrize("stream", [False, True])
async def test_cancelling_the_caller_ends_the_engines_request(stream: bool) -> None:
    engine = FakeEngine([None])
    task = asyncio.create_task(route_over(engine).send(chat(stream=stream)))
    await engine.asked_for.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.open_streams == 0


async def test_cancelling_a_reader_ends_the_engines_request() -> None:
    engine = FakeEngine(["Yel", None])
    outcome = await route_over(engine).send(chat(stream=True))
    task = asyncio.create_task(outcome.read())
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.open_streams == 0


@pytest.mark.parametrize("read_some", [False, True])
async def test_a_dropped_outcome_ends_the_engines_request(read_some: bool) -> None:
    engine = FakeEngine(["Yel", None])
    outcome = await route_over(engine).send(chat(stream=True))
    if read_some:
        await anext(outcome.body)
    gc.disable()
    try:
        del outcome
        async with asyncio.timeout(30):
            while engine.open_streams:  # noqa: ASYNC110 - a started generator is closed by its loop
                await asyncio.sleep(0.002)
    finally:
        gc.enable()


async def test_callers_share_one_engine() -> None:
    route = route_over(FakeEngine())
    outcomes = await asyncio.gather(*(route.send(chat()) for _ in range(8)))
    assert [outcome.status for outcome in outcomes] == [200] * 8
    assert route.snapshot() == {"weights": "w", "state": "running"}


def test_event_loops_in_threads_share_one_engine() -> None:
    route = route_over(FakeEngine())
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(asyncio.run(route.send(chat())).status)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert statuses == [200] * 4


async def test_a_failed_start_is_a_typed_error_and_may_be_tried_again() -> None:
    route = route_over(FakeEngine(starts=[engine_errors.ModelFileError("w: truncated; pull it again")]))
    with pytest.raises(LocalEngineError, match="w: truncated; pull it again"):
        await route.send(chat())
    assert (await route.send(chat())).status == 200


async def test_what_is_not_installed_is_told_with_the_remedy() -> None:
    died = engine_errors.EngineDied("the model could not be loaded: No module named 'torch'")
    died.__cause__ = ModuleNotFoundError("No module named 'torch'", name="torch")
    with pytest.raises(LocalEngineError, match=r"'torch': `orchestra doctor` says what to install"):
        await route_over(FakeEngine(starts=[died])).send(chat())

    def open_engine(config: LocalConfig) -> Any:
        raise ModuleNotFoundError("No module named 'gguf'", name="gguf")

    with pytest.raises(LocalEngineError, match=r"'gguf': `orchestra doctor` says what to install"):
        await LocalRoute("small", LocalConfig(weights="w"), open_engine=open_engine).send(chat())


async def test_weights_that_are_not_there_are_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(LocalEngineError, match="does not exist"):
        await LocalRoute("small", LocalConfig(weights=str(tmp_path / "no.gguf"))).send(chat())


@pytest.mark.parametrize("seqs", [1, 2, 16, 1000])
def test_any_number_of_sequences_may_be_configured(seqs: int, tmp_path: Path) -> None:
    weights = tmp_path / "some.gguf"
    weights.touch()
    assert open_engine(LocalConfig(weights=str(weights), max_num_seqs=seqs)).config.max_num_seqs == seqs


async def test_closing_frees_the_engine_and_a_later_call_opens_another() -> None:
    engines = [FakeEngine(), FakeEngine()]
    route = route_over(*engines)
    await route.aclose()
    await route.send(chat())
    await route.aclose()
    await route.aclose()
    assert engines[0].closed
    assert route.snapshot()["state"] == "unused"
    await route.send(chat())
    assert not engines[1].closed
