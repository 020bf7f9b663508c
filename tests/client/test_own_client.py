"""`Orchestra.embed` and `Orchestra.map`."""

import itertools
import json

import pytest

import orchestra
from orchestra.testing import Reply, ScriptedProvider


def settings(provider, tmp_path):
    return {
        "providers": {"acme": {"kind": "openai", "base_url": provider.base_url, "api_key": "sk-secret-1234"}},
        "models": {"fast": {"routes": ["acme/gpt"]}, "emb": {"routes": ["acme/embedder"]}},
        "bulk": {"store": str(tmp_path / "jobs.db")},
    }


async def test_embeddings_come_in_the_order_of_the_texts(tmp_path):
    shuffled = {
        "object": "list",
        "model": "embedder",
        "data": [
            {"object": "embedding", "index": 1, "embedding": [0.0, 1]},
            {"object": "embedding", "index": 0, "embedding": [1, 0.0]},
        ],
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }
    async with (
        ScriptedProvider([Reply(body=shuffled)]) as provider,
        orchestra.Orchestra.from_config(settings(provider, tmp_path)) as orc,
    ):
        assert await orc.embed("emb", ["a", "b"], dimensions=2) == [[1.0, 0.0], [0.0, 1.0]]
        (hit,) = provider.log
        assert hit.path == "/v1/embeddings"
        asked = json.loads(hit.body)
        assert (asked["model"], asked["input"], asked["dimensions"]) == ("embedder", ["a", "b"], 2)


@pytest.mark.parametrize("texts", ["a", [], ["a", ""], ["a", 7], {"a"}])
async def test_what_are_no_texts_is_refused_before_anything_is_sent(texts, tmp_path):
    async with (
        ScriptedProvider() as provider,
        orchestra.Orchestra.from_config(settings(provider, tmp_path)) as orc,
    ):
        with pytest.raises(orchestra.InputError, match="texts"):
            await orc.embed("emb", texts)
        assert not provider.log


@pytest.mark.parametrize("data", [None, [], [{"index": 0}], [{"index": 1, "embedding": [1.0]}]])
async def test_an_answer_without_all_embeddings_is_an_error(data, tmp_path):
    body = {"object": "list", "data": data, "model": "e", "usage": {"prompt_tokens": 1, "total_tokens": 1}}
    replies = [Reply(body=body) for _ in range(20)]
    async with (
        ScriptedProvider(replies) as provider,
        orchestra.Orchestra.from_config(settings(provider, tmp_path)) as orc,
    ):
        with pytest.raises(orchestra.CallError), orchestra.interactive(timeout=3):
            await orc.embed("emb", ["a"])


async def test_map_yields_in_the_order_of_the_requests_a_bad_one_as_a_failed_result(tmp_path):
    slow = [Reply(delay=0.3), *(Reply() for _ in range(8))]
    requests = [{"prompt": f"number {n}"} if n != 4 else {"neither": "nor"} for n in range(9)]
    async with (
        ScriptedProvider(slow) as provider,
        orchestra.Orchestra.from_config(settings(provider, tmp_path)) as orc,
    ):
        results = [result async for result in orc.map("fast", requests, job="some")]
        assert [result.number for result in results] == [*range(1, 10)]
        assert [result.number for result in results if not result.ok] == [5]
        asked = len(provider.log)
        again = [result.number async for result in orc.map("fast", requests, job="some")]
        assert again == [*range(1, 10)]
        assert len(provider.log) == asked


async def test_map_takes_the_path_of_a_file(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f'{{"custom_id": "c{n}", "prompt": "{n}"}}\n' for n in range(9)))
    slow = [Reply(delay=0.3), *(Reply() for _ in range(8))]
    async with (
        ScriptedProvider(slow) as provider,
        orchestra.Orchestra.from_config(settings(provider, tmp_path)) as orc,
    ):
        for requests in (str(path), path):
            results = [result async for result in orc.map("fast", requests, job="file")]
            assert [result.custom_id for result in results] == [f"c{n}" for n in range(9)]
        assert len(provider.log) == 9
        path.write_text("{broken\n")
        with pytest.raises(orchestra.InputError):
            await anext(orc.map("fast", path))


async def test_failed_lines_are_asked_again_by_submit(tmp_path):
    bad = [Reply.error(400, "bad_thing", message="no")] * 2
    async with (
        ScriptedProvider(bad) as provider,
        orchestra.Orchestra.from_config(settings(provider, tmp_path)) as orc,
    ):
        requests = [{"prompt": "a"}, {"prompt": "b"}]
        job = await orc.submit(requests, model="fast", job="j")
        assert (await job.wait()).failed == 2
        job = await orc.submit(requests, model="fast", job="j", retry_failed=True)
        assert (await job.wait()).done == 2
        assert len(provider.log) == 4


async def test_map_takes_an_endless_source_and_asks_it_for_a_bounded_number(tmp_path):
    asked = 0

    async def endless():
        nonlocal asked
        for number in itertools.count():
            asked = number + 1
            yield {"prompt": f"number {number}"}

    async with (
        ScriptedProvider() as provider,
        orchestra.Orchestra.from_config(settings(provider, tmp_path)) as orc,
    ):
        seen = 0
        async for result in orc.map("fast", endless(), job="endless"):
            seen += 1
            assert result.number == seen
            if seen == 20:
                break
        assert asked <= 1_000 + 20 + 1
        assert orc.jobs.get("endless").progress().pending
