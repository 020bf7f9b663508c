"""Batches of the scripted provider, in Mistral's, Together's and Gemini's forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from batch_lab import CHAT, BatchLab, batch_lab, jsonl, params

from orchestra.testing import BatchFaults, BatchLimits, BatchScript, Bill, Reply

SAMPLES = Path(__file__).parent.parent / "samples"
GEMINI = "/v1beta/models/m:batchGenerateContent"


def short(custom_id: str, **fields: Any) -> dict[str, Any]:
    """Return a line that says neither method nor url nor model."""
    body = {name: value for name, value in params(f"to {custom_id}", **fields).items() if name != "model"}
    return {"custom_id": custom_id, "body": body}


FIVE = [short(f"l{number}") for number in range(5)]


def sample(name: str) -> Any:
    return json.loads((SAMPLES / name).read_text())


def shape(value: Any) -> Any:
    """Return the keys of an object, all the way down."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value else type(value).__name__


# Mistral


async def job(lab: BatchLab, lines: list[dict[str, Any]] = FIVE, **fields: Any) -> dict[str, Any]:
    file = await lab.upload(jsonl(lines))
    body = {"endpoint": CHAT, "model": "m", "input_files": [file["id"]], "metadata": {"k": "v"}, **fields}
    answer = await lab.http.post("/v1/batch/jobs", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def job_now(lab: BatchLab, name: str, after: float = 0.0) -> dict[str, Any]:
    lab.clock.now += after
    answer = await lab.get(f"/v1/batch/jobs/{name}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_a_mistral_job_goes_its_way():
    script = BatchScript(validating=1, running=10, finalizing=1, replies={"l1": Reply.error(500)})
    async with batch_lab(batch_default=script) as lab:
        told = await job(lab)
        assert (told["status"], told["model"], told["metadata"]) == ("QUEUED", "m", {"k": "v"})
        told = await job_now(lab, told["id"], after=6)
        assert (told["status"], told["succeeded_requests"], told["failed_requests"]) == ("RUNNING", 1, 1)
        told = await job_now(lab, told["id"], after=6)
        assert (told["status"], told["completed_requests"], told["total_requests"]) == ("SUCCESS", 5, 5)
        assert shape(told) == shape(sample("mistral_batch_job.json")) | {
            "errors": "list",
            "metadata": {"k": "str"},
        }
        results = await lab.results(told["output_file"])
        said = {one["custom_id"]: one["response"]["body"]["choices"][0]["message"]["content"] for one in results}
        assert said == {f"l{number}": f"to l{number}" for number in (0, 2, 3, 4)}
        (failed,) = await lab.results(told["error_file"])
        assert (failed["custom_id"], failed["response"]["status_code"]) == ("l1", 500)
        assert lab.provider.billed.of({"model": "m", **FIVE[0]["body"]}) == Bill(batch=1)


@pytest.mark.parametrize(
    ("end", "status"), [("expired", "TIMEOUT_EXCEEDED"), ("cancelled", "CANCELLED"), ("failed", "FAILED")]
)
async def test_the_ends_of_a_mistral_job(end: str, status: str):
    async with batch_lab(batch_default=BatchScript(end=end, answered=0.6)) as lab:
        told = await job_now(lab, (await job(lab))["id"])
        assert told["status"] == status
        assert [one["message"] for one in told["errors"]] == (["scripted"] if end == "failed" else [])
        found = await lab.results(told["output_file"]) if told["output_file"] else []
        assert len(found) == (0 if end == "failed" else 3)
        assert lab.provider.billed.all == Bill(batch=len(found))


async def test_mistrals_inline_requests_cancellation_and_list():
    async with batch_lab(batch_default=BatchScript(end=None, answered=2, running=4, cancelling=2)) as lab:
        first = await job(lab, input_files=None, requests=FIVE)
        second = await job(lab, timeout_hours=1)
        listed = (await lab.get("/v1/batch/jobs", page_size=1, page=1)).json()
        assert ([one["id"] for one in listed["data"]], listed["total"]) == ([first["id"]], 2)
        lab.clock.now += 5
        cancelled = (await lab.http.post(f"/v1/batch/jobs/{first['id']}/cancel")).json()
        assert cancelled["status"] == "CANCELLATION_REQUESTED"
        told = await job_now(lab, first["id"], after=2)
        assert (told["status"], len(await lab.results(told["output_file"]))) == ("CANCELLED", 2)
        assert (await lab.http.post(f"/v1/batch/jobs/{first['id']}/cancel")).status_code == 400
        assert (await job_now(lab, second["id"], after=3600))["status"] == "TIMEOUT_EXCEEDED"
        assert (await lab.http.delete(f"/v1/batch/jobs/{first['id']}")).json()["deleted"] is True
        assert (await lab.get(f"/v1/batch/jobs/{first['id']}")).status_code == 404


async def test_mistral_refuses_what_is_wrong():
    async with batch_lab() as lab:
        for body in (
            {"endpoint": "/v1/nothing", "requests": FIVE},
            {"endpoint": CHAT},
            {"endpoint": CHAT, "requests": FIVE, "timeout_hours": 169},
        ):
            assert (await lab.http.post("/v1/batch/jobs", json=body)).status_code == 422
        told = await job_now(lab, (await job(lab, [*FIVE, FIVE[0]]))["id"])
        assert (told["status"], told["errors"][0]["count"]) == ("FAILED", 1)
        assert "not unique" in told["errors"][0]["message"]


async def test_mistrals_sdk():
    client = pytest.importorskip("mistralai.client")
    async with (
        batch_lab(batch_default=BatchScript(running=5)) as lab,
        httpx2.AsyncClient(trust_env=False) as http,
    ):
        sdk = client.Mistral(server_url=f"{lab.provider.origin}/mistral", api_key="any", async_client=http)
        file = await sdk.files.upload_async(
            file={"file_name": "lines.jsonl", "content": jsonl(FIVE)}, purpose="batch"
        )
        made = await sdk.batch.jobs.create_async(endpoint=CHAT, model="m", input_files=[file.id])
        assert made.status == "QUEUED"
        lab.clock.now += 5
        ended = await sdk.batch.jobs.get_async(job_id=made.id)
        assert (ended.status, ended.succeeded_requests) == ("SUCCESS", 5)
        content = await (await sdk.files.download_async(file_id=ended.output_file)).aread()
        assert len(content.splitlines()) == 5
        assert [one.id for one in (await sdk.batch.jobs.list_async()).data] == [made.id]


# Together


async def made(lab: BatchLab, lines: list[dict[str, Any]] = FIVE, **fields: Any) -> dict[str, Any]:
    form = {"purpose": "batch-api", "file_name": "lines.jsonl", "file_type": "jsonl"}
    files = {"file": ("lines.jsonl", jsonl(lines))}
    file = (await lab.http.post("/together/v1/files/upload", data=form, files=files)).json()
    body = {"endpoint": CHAT, "input_file_id": file["id"], "model_id": "m", **fields}
    answer = await lab.http.post("/together/v1/batches", json=body)
    assert answer.status_code == 200, answer.text
    assert shape(answer.json()) == shape(sample("together_batch_create_response.json"))
    return dict(answer.json()["job"])


async def together(lab: BatchLab, name: str, after: float = 0.0) -> dict[str, Any]:
    lab.clock.now += after
    answer = await lab.get(f"/together/v1/batches/{name}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_a_together_batch_goes_its_way():
    script = BatchScript(validating=1, running=10, replies={"l1": Reply.error(400)})
    async with batch_lab(batch_default=script) as lab:
        told = await made(lab)
        told = await together(lab, told["id"], after=6)
        assert (told["status"], told["progress"]) == ("IN_PROGRESS", 40.0)
        told = await together(lab, told["id"], after=5)
        assert (told["status"], told["progress"]) == ("COMPLETED", 100.0)
        assert shape(told) == shape(sample("together_batch_object.json"))
        answer = await lab.get(f"/together/v1/files/{told['output_file_id']}/content")
        lines = [json.loads(one) for one in answer.text.splitlines()]
        assert [one["custom_id"] for one in lines] == ["l0", "l2", "l3", "l4"]
        assert lines[0]["response"]["body"]["model"] == "m"
        assert (await lab.get("/together/v1/batches")).json() == [told]
        assert lab.provider.billed.all == Bill(batch=4)


@pytest.mark.parametrize(("end", "status"), [("expired", "EXPIRED"), ("failed", "FAILED"), ("weird", "WEIRD")])
async def test_the_ends_of_a_together_batch(end: str, status: str):
    async with batch_lab(batch_default=BatchScript(end=end, answered=2)) as lab:
        told = await together(lab, (await made(lab))["id"])
        assert (told["status"], told.get("error")) == (status, "scripted" if end == "failed" else None)
        assert lab.provider.billed.all == Bill(batch=2 if end == "expired" else 0)


async def test_a_together_batch_is_cancelled():
    async with batch_lab(batch_default=BatchScript(running=10, cancelling=1)) as lab:
        name = (await made(lab))["id"]
        lab.clock.now += 4
        assert (await lab.http.post(f"/together/v1/batches/{name}/cancel")).json()["status"] == "IN_PROGRESS"
        assert (await together(lab, name, after=1))["status"] == "CANCELLED"
        assert (await lab.http.post(f"/together/v1/batches/{name}/cancel")).status_code == 400
        assert lab.provider.billed.all == Bill(batch=2)
        assert (await lab.get("/together/v1/batches/none")).status_code == 404
        wrong = {"endpoint": CHAT, "input_file_id": "none"}
        assert (await lab.http.post("/together/v1/batches", json=wrong)).status_code == 404


# Gemini


def keyed(key: str) -> dict[str, Any]:
    contents = [{"role": "user", "parts": [{"text": f"to {key}"}]}]
    return {"request": {"contents": contents}, "metadata": {"key": key}}


THREE = [keyed(f"l{number}") for number in range(3)]


async def operation(lab: BatchLab, requests: list[dict[str, Any]] = THREE) -> dict[str, Any]:
    batch = {"displayName": "mine", "inputConfig": {"requests": {"requests": requests}}}
    answer = await lab.http.post(GEMINI, json={"batch": batch})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def done(lab: BatchLab, name: str, after: float = 0.0) -> dict[str, Any]:
    lab.clock.now += after
    answer = await lab.get(f"/v1beta/{name}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def said(payload: Any) -> str:
    return str(payload["contents"][-1]["parts"][0]["text"])


async def test_a_gemini_batch_goes_its_way():
    script = BatchScript(validating=1, running=10, replies={"l1": Reply.error(400, message="bad")})
    async with batch_lab(text=said, batch_default=script) as lab:
        told = await operation(lab)
        assert shape(told) == shape(sample("gemini_batch_operation_pending.json"))
        told = await done(lab, told["name"], after=5)
        assert (told["metadata"]["state"], told.get("done")) == ("BATCH_STATE_RUNNING", None)
        told = await done(lab, told["name"], after=6)
        assert shape(told) == shape(sample("gemini_batch_operation_done_inline.json"))
        assert told["metadata"]["batchStats"]["successfulRequestCount"] == "2"
        first, second, _ = told["response"]["inlinedResponses"]["inlinedResponses"]
        assert first["response"]["candidates"][0]["content"]["parts"] == [{"text": "to l0"}]
        assert second == {"error": {"code": 3, "message": "bad"}, "metadata": {"key": "l1"}}
        assert lab.provider.billed.all == Bill(batch=2)
        await lab.http.post("/v1beta/models/m:generateContent", json=THREE[0]["request"])
        assert list(lab.provider.billed.requests_paid_twice().values()) == [Bill(sync=1, batch=1)]


@pytest.mark.parametrize(("end", "code"), [("expired", 4), ("cancelled", 1), ("failed", 13)])
async def test_a_gemini_batch_that_does_not_succeed_yields_nothing_and_costs_nothing(end: str, code: int):
    async with batch_lab(text=said, batch_default=BatchScript(end=end, answered=2)) as lab:
        told = await done(lab, (await operation(lab))["name"])
        if end == "expired":
            assert shape(told) == shape(sample("gemini_batch_operation_expired.json"))
        assert (told["done"], told["error"]["code"]) == (True, code)
        assert told["metadata"]["state"] == f"BATCH_STATE_{end.upper()}"
        assert lab.provider.billed.all == Bill()


async def test_geminis_cancellation_list_and_refusals():
    limits = BatchLimits(enqueued_tokens=60)
    async with batch_lab(text=said, batch_default=BatchScript(running=9), batch_limits=limits) as lab:
        first = await operation(lab)
        assert (await lab.http.post(f"/v1beta/{first['name']}:cancel")).json() == {}
        assert (await done(lab, first["name"]))["metadata"]["state"] == "BATCH_STATE_CANCELLED"
        second = await operation(lab)
        config = {"displayName": "x", "inputConfig": {"requests": {"requests": THREE}}}
        full = await lab.http.post(GEMINI, json={"batch": config})
        assert (full.status_code, full.json()["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")
        listed = (await lab.get("/v1beta/batches", pageSize=1)).json()
        assert [one["name"] for one in listed["operations"]] == [second["name"]]
        listed = (await lab.get("/v1beta/batches", pageSize=1, pageToken=listed["nextPageToken"])).json()
        assert ([one["name"] for one in listed["operations"]], len(listed)) == ([first["name"]], 1)
        wrong = await lab.http.post(GEMINI, json={"batch": {"inputConfig": {"fileName": "files/x"}}})
        assert (wrong.status_code, wrong.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
        assert (await lab.http.delete(f"/v1beta/{first['name']}")).json() == {}
        assert (await lab.get(f"/v1beta/{first['name']}")).json()["error"]["code"] == 404


async def test_geminis_sdk():
    genai = pytest.importorskip("google.genai")
    async with (
        batch_lab(text=said, batch_default=BatchScript(running=5)) as lab,
        httpx2.AsyncClient(trust_env=False) as http,
    ):
        options = genai.types.HttpOptions(
            base_url=lab.provider.origin, api_version="v1beta", httpx_async_client=http
        )
        client = genai.Client(api_key="any", http_options=options)
        sdk = client.aio
        requests = [{"contents": one["request"]["contents"], "metadata": one["metadata"]} for one in THREE]
        made = await sdk.batches.create(model="m", src=requests, config={"display_name": "mine"})
        assert made.state.name == "JOB_STATE_PENDING"
        lab.clock.now += 5
        ended = await sdk.batches.get(name=made.name)
        assert ended.state.name == "JOB_STATE_SUCCEEDED"
        texts = [one.response.text for one in ended.dest.inlined_responses]
        assert texts == ["to l0", "to l1", "to l2"]
        answer = await sdk.models.generate_content(model="m", contents="hi")
        assert (answer.text, answer.usage_metadata.prompt_token_count > 0) == ("hi", True)
        with pytest.raises(genai.errors.ClientError, match="404"):
            await sdk.batches.get(name="batches/none")
        await sdk.aclose()
        client.close()


# all of them


@pytest.mark.parametrize(
    ("create", "poll"),
    [(job, job_now), (made, together), (operation, done)],
    ids=["mistral", "together", "gemini"],
)
async def test_faults_befall_every_form(create: Any, poll: Any):
    faults = BatchFaults(refused_polls=1.0)
    async with batch_lab(text="x", batch_faults=faults) as lab:
        told = await create(lab)
        name = told.get("id") or told["name"]
        with pytest.raises(AssertionError, match="server_is_overloaded"):
            await poll(lab, name)
        lab.provider.batch_faults = BatchFaults(lost_creations=1.0, cut_results=1.0)
        with pytest.raises(httpx2.TransportError):
            await create(lab)
        assert lab.provider.counts()["batches"] == 2
        assert lab.provider.counts()["faults"] == {"refused_polls": 1, "lost_creations": 1}
        assert lab.provider.billed.all.batch > 0
