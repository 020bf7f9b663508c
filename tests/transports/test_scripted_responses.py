"""The scripted provider's ``/v1/responses``: whole, streamed, in the background, and in batches."""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest
from batch_lab import BatchLab, batch_lab, line
from openapi import faults, needs_description

from orchestra.testing import BatchScript, Bill, Reply, ScriptedProvider, StreamScript

ASKED = {"model": "m", "input": "hello there", "instructions": "Be brief."}
LATER = {**ASKED, "background": True, "background_options": {"completion_window": "2h"}}


async def start(lab: BatchLab, **fields: Any) -> dict[str, Any]:
    answer = await lab.http.post("/v1/responses", json={**LATER, **fields})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def fetch(lab: BatchLab, name: str, after: float = 0.0) -> dict[str, Any]:
    lab.clock.now += after
    answer = await lab.get(f"/v1/responses/{name}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_openais_sdk_reads_them_whole_and_streamed():
    chunks = ["one ", "two"]
    async with (
        ScriptedProvider(text="as told", default=Reply(stream=StreamScript(chunks=chunks))) as provider,
        openai.AsyncOpenAI(base_url=provider.base_url, api_key="any", max_retries=0) as client,
    ):
        raw = await client.responses.with_raw_response.create(model="m", input="hi", instructions="Be brief.")
        parsed = openai.types.responses.Response.model_validate_json(raw.content)
        assert (parsed.output_text, parsed.status, parsed.background) == ("as told", "completed", False)
        assert parsed.usage is not None
        assert parsed.usage.input_tokens == (4 + 11) // 4 + 1
        assert parsed.usage.total_tokens == parsed.usage.input_tokens + parsed.usage.output_tokens
        seen = []
        async with client.responses.stream(model="m", input="hi") as stream:
            async for event in stream:
                seen.append(event.type)
            final = await stream.get_final_response()
        assert final.output_text == "one two"
        assert final.usage is not None
        assert seen.count("response.output_text.delta") == 2
        assert (seen[0], seen[-1]) == ("response.created", "response.completed")
        assert provider.billed.all == Bill(sync=2)


@pytest.mark.parametrize(
    ("script", "last"),
    [
        (StreamScript(error_after=1), "error"),
        (StreamScript(finished=False), "response.output_item.done"),
    ],
)
async def test_their_streams_break_as_told(script: StreamScript, last: str):
    async with (
        ScriptedProvider(default=Reply(stream=script)) as provider,
        openai.AsyncOpenAI(base_url=provider.base_url, api_key="any", max_retries=0) as client,
    ):
        stream = await client.responses.create(model="m", input="hi", stream=True)
        assert [event.type async for event in stream][-1] == last


async def test_one_in_the_background_takes_its_time_and_is_paid_once():
    async with batch_lab(text="done", background_default=BatchScript(validating=5, running=10)) as lab:
        told = await start(lab)
        assert (told["status"], told["background"], told["output"]) == ("queued", True, [])
        name = told["id"]
        assert (await fetch(lab, name, after=4))["status"] == "queued"
        assert (await fetch(lab, name, after=5))["status"] == "in_progress"
        assert lab.provider.billed.all == Bill()
        for _ in range(2):
            told = await fetch(lab, name, after=6)
            assert told["output"][0]["content"][0]["text"] == "done"
            assert told["usage"]["total_tokens"] > 0
        parsed = openai.types.responses.Response.model_validate(told)
        assert (parsed.id, parsed.status, parsed.output_text) == (name, "completed", "done")
        assert lab.provider.billed.all == Bill(background=1)
        await lab.http.post("/v1/responses", json=ASKED)
        assert list(lab.provider.billed.requests_paid_twice().values()) == [Bill(sync=1, background=1)]


async def test_one_is_forgotten_after_ten_minutes_unless_it_is_stored():
    async with batch_lab(background_default=BatchScript(running=10)) as lab:
        names = [(await start(lab, **fields))["id"] for fields in ({}, {"store": True})]
        lab.clock.now += 609
        assert [(await lab.get(f"/v1/responses/{name}")).status_code for name in names] == [200, 200]
        lab.clock.now += 1
        assert [(await lab.get(f"/v1/responses/{name}")).status_code for name in names] == [404, 200]


async def test_one_is_cancelled_or_late_and_costs_nothing():
    async with batch_lab(background_default=BatchScript(running=9000, cancelling=1)) as lab:
        first, second = (await start(lab))["id"], (await start(lab))["id"]
        told = (await lab.http.post(f"/v1/responses/{first}/cancel")).json()
        assert told["status"] == "in_progress"
        told = await fetch(lab, first, after=1)
        assert (told["status"], told["error"]) == ("cancelled", None)
        assert (await lab.http.delete(f"/v1/responses/{first}")).json()["deleted"] is True
        assert (await lab.get(f"/v1/responses/{first}")).status_code == 404
        told = await fetch(lab, second, after=7200)
        assert (told["status"], told["error"]["code"]) == ("failed", "server_error")
        openai.types.responses.Response.model_validate(told)
        assert lab.provider.billed.all == Bill()


@pytest.mark.parametrize(
    "fields",
    [{"background_options": {"completion_window": "24h"}}, {"background_options": "2h"}, {"stream": True}],
)
async def test_a_wrong_wish_for_the_background_is_refused(fields: dict[str, Any]):
    async with batch_lab() as lab:
        answer = await lab.http.post("/v1/responses", json={**LATER, **fields})
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_polls_and_creations_in_the_background_fail_by_the_script():
    script = BatchScript(on_create=Reply(drop=True), on_poll=[Reply.error(503)])
    async with batch_lab(background_default=script) as lab:
        with pytest.raises(httpx2.TransportError):
            await start(lab)
        assert lab.provider.billed.all == Bill(background=1)
        lab.provider.background_default = BatchScript(on_poll=[Reply.error(503)])
        told = await start(lab)
        assert (await lab.get(f"/v1/responses/{told['id']}")).status_code == 503
        assert (await fetch(lab, told["id"]))["status"] == "completed"


async def test_accounts_see_their_own():
    async with batch_lab(accounts={"a": "one", "b": "two"}) as lab:
        head = {"authorization": "Bearer b"}
        name = (await lab.http.post("/v1/responses", json=LATER, headers=head)).json()["id"]
        assert (await lab.get(f"/v1/responses/{name}", key="a")).status_code == 404
        assert (await lab.get(f"/v1/responses/{name}", key="b")).status_code == 200


BODIES: dict[str, tuple[dict[str, Any], Any]] = {
    "/v1/responses": (ASKED, openai.types.responses.Response),
    "/v1/completions": ({"model": "m", "prompt": "hello"}, openai.types.Completion),
    "/v1/embeddings": ({"model": "m", "input": ["a", "b"]}, openai.types.CreateEmbeddingResponse),
}


@pytest.mark.parametrize("path", BODIES)
async def test_batches_of_every_endpoint(path: str):
    body, kind = BODIES[path]
    async with batch_lab() as lab:
        batch = await lab.submit([line("l0", url=path, body=body)], endpoint=path)
        batch = await lab.poll(batch["id"])
        (told,) = await lab.results(batch["output_file_id"])
        parsed = kind.model_validate(told["response"]["body"])
        assert parsed.usage is not None
        assert batch["usage"]["input_tokens"] == lab.provider._count(body)[0]
        assert (await lab.http.post(path, json=body)).json()["model"] == "m"
        assert list(lab.provider.billed.requests_paid_twice().values()) == [Bill(sync=1, batch=1)]


@needs_description
async def test_openais_own_description():
    async with batch_lab() as lab:
        whole = (await lab.http.post("/v1/responses", json=ASKED)).json()
        assert list(faults("Response", whole)) == []


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("POST", "/v1/audio/speech", "invalid_request_error"),
        ("GET", "/v1/chat/completions", "invalid_request_error"),
        ("POST", "/v1/models", "invalid_request_error"),
        ("GET", "/v1/batch/nothing", "invalid_request_error"),
        ("POST", "/v1/messages/nothing", "not_found_error"),
        ("POST", "/v1beta/models/m:embedContent", "NOT_FOUND"),
        ("POST", "/together/v1/nothing", "invalid_request_error"),
    ],
)
async def test_what_it_does_not_know_is_not_found(method: str, path: str, kind: str):
    async with batch_lab() as lab:
        answer = await lab.http.request(method, path, json={"model": "m"} if method == "POST" else None)
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert error.get("status", error.get("type")) == kind
        assert lab.provider.billed.all == Bill()


async def test_batches_ask_known_endpoints_alone():
    async with batch_lab() as lab:
        path = "/v1/moderations"
        file = await lab.upload(b"{}")
        answer = await lab.create(file["id"], endpoint=path)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "endpoint")


async def test_a_scripted_answer_goes_before():
    async with batch_lab(script=[Reply(body={"own": 1}), Reply.error(500)]) as lab:
        assert (await lab.http.post("/v1/nothing", json={})).json() == {"own": 1}
        assert (await lab.http.post("/v1/nothing", json={})).status_code == 500
