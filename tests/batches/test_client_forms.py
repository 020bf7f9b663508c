"""The client against the samples of providers that have no server of their own here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from batch_client_lab import everything, form_for, order_for, ready_client, sample, sample_bytes, written

from orchestra.batches import AccountRefused, BatchBusy, BatchForbidden, BatchNotFound, BatchRefused
from orchestra.errors import ConnectionFailed

JOB = "b5a90000-0000-4000-8000-000000000001"
TOGETHER = "3f0a0000-0000-4000-8000-000000000001"
ANSWER = {"custom_id": "c0", "response": {"status_code": 200, "body": {"choices": []}}, "error": None}
REFUSAL = {"custom_id": "c1", "response": {"status_code": 422, "body": {"error": {"message": "m"}}}, "error": None}


def lines(*told: Any) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in told)


def kinds(results: list[Any]) -> dict[str, str]:
    return {result.custom_id: result.kind for result in results}


async def test_mistral_from_the_lines_to_their_answers() -> None:
    job = sample("mistral_batch_job")
    answers = {
        "POST /v1/files": [sample("openai_file_object")],
        "POST /v1/batch/jobs": [{**job, "status": "QUEUED", "output_file": None, "error_file": None}],
        f"GET /v1/batch/jobs/{JOB}": [
            {**job, "status": "RUNNING"},
            {**job, "status": "CANCELLATION_REQUESTED"},
            job,
        ],
        f"POST /v1/batch/jobs/{JOB}/cancel": [job],
        f"GET /v1/files/{job['output_file']}/content": [lines(ANSWER)],
        f"GET /v1/files/{job['error_file']}/content": [lines(REFUSAL)],
    }
    client, wire = ready_client("mistral", answers)
    order = order_for("mistral")
    content, size = written(form_for("mistral"), order)
    file = await client.upload(order, content, size)
    created = await client.create(order, file)
    assert not created.ended
    assert wire.log[1].json["input_files"] == ["file-InSample1"]
    assert not (await client.poll(created.id)).ended
    assert not (await client.cancel(created.id)).ended
    ended = await client.poll(created.id)
    assert kinds(await everything(client, ended)) == {"c0": "answered", "c1": "refused"}
    assert all(sent.headers["authorization"].startswith("Bearer ") for sent in wire.log)
    assert wire.unclosed == 0


async def test_together_keeps_its_files_with_others() -> None:
    job = sample("together_batch_object")
    store = "https://store.example/together/out?signature=s"
    answers: dict[str, Any] = {
        "POST /v1/files/upload": [sample("openai_file_object")],
        "POST /v1/batches": [sample("together_batch_create_response")],
        f"GET /v1/batches/{TOGETHER}": [job],
        "GET /v1/files/file-3f0aout/content": [(302, (("location", store),), b"")],
        f"GET {store}": [lines(ANSWER)],
        "GET /v1/files/file-3f0aerr/content": [lines(REFUSAL)],
    }
    client, wire = ready_client("together", answers)
    order = order_for("together")
    content, size = written(form_for("together"), order)
    created = await client.create(order, await client.upload(order, content, size))
    assert (created.id, created.ended) == (TOGETHER, False)
    assert kinds(await everything(client, await client.poll(TOGETHER))) == {"c0": "answered", "c1": "refused"}
    (away,) = [sent for sent in wire.log if sent.url == store]
    assert away.headers == {}


async def test_gemini_from_the_lines_to_their_answers() -> None:
    answers: dict[str, Any] = {
        "POST /v1beta/models/m:batchGenerateContent": [sample("gemini_batch_operation_pending")],
        "GET /v1beta/batches/sample0001": [
            sample("gemini_batch_operation_pending"),
            sample("gemini_batch_operation_done_inline"),
        ],
        "POST /v1beta/batches/sample0001:cancel": [{}],
    }
    client, wire = ready_client("gemini", answers)
    order = order_for("gemini")
    content, size = written(form_for("gemini"), order)
    created = await client.create(order, content, size)
    assert wire.log[0].json["batch"]["displayName"] == "key-1"
    assert not (await client.cancel(created.id)).ended  # its answer is empty: the batch is looked at
    ended = await client.poll(created.id)
    assert kinds(await everything(client, ended)) == {"bulk-000001": "answered", "bulk-000002": "refused"}
    assert {sent.headers["x-goog-api-key"] for sent in wire.log} == {"sk-a-key-of-ours-0123"}


async def test_gemini_files_are_read_as_lines() -> None:
    answers = {
        "GET /v1beta/batches/sample0001": [sample("gemini_batch_operation_done_file")],
        "GET /download/v1beta/files/batch-sample0001:download?alt=media": [
            sample_bytes("gemini_batch_output.jsonl")
        ],
    }
    client, _ = ready_client("gemini", answers)
    state = await client.poll("batches/sample0001")
    assert kinds(await everything(client, state)) == {"bulk-000001": "answered", "bulk-000002": "refused"}


async def test_gemini_says_nothing_of_what_expired() -> None:
    client, wire = ready_client("gemini", {"GET /v1beta/batches/b": [sample("gemini_batch_operation_expired")]})
    state = await client.poll("batches/b")
    assert state.ended
    assert await everything(client, state) == []
    assert len(wire.log) == 1


async def test_gemini_says_how_long_to_wait() -> None:
    told = sample("gemini_429")
    refusal = (told["status"], tuple(told["headers"].items()), json.dumps(told["body"]).encode())
    client, _ = ready_client("gemini", {"GET /v1beta/batches/b": [refusal]})
    with pytest.raises(BatchBusy) as caught:
        await client.poll("batches/b")
    assert caught.value.retry_after > 1
    assert caught.value.code == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, BatchRefused),
        (401, AccountRefused),
        (403, BatchForbidden),
        (404, BatchNotFound),
        (408, BatchBusy),
        (425, BatchBusy),
    ]
    + [(status, BatchBusy) for status in (429, 500, 503, 529)],
)
@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini", "mistral", "together"])
async def test_errors_by_their_status(kind: str, status: int, expected: type[Exception]) -> None:
    place = form_for(kind).poll("b")
    client, wire = ready_client(kind, {f"GET {place.path}": [(status, (), b"<html>")]})
    with pytest.raises(expected) as caught:
        await client.poll("b")
    assert type(caught.value) is expected
    assert wire.unclosed == 0


async def test_an_error_that_breaks_off_is_still_one() -> None:
    client, wire = ready_client("openai", {"GET /batches/b": [(429, (), b"x" * (2 << 20))]})
    with pytest.raises(BatchBusy):
        await client.poll("b")
    assert wire.unclosed == 0


async def test_a_creation_that_was_not_sent_says_so() -> None:
    client, _ = ready_client("openai", {"POST /batches": [ConnectionFailed("refused", sent=False)]})
    with pytest.raises(ConnectionFailed) as caught:
        await client.create(order_for("openai"), "file-1")
    assert not caught.value.sent
