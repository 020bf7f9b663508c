"""A cap in dollars, whichever way it is set and whoever calls, against a provider that counts what arrives."""

import asyncio
import json
from contextlib import suppress
from dataclasses import replace

import pytest
from dispatch_lab import chat, config_for, running

from orchestra.call import Call
from orchestra.config import load_config, parse_config
from orchestra.errors import BudgetExceeded, ConfigError, PriceUnknown, StreamInterrupted
from orchestra.policies.traffic import TrafficClass
from orchestra.testing import Reply, ScriptedProvider, StreamScript

PRICES = [{"models": ["one-*"], "input": 0.0, "output": 3000.0}]
"""At these, a hundred tokens of output are 0.30 dollars."""
FULL = Reply(
    body={
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 100, "total_tokens": 110},
    }
)


def capped(providers, usd=1.0, prices=PRICES, **sections):
    config = config_for(providers, **sections)
    config["providers"]["one"] |= {"limits": [{"usd_per_day": usd}], "prices": prices}
    return config


def usd(lab):
    return next(pool["dimensions"]["usd_per_day"] for pool in lab.budget.snapshot() if pool["provider"] == "one")


async def test_of_ten_calls_at_once_three_reach_the_provider_and_the_rest_are_told():
    async with ScriptedProvider(default=FULL) as provider, running(capped({"one": provider})) as lab:
        calls = [lab.dispatcher.send(chat(max_tokens=100, queue_bound=30.0)) for _ in range(10)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        refused = [one for one in results if isinstance(one, BudgetExceeded)]
        assert (len(provider.log), len(refused)) == (3, 7)
        assert all(one.expected_wait > 80_000 for one in refused)
        assert usd(lab)["used"] == pytest.approx(0.9)
        settled = [event.usd for event in lab.events if event.kind == "settled"]
        assert settled == [pytest.approx(0.3)] * 3
        assert lab.in_flight() == 0


async def test_refusals_cost_nothing_and_lost_answers_all():
    script = [Reply.error(400, "bad"), Reply(drop=True)]
    async with ScriptedProvider(script, default=FULL) as provider:
        config = capped({"one": provider})
        async with running(config) as lab:
            assert (await lab.dispatcher.send(chat(max_tokens=100))).status == 400
            assert usd(lab)["used"] == 0.0
            await (await lab.dispatcher.send(chat(max_tokens=100))).aclose()
            assert usd(lab)["used"] == pytest.approx(0.6), "one that was lost, and its second attempt"


WAYS = {
    "interactive": lambda: chat(max_tokens=1),
    "bulk": lambda: chat(max_tokens=1, traffic=TrafficClass.BULK),
    "stream": lambda: chat(max_tokens=1, stream=True),
    "embeddings": lambda: Call.originate("/v1/embeddings", {"model": "fast", "input": "hi"}),
    "direct": lambda: chat("one/one-model", max_tokens=1),
    "images": lambda: Call.originate("/v1/images/generations", {"model": "fast", "prompt": "a cat"}),
}


@pytest.mark.parametrize("way", WAYS)
async def test_without_a_price_nothing_is_sent_whoever_calls(way):
    async with ScriptedProvider() as provider, running(capped({"one": provider}, prices=[])) as lab:
        with pytest.raises(PriceUnknown, match=r"\[\[providers.one.prices\]\] with models = \[\"one-model\"\]"):
            await lab.dispatcher.send(WAYS[way]())
        assert not provider.log


async def test_an_endpoint_that_no_price_covers_is_not_called():
    async with ScriptedProvider() as provider, running(capped({"one": provider})) as lab:
        with pytest.raises(PriceUnknown, match="images"):
            await lab.dispatcher.send(WAYS["images"]())
        assert not provider.log


async def test_the_next_route_serves_what_the_first_has_no_price_for():
    async with (
        ScriptedProvider() as one,
        ScriptedProvider() as two,
        running(capped({"one": one, "two": two}, prices=[])) as lab,
    ):
        assert (await lab.dispatcher.send(chat())).route == "two/two-model"
        assert not one.log


@pytest.mark.parametrize("form", ["dict", "file", "first group of two"])
async def test_however_the_cap_is_set_it_holds(form, tmp_path):
    """litellm 26672: a cap that was set by reference was skipped."""
    async with ScriptedProvider(default=FULL) as provider:
        config = capped({"one": provider}, usd=0.5)
        if form == "first group of two":
            config["providers"]["one"]["limits"].append({"requests_per_minute": 1000.0})
        if form == "file":
            path = tmp_path / "orchestra.toml"
            path.write_text(
                f"[providers.one]\nkind = 'openai-compatible'\nbase_url = {json.dumps(provider.base_url)}\n"
                "api_key = 'k'\n[[providers.one.limits]]\nusd_per_day = 0.5\n[[providers.one.prices]]\n"
                "input = 0.0\noutput = 3000.0\n[models.fast]\nroutes = ['one/one-model']\n"
            )
            config = load_config(path).model_dump(exclude_unset=True)
        async with running(config) as lab:
            calls = [lab.dispatcher.send(chat(max_tokens=100, queue_bound=5.0)) for _ in range(4)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert (len(provider.log), sum(isinstance(one, BudgetExceeded) for one in results)) == (1, 3)


@pytest.mark.parametrize("bad", [0, -1, True, "1", float("nan"), float("inf")])
@pytest.mark.parametrize(
    "key",
    [f"{metric}_per_day" for metric in ("requests", "tokens", "input_tokens", "output_tokens", "usd")]
    + ["enqueued_batch_tokens", "max_concurrency", "requests_per_minute"],
)
def test_bad_limits_are_refused_where_they_are_set(key, bad):
    """pydantic-ai 6877: a limit of zero hung for ever."""
    with pytest.raises(ConfigError, match=rf"providers.one.limits\[0\].{key}"):
        parse_config({"providers": {"one": {"kind": "openai", "limits": [{key: bad}]}}})


@pytest.mark.parametrize("bad", [-1, True, "1", float("nan"), float("inf")])
@pytest.mark.parametrize("key", ["input", "cached_input", "output"])
def test_bad_prices_are_refused_where_they_are_set(key, bad):
    price = {"input": 1.0, "output": 1.0, key: bad}
    with pytest.raises(ConfigError, match=rf"providers.one.prices\[0\].{key}"):
        parse_config({"providers": {"one": {"kind": "openai", "prices": [price]}}})


def test_a_price_needs_both_sides_and_a_fixed_window_no_burst():
    with pytest.raises(ConfigError, match=r"prices\[0\].output: is missing"):
        parse_config({"providers": {"one": {"kind": "openai", "prices": [{"input": 1.0}]}}})
    with pytest.raises(ConfigError, match="burst_seconds means nothing"):
        parse_config(
            {"providers": {"one": {"kind": "openai", "limits": [{"window": "fixed", "burst_seconds": 9}]}}}
        )
    with pytest.raises(ConfigError, match="did you mean 'cached_input'"):
        parse_config({"providers": {"one": {"kind": "openai", "prices": [{"cached_inputs": 1.0}]}}})


WORDS = StreamScript(chunks=("word " * 200,) * 20, gap=0.001)
"""About 5,000 tokens of output, of which nothing is known before."""


@pytest.mark.parametrize("ending", ["cut", "dropped", "told nothing", "whole, and told nothing"])
async def test_what_was_seen_of_an_answer_counts_where_its_usage_was_not_told(ending):
    """A call without a bound sets little aside. If that were all that counts, dropped streams would be free."""
    scripts = {"cut": replace(WORDS, drop_after=19), "dropped": WORDS, "told nothing": replace(WORDS, usage=False)}
    message = {"role": "assistant", "content": "word " * 4000}
    whole = {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    reply = Reply(stream=scripts[ending]) if ending in scripts else Reply(body=whole)
    async with (
        ScriptedProvider(default=reply) as provider,
        running(capped({"one": provider}, usd=100.0)) as lab,
    ):
        outcome = await lab.dispatcher.send(chat(stream=ending in scripts))
        size = 0
        with suppress(StreamInterrupted):
            async for chunk in outcome.body:
                size += len(chunk)
                if ending == "dropped" and size > 10_000:
                    break
        await outcome.aclose()
        least = 0.8 * (size / 4) * 3000.0 / 1e6
        assert least > 2.0, "far more than was set aside"
        assert usd(lab)["used"] >= least
        assert lab.in_flight() == 0
