"""A batch whose creation nobody lived to record is found again, and never another in its place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from aiolimiter import AsyncLimiter
from batch_client_lab import BatchClientLab, batch_client_lab, order_for, ready_client, sample

from orchestra.batches import BatchUnclear
from orchestra.errors import ConnectionFailed
from orchestra.providers.batches import BatchState
from orchestra.testing import BatchScript, Reply

BOTH = pytest.mark.parametrize("kind", ["openai", "anthropic"])


def is_ours(custom_id: str) -> bool:
    return custom_id.startswith("ours")


async def find(lab: BatchClientLab, key: str = "key-1", **options: Any) -> BatchState | None:
    since = options.pop("since", 0.0)
    return await lab.client.find(
        order_for(lab.kind, key), since=since, **{"is_ours": is_ours, "total": 3, **options}
    )


@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini", "mistral"])
async def test_a_creation_whose_answer_was_lost(kind: str) -> None:
    async with batch_client_lab(kind, batch_script=[BatchScript(on_create=Reply(drop=True))]) as lab:
        with pytest.raises(ConnectionFailed) as caught:
            await lab.submit(prefix="ours")
        assert caught.value.sent
        await lab.submit(order_for(kind, "key-2"), prefix="theirs")
        found = await find(lab)
        assert found is not None
        assert found.key == "key-1"
        assert found.ended
        assert await find(lab, "key-3", claimed={found.id}) is None


@BOTH
async def test_a_creation_that_never_came_to_pass(kind: str) -> None:
    async with batch_client_lab(kind) as lab:
        assert await find(lab) is None
        await lab.submit(order_for(kind, "key-2"), prefix="theirs")
        assert await find(lab) is None


async def test_pages_are_turned_only_as_far_as_it_can_be() -> None:
    async with batch_client_lab("openai") as lab:
        created = []
        for number in range(250):
            lab.clock.now += 60.0
            created.append((await lab.submit(order_for("openai", f"key-{number}"), count=1)).created or 0.0)
        lab.provider.log.clear()
        assert await find(lab, "none", since=created[240]) is None
        assert len(lab.provider.log) == 2  # the second begins with what is older than it can be
        found = await find(lab, "key-3", since=created[0])
        assert found is not None
        assert len(lab.provider.log) == 5


async def test_by_its_file_where_the_key_is_not_told() -> None:
    job = {**sample("openai_batch_object"), "metadata": None}
    page = {**sample("openai_batch_list"), "data": [job]}
    client, _ = ready_client("openai", {"GET /batches?limit=100": [page]})
    order = order_for("openai")
    found = await client.find(order, since=0.0, is_ours=is_ours, file_id="file-InSample1")
    assert found is not None
    assert (found.id, found.key) == ("batch_6b1f0sample", "key-1")
    assert await client.find(order, since=0.0, is_ours=is_ours, file_id="file-other") is None
    assert await client.find(order, since=0.0, is_ours=is_ours) is None


# where only the custom ids of its lines can tell


async def test_the_only_one_under_way_is_taken_for_it() -> None:
    async with batch_client_lab("anthropic", batch_default=BatchScript(running=100.0)) as lab:
        created = await lab.submit(prefix="ours")
        await lab.submit(count=2, prefix="theirs")
        found = await find(lab)
        assert found is not None
        assert (found.id, found.key, found.ended) == (created.id, None, False)
        lab.clock.now += 101
        found = await find(lab)
        assert found is not None
        assert (found.id, found.key) == (created.id, "key-1")


async def test_several_under_way_cannot_be_told_apart_until_they_end() -> None:
    async with batch_client_lab("anthropic", batch_default=BatchScript(running=100.0)) as lab:
        theirs = await lab.submit(prefix="theirs")
        ours = await lab.submit(prefix="ours")
        with pytest.raises(BatchUnclear) as caught:
            await find(lab)
        assert set(caught.value.ids) == {ours.id, theirs.id}
        assert caught.value.retry_after > 0
        found = await find(lab, claimed={theirs.id})
        assert found is not None
        assert (found.id, found.key) == (ours.id, None)
        lab.clock.now += 101
        found = await find(lab)
        assert found is not None
        assert (found.id, found.key) == (ours.id, "key-1")


async def test_one_that_has_ended_is_known_by_its_results() -> None:
    async with batch_client_lab("anthropic", batch_default=BatchScript(shuffle=1)) as lab:
        for number in range(3):
            await lab.submit(prefix=f"theirs{number}")
        ours = await lab.submit(prefix="ours")
        found = await find(lab)
        assert found is not None
        assert (found.id, found.key) == (ours.id, "key-1")
        assert await find(lab, claimed={ours.id}) is None
        assert await find(lab, total=4) is None


async def test_results_that_are_kept_no_longer_belong_to_nobody() -> None:
    routes = {"GET /v1/messages/batches/*/results": [Reply.anthropic_error(404, "not_found_error")]}
    async with batch_client_lab("anthropic", routes=routes) as lab:
        await lab.submit(prefix="ours")
        assert await find(lab) is None
        assert await find(lab) is not None


@pytest.mark.parametrize("kind", ["mistral", "together", "gemini"])
async def test_other_providers_find_theirs(kind: str) -> None:
    order = replace(order_for(kind), key="ours")
    answers: dict[str, Any] = {
        "mistral": {
            "data": [
                {**sample("mistral_batch_job"), "id": "b1", "metadata": {"orchestra_batch": "ours"}},
                {**sample("mistral_batch_job"), "id": "b2"},
            ],
            "total": 2,
        },
        "together": [
            {**sample("together_batch_object"), "id": "b2", "input_file_id": "f2"},
            {**sample("together_batch_object"), "id": "b1", "input_file_id": "f1"},
        ],
        "gemini": {
            "operations": [
                {"name": "b1", "metadata": {"displayName": "ours", "state": "BATCH_STATE_RUNNING"}},
                sample("gemini_batch_operation_pending"),
            ]
        },
    }
    places = {
        "mistral": "GET /v1/batch/jobs?page=0&page_size=100&order_by=-created",
        "together": "GET /v1/batches",
        "gemini": "GET /v1beta/batches?pageSize=20",
    }
    client, _ = ready_client(kind, {places[kind]: [answers[kind]]})
    found = await client.find(order, since=0.0, is_ours=is_ours, file_id="f1")
    assert found is not None
    assert (found.id, found.key) == ("b1", "ours")
    nothing = replace(order, key="nobody")
    assert await client.find(nothing, since=0.0, is_ours=is_ours, file_id="f3") is None


async def test_a_list_in_another_order_is_read_on() -> None:
    def page(*created: int, token: str | None) -> dict[str, Any]:
        stamps = [f"2026-11-{day:02}T00:00:00Z" for day in created]
        told = [
            {"name": f"batches/b{day}", "metadata": {"displayName": f"k{day}", "createTime": stamp}}
            for day, stamp in zip(created, stamps, strict=True)
        ]
        return {"operations": told, "nextPageToken": token}

    answers = {
        "GET /v1beta/batches?pageSize=20": [page(1, 29, token="two")],
        "GET /v1beta/batches?pageSize=20&pageToken=two": [page(28, token="three")],
        "GET /v1beta/batches?pageSize=20&pageToken=three": [page(2, 3, token="four")],
    }
    client, wire = ready_client("gemini", answers)
    since = 1795824000.0  # the 28th
    found = await client.find(order_for("gemini", "k28"), since=since, is_ours=is_ours)
    assert found is not None
    assert await client.find(order_for("gemini", "none"), since=since, is_ours=is_ours) is None
    assert len(wire.log) == 2 + 3


async def test_too_many_to_look_through_is_not_that_there_is_none() -> None:
    page = {**sample("openai_batch_list"), "has_more": True, "last_id": "b"}
    client, wire = ready_client(
        "openai", {"GET /batches?limit=100": [page], "GET /batches?limit=100&after=b": [page]}
    )
    client._looks = AsyncLimiter(10_000, 1.0)
    with pytest.raises(BatchUnclear):
        await client.find(order_for("openai", "none"), since=0.0, is_ours=is_ours)
    assert len(wire.log) == 500


async def test_one_that_was_created_later_than_ours_can_be_is_none() -> None:
    async with batch_client_lab("anthropic", batch_default=BatchScript(running=100.0)) as lab:
        created = (await lab.submit(prefix="theirs")).created or 0.0
        assert await find(lab, until=created - 3600) is None
        assert await find(lab, until=created) is not None
