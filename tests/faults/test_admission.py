"""Budgets that did not hold, or held back too much. Each test names where the fault was reported."""

from __future__ import annotations

import asyncio
import base64
import math
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from faults_lab import (
    MESSAGES,
    SURFACES,
    Front,
    answer,
    assert_paced,
    fronted,
    opened,
    said,
    sdk_over,
    settings,
    until,
)
from holding_provider import HoldingProvider

from orchestra import ConfigError, Orchestra, bulk
from orchestra.testing import Limits, Reply, ScriptedProvider


async def test_a_burst_is_charged_before_it_is_sent():
    """BerriAI/litellm#5783: calls started together all pass the check of the tokens a minute."""
    async with (
        ScriptedProvider() as provider,
        fronted(provider, kind="openai", tokens_per_minute=360_000, burst_seconds=1 / 6) as front,
    ):
        await front.ask()  # an SDK's first call takes its time, which would hide what comes too early
        start = time.monotonic()
        await asyncio.gather(*(front.ask(max_tokens=200) for _ in range(20)))
        assert len(provider.log) == 21
        assert_paced(provider.log[1:], start, burst=5, per_second=30)


async def test_what_calls_will_use_is_reserved_and_what_they_used_counts():
    """BerriAI/litellm#18730: usage lands after the call, so parallel calls overrun the limit."""
    async with (
        HoldingProvider([answer(890, 10)]) as provider,
        fronted(provider, tokens_per_minute=1000) as front,
    ):
        gate = provider.hold()
        first = asyncio.create_task(front.ask(max_tokens=600))
        await until(lambda: provider.in_flight == 1)
        await front.refuse(max_tokens=600)  # they do not both fit
        gate.set()
        await first
        await front.refuse(max_tokens=300)  # it would fit beside the estimate, not beside the usage
        await front.ask(max_tokens=50)
        assert front.pool()["dimensions"]["tokens"]["reserved"] == 0


async def test_of_parallel_calls_only_those_go_whose_estimates_fit_together():
    """BerriAI/litellm#18730: five parallel calls use six times the token limit, and all succeed."""
    async with (
        HoldingProvider(default=answer(890, 10)) as provider,
        fronted(provider, tokens_per_minute=1000) as front,
    ):
        gate = provider.hold()
        calls = [asyncio.create_task(front.ask(max_tokens=600)) for _ in range(5)]
        await until(lambda: provider.in_flight == 1 and front.waiting() == 4)
        gate.set()
        done, others = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert [call.result().usage.total_tokens for call in done] == [900]
        assert (len(provider.log), front.waiting()) == (1, 4), "what it used leaves room for none of them"
        for call in others:
            call.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        assert front.in_flight() == front.waiting() == 0


async def test_a_job_meets_the_gate_that_single_calls_meet(tmp_path: Path):
    """vitalops/datatune#49: a helper that fans one list out ignores the account's limit."""
    async with (
        ScriptedProvider() as provider,
        fronted(provider, store=tmp_path, requests_per_minute=2400, burst_seconds=0.125) as front,
    ):
        start = time.monotonic()
        await asyncio.gather(SURFACES["submit()"](front, 15), SURFACES["sdk in a bulk block"](front, 15))
        assert len(provider.log) == 30
        assert_paced(provider.log, start, burst=5, per_second=40)


async def test_a_call_larger_than_the_bucket_goes_into_debt():
    """shobrook/openlimit#8: a bucket smaller than one prompt makes that prompt wait for ever."""
    async with (
        ScriptedProvider() as provider,
        fronted(provider, kind="openai", tokens_per_minute=240_000, burst_seconds=0.025) as front,
    ):
        start = time.monotonic()
        async with asyncio.timeout(30):
            for _ in range(3):
                await front.ask(max_tokens=800)  # the bucket holds a hundred
        _, second, third = (hit.at - start for hit in provider.log)
        assert second >= 800 / 4000 - 0.002
        assert third >= 1600 / 4000 - 0.002


async def test_several_answers_to_one_prompt_are_charged_as_such():
    """openai/openai-python#605: n > 1 multiplies what the provider counts."""
    async with (
        HoldingProvider() as provider,
        fronted(provider, output_tokens_per_minute=600) as front,
    ):
        gate = provider.hold()
        first = asyncio.create_task(front.ask(n=5, max_tokens=100))
        await until(lambda: provider.in_flight == 1)
        assert front.pool()["dimensions"]["output_tokens"]["reserved"] >= 500
        await front.refuse(max_tokens=150)
        gate.set()
        await first


async def test_what_a_provider_takes_by_the_bound_and_gives_back_is_used_again():
    """bespokelabsai/curator#386: output is charged by max_tokens at first, and corrected at the end.

    A client that reserves the average is refused; one that never takes back has a fifth of the limit.
    """
    limits = Limits(tokens_per_minute=12_000, burst_seconds=2.5, charge="usage", headers="none")
    async with (
        ScriptedProvider(limits=limits, text="x" * 40, tokens_per_character=0.2) as provider,
        fronted(provider, tokens_per_minute=12_000, burst_seconds=1.25) as front,
    ):
        start = time.monotonic()
        await asyncio.gather(*(front.ask("y" * 20, max_tokens=100) for _ in range(30)))
        elapsed = time.monotonic() - start
        assert {hit.status for hit in provider.log} == {200}
        by_the_bound = (30 * 110 - 250) / 200  # 15 s, of which the machine's share is small
        assert elapsed < by_the_bound / 2


PICTURE = "data:image/png;base64," + base64.b64encode(bytes(375_000)).decode()
SHAPES: dict[str, dict[str, Any]] = {
    "chat": {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]}],
    },
    "responses": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": PICTURE}]}]},
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_picture_is_not_counted_by_its_length(shape: str):
    """BerriAI/litellm#32865: a base64 image counted as text is refused by the client's own limiter."""
    reply = answer() if shape == "chat" else Reply(body={"id": "r", "object": "response", "output": []})
    async with (
        ScriptedProvider([reply]) as provider,
        fronted(provider, kind="openai", tokens_per_minute=6000) as front,
    ):
        if shape == "chat":
            await front.sdk.chat.completions.create(model="fast", max_tokens=100, **SHAPES[shape])
        else:
            await front.sdk.responses.create(model="fast", max_output_tokens=100, **SHAPES[shape])
        assert len(provider.log[0].body) > 500_000
        assert 0 < front.pool()["spent"]["tokens"] < 5000
        assert front.pool()["dimensions"]["tokens"]["available"] > 1000, "it is no debt either"


@pytest.mark.parametrize("kind", ["openai", "openai-compatible"])
@pytest.mark.parametrize("limit", ["tokens_per_minute", "input_tokens_per_minute"])
async def test_the_prompt_counts(kind: str, limit: str):
    """BerriAI/litellm#17664: only output tokens are counted."""
    async with (
        HoldingProvider() as provider,
        fronted(provider, kind=kind, **{limit: 12_000}) as front,
    ):
        gate = provider.hold()
        first = asyncio.create_task(front.ask("word" * 10_000, max_tokens=1))
        await until(lambda: provider.in_flight == 1)
        await front.refuse("word" * 10_000, max_tokens=1)
        gate.set()
        await first
        await front.refuse("word" * 10_000, max_tokens=1)
        await front.ask("word" * 100, max_tokens=1)


@pytest.mark.parametrize("source", ["dict", "file", "shared"])
async def test_a_limit_holds_whatever_it_is_read_from(source: str, tmp_path: Path):
    """BerriAI/litellm#26672: a cap that is set by reference is skipped."""
    async with ScriptedProvider() as provider:
        config = settings(provider, requests_per_minute=2)
        if source == "shared":
            config["budget"] = {"backend": f"sqlite:{tmp_path / 'budget.db'}"}
        if source == "file":
            file = tmp_path / "orchestra.toml"
            file.write_text(
                f'[providers.one]\nkind = "openai-compatible"\nbase_url = "{provider.base_url}"\n'
                "[[providers.one.limits]]\nrequests_per_minute = 2\n"
                '[models.fast]\nroutes = ["one/m"]\n[traffic]\ninteractive_reserve = 0.0\n'
            )
            orc = Orchestra.from_file(file)
        else:
            orc = opened(config)
        async with orc, sdk_over(orc) as sdk:
            front = Front(orc, sdk, provider)
            await front.ask()
            await front.ask()
            await front.refuse()


async def test_an_account_has_one_limit_whatever_it_is_called_by():
    """BerriAI/litellm#26672, its kin: a name, a route and the provider's own address are one account."""
    async with (
        ScriptedProvider() as provider,
        fronted(provider, requests_per_minute=1, burst_seconds=240) as front,
    ):
        pointed = sdk_over(front.orc, base_url=provider.base_url)
        await front.ask()
        await front.ask(model="one/m")
        await front.orc.chat("one/another", MESSAGES)
        await pointed.chat.completions.create(model="m", messages=MESSAGES)
        for model in ("fast", "one/m", "one/another"):
            await front.refuse(model=model)
        await Front(front.orc, pointed, provider).refuse(model="m")
        assert len(provider.log) == 4
        await pointed.close()


@pytest.mark.parametrize("surface", SURFACES)
async def test_every_surface_keeps_the_limit_of_calls_at_once(surface: str, tmp_path: Path):
    """langchain-ai/langchain#29425: the as-completed variant ignores the limit that the other honours."""
    async with (
        HoldingProvider() as provider,
        fronted(provider, store=tmp_path, max_concurrency=2) as front,
    ):
        gate = provider.hold(2)
        calls = asyncio.ensure_future(SURFACES[surface](front, 6))
        await until(lambda: provider.in_flight == 2)
        gate.set()
        await calls
        assert (len(provider.log), provider.peak) == (6, 2)
        assert front.in_flight() == front.waiting() == 0


async def test_all_surfaces_together_keep_one_limit(tmp_path: Path):
    """pydantic/pydantic-ai#8240: a side call bypasses the limiter."""
    async with (
        ScriptedProvider(service_time=0.005) as provider,
        fronted(provider, store=tmp_path, max_concurrency=1) as front,
    ):
        await asyncio.gather(*(surface(front, 3) for surface in SURFACES.values()))
        assert len({hit.path for hit in provider.log}) == 2
        assert (len(provider.log), provider.peak) == (3 * len(SURFACES), 1)


LIMITS = [
    "requests_per_minute",
    "tokens_per_minute",
    "input_tokens_per_minute",
    "output_tokens_per_minute",
    "max_concurrency",
    "burst_seconds",
]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("value", [0, -1, 0.0, math.nan, math.inf, True, False, "10", [1], -math.inf])
def test_a_limit_that_is_none_is_refused_when_it_is_set(limit: str, value: Any):
    """pydantic/pydantic-ai#6877: a concurrency of zero hangs for ever."""
    with pytest.raises(ConfigError, match=rf"providers\.one\.limits\[0\]\.{limit}: must be"):
        Orchestra.from_config(settings("http://127.0.0.1:9/v1", **{limit: value}))


@pytest.mark.parametrize("surface", SURFACES)
async def test_waiting_for_admission_never_blocks_the_loop(surface: str, tmp_path: Path):
    """run-llama/llama_index#21603, langchain-ai/langchain PR 26914: a blocking acquire freezes the event loop."""
    with HoldingProvider() as provider:
        async with fronted(provider, store=tmp_path, max_concurrency=1) as front:
            gate = provider.hold()
            first = asyncio.create_task(front.ask())
            await until(lambda: provider.in_flight == 1)
            other = asyncio.create_task(SURFACES[surface](front, 3))  # type: ignore[arg-type]
            await until(lambda: front.waiting() >= 1)
            for _ in range(10):  # a loop that is blocked for the wait never comes to its end
                await asyncio.sleep(0.005)
            assert (len(provider.log), first.done()) == (1, False)
            gate.set()
            await first
            await other
            assert len(provider.log) == 4


async def test_at_the_limit_calls_wait_their_turn_and_none_is_dropped():
    """trailofbits/buttercup#4: at the limit requests are dropped instead of waiting."""
    async with (
        HoldingProvider() as provider,
        fronted(provider, requests_per_minute=6000, burst_seconds=0.01, max_concurrency=1) as front,
    ):

        async def call(kind: str) -> None:
            if kind == "bulk":
                with bulk():
                    await front.ask(kind)
            else:
                await front.ask(kind)

        gate = provider.hold()
        calls = [asyncio.create_task(call("first"))]
        await until(lambda: provider.in_flight == 1)
        calls += [asyncio.create_task(call(kind)) for kind in ["bulk"] * 15 + ["person"] * 15]
        await until(lambda: front.waiting() == 30)
        gate.set()
        await asyncio.gather(*calls)
        assert [said(hit) for hit in provider.log] == ["first"] + ["person"] * 15 + ["bulk"] * 15
        assert {hit.status for hit in provider.log} == {200}


async def test_the_overflow_of_a_bounded_queue_fails_at_once_and_says_so():
    """trailofbits/buttercup#4: a queue with a bound, and a typed error for those beyond it."""
    async with (
        HoldingProvider() as provider,
        fronted(provider, sdk={"max_retries": 5}, traffic={"max_waiting": 5}, max_concurrency=1) as front,
    ):
        gate = provider.hold()
        tasks = [asyncio.create_task(front.ask()) for _ in range(10)]
        await until(lambda: sum(task.done() for task in tasks) >= 4)
        assert len(provider.log) <= 1
        gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        assert all(isinstance(one, openai.RateLimitError) and one.code == "orchestra_queue_full" for one in errors)
        assert (len(errors), len(provider.log)) == (4, 6)
