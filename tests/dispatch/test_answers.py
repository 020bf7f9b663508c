"""Answers, streamed and not: usage, breaks, and leases that end however the answer does."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from typing import Any

import pytest
from dispatch_lab import QUICK, Lab, chat, config_for, eventually, running, text_of

from orchestra.call import Outcome, Usage
from orchestra.errors import AllRoutesFailed, StreamInterrupted
from orchestra.observe.events import Event
from orchestra.testing import Limits, Reply, ScriptedProvider, StreamScript


async def test_an_answer_settles_its_lease_by_the_usage_told():
    async with ScriptedProvider() as provider, running(config_for({"one": provider})) as lab:
        outcome = await lab.dispatcher.send(chat())
        assert await text_of(outcome) == "Hello, world."
        assert (outcome.status, outcome.route, outcome.usage.certainty) == (200, "one/one-model", "known")
        assert lab.in_flight() == 0
        assert lab.kinds() == ["queued", "admitted", "sent", "settled"]
        assert provider.log[0].json["model"] == "one-model"
        assert provider.log[0].path == "/v1/chat/completions"


async def test_a_stream_asks_for_usage_strips_it_and_settles():
    async with ScriptedProvider() as provider, running(config_for({"one": provider})) as lab:
        outcome = await lab.dispatcher.send(chat(stream=True))
        body = await outcome.read()
        assert provider.log[0].json["stream_options"] == {"include_usage": True}
        assert b'"choices":[]' not in body
        assert body.endswith(b"data: [DONE]\n\n")
        assert outcome.usage.certainty == "known"
        assert lab.in_flight() == 0


async def test_a_stream_without_usage_keeps_what_was_reserved():
    stream = StreamScript(usage=False)
    async with (
        ScriptedProvider(default=Reply(stream=stream)) as provider,
        running(config_for({"one": provider})) as lab,
    ):
        outcome = await lab.dispatcher.send(chat(stream=True))
        assert await text_of(outcome) == "Hello, world."
        assert outcome.usage == Usage()
        assert lab.in_flight() == 0


async def test_a_stream_that_drops_before_its_first_content_is_tried_again_unseen():
    dropped = Reply(stream=StreamScript(drop_after=0))
    async with ScriptedProvider([dropped]) as provider, running(config_for({"one": provider})) as lab:
        body = await (await lab.dispatcher.send(chat(stream=True))).read()
        assert len(provider.log) == 2
        assert body.count(b'"role":"assistant"') == 1  # nothing of the first try
        assert lab.in_flight() == 0


async def test_an_error_event_before_content_is_a_fault_like_any():
    busy = Reply(stream=StreamScript(error_after=0, error={"message": "full", "code": 503}))
    async with ScriptedProvider([busy]) as provider, running(config_for({"one": provider})) as lab:
        assert await text_of(await lab.dispatcher.send(chat(stream=True))) == "Hello, world."
        assert len(provider.log) == 2


@pytest.mark.parametrize("how", [{"drop_after": 3}, {"finished": False, "done": False}])
async def test_a_stream_that_breaks_after_content_raises_and_is_not_tried_again(how: dict[str, Any]):
    broken = Reply(stream=StreamScript(**how))
    async with (
        ScriptedProvider(default=broken) as provider,
        ScriptedProvider() as other,
        running(config_for({"one": provider, "two": other})) as lab,
    ):
        outcome = await lab.dispatcher.send(chat(stream=True))
        seen = b""
        with pytest.raises(StreamInterrupted):  # noqa: PT012
            async for chunk in outcome.body:
                seen += chunk
        assert seen.count(b'"content":"') >= 3
        assert (len(provider.log), len(other.log)) == (1, 0)
        assert lab.in_flight() == 0
        assert [chunk async for chunk in outcome.body] == []


async def test_a_stream_that_says_why_it_finished_is_whole_without_a_last_line():
    """``transformers serve`` sends no ``[DONE]``."""
    brief = Reply(stream=StreamScript(done=False))
    async with ScriptedProvider(default=brief) as provider, running(config_for({"one": provider})) as lab:
        assert await text_of(await lab.dispatcher.send(chat(stream=True))) == "Hello, world."
        assert lab.in_flight() == 0
        assert "settled" in lab.kinds()
        outcome = await lab.dispatcher.send(chat(stream=True, n=2))
        with pytest.raises(StreamInterrupted):  # the second answer is missing
            await outcome.read()


async def test_an_error_event_after_content_is_handed_on():
    broken = Reply(stream=StreamScript(error_after=2))
    async with ScriptedProvider(default=broken) as provider, running(config_for({"one": provider})) as lab:
        body = await (await lab.dispatcher.send(chat(stream=True))).read()
        assert b'"error"' in body
        assert (len(provider.log), lab.in_flight()) == (1, 0)
        assert "interrupted" in lab.kinds()


@pytest.mark.parametrize("end", ["close", "cancel", "drop", "exhaust"])
async def test_however_a_stream_ends_its_lease_does(end: str):
    slow = Reply(stream=StreamScript(chunks=["x"] * 5, gap=0.02 if end == "exhaust" else 30))
    async with ScriptedProvider(default=slow) as provider, running(config_for({"one": provider})) as lab:
        outcome = await lab.dispatcher.send(chat(stream=True))
        await anext(outcome.body)
        assert lab.in_flight() == 1
        if end == "close":
            await outcome.aclose()
            await outcome.aclose()
        elif end == "cancel":
            reading = asyncio.ensure_future(anext(outcome.body))
            await asyncio.sleep(0.02)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        elif end == "drop":
            del outcome
            gc.collect()
        else:
            async for _ in outcome.body:
                pass
        await eventually(lambda: lab.in_flight() == 0 and provider.in_flight == 0)


async def test_a_stream_that_was_never_read_gives_its_lease_back_when_dropped():
    slow = Reply(stream=StreamScript(gap=30))
    async with ScriptedProvider(default=slow) as provider, running(config_for({"one": provider})) as lab:
        await lab.dispatcher.send(chat(stream=True))
        gc.collect()
        await eventually(lambda: lab.in_flight() == 0 and provider.in_flight == 0)


async def test_cancelling_at_random_instants_leaves_nothing_behind():
    slow = Reply(stream=StreamScript(chunks=["x"] * 5, gap=0.002))
    config = config_for({"one": "http://x"})
    async with ScriptedProvider(default=slow, service_time=0.01) as provider:
        config["providers"]["one"] |= {"base_url": provider.base_url, "limits": [{"max_concurrency": 20}]}
        async with running(config) as lab:

            async def read(index: int) -> None:
                outcome = await lab.dispatcher.send(chat(stream=index % 2 == 0))
                await outcome.read()

            tasks = [asyncio.create_task(read(index)) for index in range(150)]
            for index, task in enumerate(tasks):
                if index % 3:
                    await asyncio.sleep(0.0007 * (index % 5))
                    task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(one) for one in done} <= {type(None), asyncio.CancelledError}
            assert sum(one is None for one in done) >= 50
            await eventually(lambda: lab.in_flight() == 0 and provider.in_flight == 0)
            assert provider.peak <= 20


def test_one_dispatcher_serves_several_loops_one_after_another():
    with ScriptedProvider(limits=Limits(requests_per_minute=6000)) as provider:
        config = config_for({"one": provider})
        lab: Lab | None = None

        async def once() -> None:
            nonlocal lab
            if lab is None:
                manager = running(config, retry=QUICK)
                lab = await manager.__aenter__()
                kept.append(manager)
            for stream in (False, True):
                outcomes = await asyncio.gather(*(lab.dispatcher.send(chat(stream=stream)) for _ in range(5)))
                assert [await text_of(one) for one in outcomes] == ["Hello, world."] * 5

        kept: list[Any] = []
        for _ in range(3):
            asyncio.run(once())
        assert lab is not None
        assert len(provider.log) == 30
        assert lab.in_flight() == 0
        assert lab.wire._wire._sessions._pools == {}, "each loop closed its own"
        gc.collect()


LIMITED = {"tokens_per_minute": 1000, "requests_per_minute": 100, "max_concurrency": 2}


def limited(provider: ScriptedProvider) -> dict[str, Any]:
    config = config_for({"one": provider})
    config["providers"]["one"]["limits"] = [LIMITED]
    return config


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens", "n"])
async def test_an_absurd_number_in_a_request_holds_up_nobody(field: str):
    async with ScriptedProvider() as provider, running(limited(provider)) as lab:
        calls = [chat(), chat(**{field: 10**400}), chat()]
        outcomes = await asyncio.wait_for(asyncio.gather(*map(lab.dispatcher.send, calls)), 30)
        assert [outcome.status for outcome in outcomes] == [200] * 3
        assert lab.in_flight() == 0


@pytest.mark.parametrize("counts", [(10**400, 1), (-(10**9), -1), (True, "9"), (1.5, None), ([], {})])
async def test_an_absurd_usage_is_not_believed(counts: tuple[Any, Any]):
    usage = dict(zip(("prompt_tokens", "completion_tokens"), counts, strict=True))
    answer = Reply(body={"choices": [], "usage": usage})
    async with ScriptedProvider(default=answer) as provider, running(limited(provider)) as lab:
        assert (await lab.dispatcher.send(chat())).status == 200
        (pool,) = lab.budget.snapshot()
        assert lab.in_flight() == 0
        assert 0 <= pool["spent"]["tokens"] <= 1000


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    ("reply", "stream"),
    [
        (Reply(body=DEEP), False),
        (Reply(body=b"data: " + DEEP + b"\n\n"), True),
        (Reply(body=b'data: {"error": "full"}\n\n'), True),
        (Reply(500, body=DEEP), False),
    ],
)
async def test_an_answer_made_to_hurt_is_a_fault_like_any(reply: Reply, stream: bool):
    async with ScriptedProvider([reply]) as provider, running(config_for({"one": provider})) as lab:
        assert await text_of(await lab.dispatcher.send(chat(stream=stream))) == "Hello, world."
        assert (len(provider.log), lab.in_flight()) == (2, 0)


async def test_a_success_that_says_error_is_told_in_its_words():
    answer = Reply(body={"error": {"message": "the model is asleep"}})
    async with ScriptedProvider(default=answer) as provider, running(config_for({"one": provider})) as lab:
        with pytest.raises(AllRoutesFailed, match="the model is asleep"):
            await lab.dispatcher.send(chat())


async def test_the_last_event_of_a_stream_may_have_a_space_behind_it():
    chunk = {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None}]}
    body = f"data: {json.dumps(chunk)}\n\ndata: [DONE] \n\n"
    reply = Reply(body=body, headers={"content-type": "text/event-stream"})
    async with ScriptedProvider([reply]) as provider, running(config_for({"one": provider})) as lab:
        assert await text_of(await lab.dispatcher.send(chat(stream=True))) == "hi"
        assert lab.in_flight() == 0


@pytest.mark.parametrize("loop", ["closed", "idle", "running"])
def test_a_dropped_stream_is_settled_at_once_and_told_outside_of_the_garbage_collector(loop: str):
    """As inside a scrape, which holds the locks that a subscriber takes."""
    provider = ScriptedProvider(default=Reply(stream=StreamScript(gap=30)))
    lock, told, heard = threading.Lock(), threading.Event(), list[str]()

    def hear(event: Event) -> None:
        assert lock.acquire(
            timeout=5
        )  # not reentrant: who holds it, and is told in the same thread, never gets it
        heard.append(event.kind)
        lock.release()
        if event.reason == "dropped":
            told.set()

    async def one_call() -> tuple[Lab, list[Outcome]]:
        async with running(config_for({"one": provider})) as lab:
            stop = lab.dispatcher._attempts._events.subscribe(hear)
            held = [await lab.dispatcher.send(chat(stream=True))]
            if loop == "running":
                drop(lab, held)
                await eventually(told.is_set)
                stop()
            return lab, held

    def drop(lab: Lab, held: list[Outcome]) -> None:
        assert lab.in_flight() == 1
        with lock:
            held.clear()
            gc.collect()
            assert lab.in_flight() == 0
            assert "interrupted" not in heard

    with provider:
        with asyncio.Runner() as runner:
            lab, held = runner.run(one_call())
            if loop == "idle":
                drop(lab, held)
                assert told.wait(20), "though the loop may never run again"
        if loop == "closed":
            drop(lab, held)
            assert told.wait(20)
    assert heard.count("interrupted") == 1
