"""Batches of the scripted provider, in Anthropic's form."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from batch_lab import BatchLab, batch_lab, params

from orchestra.testing import BatchLimits, BatchScript, Bill, Reply, ScriptedProvider

PATH = "/v1/messages/batches"
NOTHING = {"succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}


def request(custom_id: str, **fields: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "params": params(f"to {custom_id}", **fields)}


FIVE = [request(f"l{number}") for number in range(5)]


async def submit(lab: BatchLab, requests: list[dict[str, Any]] = FIVE, **headers: str) -> dict[str, Any]:
    answer = await lab.create_messages(requests, **headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def poll(lab: BatchLab, batch_id: str, after: float = 0.0) -> dict[str, Any]:
    lab.clock.now += after
    answer = await lab.http.get(f"{PATH}/{batch_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def results(url: str) -> dict[str, Any]:
    async with httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.get(url)
    assert answer.status_code == 200, answer.text
    lines = [json.loads(line) for line in answer.text.splitlines()]
    return {line["custom_id"]: line["result"] for line in lines}


async def test_a_batch_goes_its_way_by_the_clock():
    replies = {"l1": Reply.anthropic_error(529, "overloaded_error")}
    script = BatchScript(validating=1, running=10, finalizing=1, replies=replies)
    async with batch_lab(batch_default=script) as lab:
        batch = await submit(lab)
        for seconds in (0, 1, 5, 5):
            batch = await poll(lab, batch["id"], after=seconds)
            assert (batch["processing_status"], batch["results_url"]) == ("in_progress", None)
            assert batch["request_counts"] == {"processing": 5, **NOTHING}
        assert (await lab.http.get(f"{PATH}/{batch['id']}/results")).status_code == 404
        batch = await poll(lab, batch["id"], after=1)
        assert batch["processing_status"] == "ended"
        assert batch["request_counts"] == {**NOTHING, "processing": 0, "succeeded": 4, "errored": 1}
        assert batch["ended_at"] > batch["created_at"]
        found = await results(batch["results_url"])
        assert found["l0"]["message"]["content"][0]["text"] == "to l0"
        assert found["l0"]["message"]["usage"]["service_tier"] == "batch"
        assert found["l1"]["error"]["error"]["type"] == "overloaded_error"
        assert lab.provider.billed.all == Bill(batch=4)


@pytest.mark.parametrize(("end", "kind"), [("expired", "expired"), ("cancelled", "canceled")])
async def test_an_end_before_its_time_keeps_what_was_done(end: str, kind: str):
    async with batch_lab(batch_default=BatchScript(end=end, answered=2, shuffle=1)) as lab:
        batch = await poll(lab, (await submit(lab))["id"])
        assert batch["processing_status"] == "ended"
        assert batch["request_counts"] == {**NOTHING, "processing": 0, "succeeded": 2, kind: 3}
        found = await results(batch["results_url"])
        assert list(found) != sorted(found)
        assert found["l4"] == {"type": kind}


async def test_a_batch_that_failed_is_one_of_errors():
    async with batch_lab(batch_default=BatchScript(end="failed", message="broken")) as lab:
        batch = await poll(lab, (await submit(lab))["id"])
        assert (batch["processing_status"], batch["request_counts"]["errored"]) == ("ended", 5)
        found = await results(batch["results_url"])
        assert found["l0"]["error"]["error"] == {"type": "api_error", "message": "broken"}


async def test_a_cancellation_takes_its_time():
    script = BatchScript(running=10, cancelling=3, finishing=1)
    async with batch_lab(batch_default=script) as lab:
        batch = await submit(lab)
        lab.clock.now += 4
        cancelled = (await lab.http.post(f"{PATH}/{batch['id']}/cancel")).json()
        assert (cancelled["processing_status"], cancelled["results_url"]) == ("canceling", None)
        assert cancelled["cancel_initiated_at"] is not None
        assert (await lab.http.delete(f"{PATH}/{batch['id']}")).status_code == 400
        batch = await poll(lab, batch["id"], after=3)
        assert batch["request_counts"] == {**NOTHING, "processing": 0, "succeeded": 3, "canceled": 2}
        assert (await lab.http.post(f"{PATH}/{batch['id']}/cancel")).status_code == 400
        deleted = await lab.http.delete(f"{PATH}/{batch['id']}")
        assert deleted.json() == {"id": batch["id"], "type": "message_batch_deleted"}
        assert (await lab.http.get(f"{PATH}/{batch['id']}")).status_code == 404
        assert lab.provider.billed.all == Bill(batch=3)


@pytest.mark.parametrize(
    "requests",
    [
        [],
        [request("a b")],
        [request("x" * 65)],
        [request("ä")],
        [request("a\n")],
        [{"custom_id": "a"}],
        [request("a"), request("a")],
        [request(str(number)) for number in range(6)],
    ],
)
async def test_a_wrong_envelope_is_refused_whole(requests: list[dict[str, Any]]):
    async with batch_lab(batch_limits=BatchLimits(max_requests=5)) as lab:
        answer = await lab.create_messages(requests)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        assert (await lab.http.get(PATH)).json() == {
            "data": [],
            "has_more": False,
            "first_id": None,
            "last_id": None,
        }


async def test_an_envelope_too_large_is_refused():
    async with batch_lab(batch_limits=BatchLimits(max_bytes=100)) as lab:
        answer = await lab.create_messages(FIVE)
        assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")


async def test_wrong_parameters_are_found_line_by_line():
    wrong = [
        request("stream", stream=True),
        request("tokens", max_tokens=0),
        request("model", model=None),
        request("nothing", messages=[]),
        request("speed", speed="fast"),
        request("sampling", temperature=0.5),
    ]
    async with batch_lab() as lab:
        old = await poll(lab, (await submit(lab, wrong))["id"])
        new = await poll(lab, (await submit(lab, wrong, **{"anthropic-version": "2026-10-21"}))["id"])
        assert (old["request_counts"]["errored"], new["request_counts"]["errored"]) == (5, 6)
        found = await results(new["results_url"])
        assert found["sampling"]["error"]["error"]["message"].startswith("temperature")


async def test_the_queue_has_a_bound():
    limits = BatchLimits(enqueued_requests=8, creations_per_hour=2)
    async with batch_lab(batch_default=BatchScript(running=10), batch_limits=limits) as lab:
        await submit(lab)
        full = await lab.create_messages(FIVE)
        assert (full.status_code, full.json()["error"]["type"]) == (429, "rate_limit_error")
        lab.clock.now += 10
        await submit(lab)
        often = await lab.create_messages(FIVE[:1])
        assert (often.status_code, often.headers["retry-after"]) == (429, "3590")


async def test_lists_go_page_by_page_in_both_directions():
    async with batch_lab() as lab:
        made = [(await submit(lab))["id"] for _ in range(5)][::-1]

        async def page(**query: Any) -> tuple[list[str], bool]:
            told = (await lab.http.get(PATH, params=query)).json()
            return [batch["id"] for batch in told["data"]], told["has_more"]

        assert await page(limit=2) == (made[:2], True)
        assert await page(limit=3, after_id=made[1]) == (made[2:], False)
        assert await page(limit=2, before_id=made[3]) == (made[1:3], True)
        assert await page(limit=5, before_id=made[3]) == (made[:3], False)


async def test_what_goes_wrong_around_a_batch():
    script = BatchScript(
        on_create=Reply(drop=True),
        on_poll=[Reply.anthropic_error(500, "api_error")],
        on_results=[Reply(cut_after=10)],
        results_after=5,
        counts=False,
        vanishes_after=100,
    )
    async with batch_lab(batch_default=script) as lab:
        with pytest.raises(httpx2.TransportError):
            await lab.create_messages(FIVE)
        batch = (await lab.http.get(PATH)).json()["data"][0]
        assert (await lab.http.get(f"{PATH}/{batch['id']}")).status_code == 500
        assert (await poll(lab, batch["id"]))["request_counts"] is None
        lab.clock.now += 5
        with pytest.raises(httpx2.TransportError):
            await results(batch["results_url"])
        assert len(await results(batch["results_url"])) == 5
        lab.clock.now += 95
        assert (await lab.http.get(f"{PATH}/{batch['id']}")).status_code == 404


async def test_results_are_read_from_another_host():
    routes = {"GET /v1/messages/batches/*/results": [Reply(body=b'{"custom_id":"a","result":{"type":"expired"}}')]}
    async with ScriptedProvider(routes=routes) as elsewhere:
        async with batch_lab(batch_default=BatchScript(results_origin=elsewhere.origin)) as lab:
            batch = await poll(lab, (await submit(lab))["id"])
            assert await results(batch["results_url"]) == {"a": {"type": "expired"}}
        assert "x-api-key" not in elsewhere.log[0].headers


async def test_a_status_that_no_client_knows_and_keys_of_others():
    accounts = {"a": "one", "b": "two"}
    async with batch_lab(batch_default=BatchScript(end="weird"), accounts=accounts) as lab:
        batch = await submit(lab)
        for key, status in (("a", 200), ("b", 404), ("c", 401)):
            answer = await lab.http.get(f"{PATH}/{batch['id']}", headers={"x-api-key": key})
            assert answer.status_code == status
            assert answer.json()["type"] == ("message_batch" if status == 200 else "error")
        own = await lab.http.get(f"{PATH}/{batch['id']}", headers={"x-api-key": "a"})
        assert own.json()["processing_status"] == "weird"
