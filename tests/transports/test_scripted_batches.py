"""Files and batches of the scripted provider, in OpenAI's form."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from batch_lab import BatchLab, batch_lab, jsonl, line, params

from orchestra.testing import BatchLimits, BatchScript, Bill, Reply

FIVE = [line(f"l{number}") for number in range(5)]


def ids(results: list[dict[str, Any]]) -> list[str]:
    return [result["custom_id"] for result in results]


def codes(batch: dict[str, Any]) -> list[tuple[str, int | None]]:
    return [(error["code"], error["line"]) for error in batch["errors"]["data"]]


async def refused(lab: BatchLab, lines: list[dict[str, Any]] | bytes) -> list[tuple[str, int | None]]:
    batch = await lab.poll((await lab.submit(lines))["id"])
    assert batch["status"] == "failed"
    assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert batch["output_file_id"] is None
    return codes(batch)


async def test_a_batch_goes_its_way_by_the_clock():
    script = BatchScript(validating=1, running=10, finalizing=2)
    async with batch_lab(batch_default=script) as lab:
        batch = await lab.submit(FIVE, metadata={"run": "7"})
        assert (batch["status"], batch["metadata"], batch["model"]) == ("validating", {"run": "7"}, "m")
        batch = await lab.poll(batch["id"], after=1)
        assert (batch["status"], batch["request_counts"]["completed"]) == ("in_progress", 0)
        batch = await lab.poll(batch["id"], after=6)
        assert batch["request_counts"] == {"total": 5, "completed": 3, "failed": 0}
        batch = await lab.poll(batch["id"], after=4)
        assert (batch["status"], batch["output_file_id"], batch["usage"]) == ("finalizing", None, None)
        assert lab.provider.billed.all == Bill()
        batch = await lab.poll(batch["id"], after=2)
        assert batch["status"] == "completed"
        assert batch["request_counts"] == {"total": 5, "completed": 5, "failed": 0}
        assert batch["completed_at"] - batch["created_at"] in (13, 14)
        assert batch["error_file_id"] is None
        results = await lab.results(batch["output_file_id"])
    assert ids(results) == ["l0", "l1", "l2", "l3", "l4"]
    said = [result["response"]["body"]["choices"][0]["message"]["content"] for result in results]
    assert said == [f"to l{number}" for number in range(5)]
    used = [result["response"]["body"]["usage"] for result in results]
    assert batch["usage"]["input_tokens"] == sum(one["prompt_tokens"] for one in used)
    assert batch["usage"]["total_tokens"] == sum(one["total_tokens"] for one in used)


async def test_it_ends_at_once_when_nothing_else_is_scripted():
    async with batch_lab() as lab:
        batch = await lab.submit(FIVE)
        assert batch["status"] == "validating"
        assert (await lab.poll(batch["id"]))["status"] == "completed"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([line("a"), line("a")], [("duplicate_custom_id", 2)]),
        ([line("a"), line("b", url="/v1/embeddings")], [("url_mismatch", 2)]),
        ([line("a"), line("b", body=params("x", model="other"))], [("model_mismatch", 2)]),
        ([line("a", body=params("x", stream=True))], [("invalid_request", 1)]),
        ([line("a", method="GET")], [("invalid_request", 1)]),
        ([line("a", body="x")], [("invalid_request", 1)]),
        ([{"method": "POST"}], [("invalid_request", 1), ("url_mismatch", 1), ("invalid_request", 1)]),
        (b"\xef\xbb\xbf" + jsonl([line("a")]), [("invalid_json_line", 1)]),
        (jsonl([line("a")]) + b"{\n\xff\n[]", [("invalid_json_line", number) for number in (2, 3, 4)]),
        (b"\n\n", [("empty_file", None)]),
    ],
)
async def test_wrong_input_fails_the_whole_batch(lines: Any, told: list[tuple[str, int | None]]):
    async with batch_lab() as lab:
        assert await refused(lab, lines) == told
        assert lab.provider.billed.all == Bill()


async def test_too_much_input_fails_the_batch():
    async with batch_lab(batch_limits=BatchLimits(max_requests=4, max_bytes=10_000)) as lab:
        assert await refused(lab, FIVE) == [("too_many_requests", None)]
        assert await refused(lab, [line("a", "x" * 10_000)]) == [("file_too_large", None)]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"completion_window": "1h"}, 400),
        ({"completion_window": "7d"}, 400),
        ({"endpoint": None}, 400),
        ({"metadata": {str(number): "x" for number in range(17)}}, 400),
        ({"metadata": {"k": "x" * 513}}, 400),
        ({"input_file_id": "file-none"}, 404),
    ],
)
async def test_a_wrong_creation_is_refused(fields: dict[str, Any], status: int):
    async with batch_lab() as lab:
        file = await lab.upload(jsonl(FIVE))
        answer = await lab.create(file["id"], **fields)
        assert answer.status_code == status
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert (await lab.get("/v1/batches")).json()["data"] == []


async def test_who_serves_openais_form_takes_longer_windows():
    async with batch_lab() as lab:
        file = await lab.upload(jsonl(FIVE))
        body = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "7d"}
        answer = await lab.http.post("/openai/v1/batches", json=body)
        assert answer.json()["expires_at"] - answer.json()["created_at"] == 7 * 86400


async def test_failed_lines_stand_in_the_error_file():
    replies = {
        1: Reply.error(400, "context_length_exceeded"),
        "l3": Reply.error(500),
        "l4": Reply(body={"own": 1}),
    }
    async with batch_lab(batch_default=BatchScript(running=5, replies=replies)) as lab:
        batch = await lab.submit(FIVE)
        running = await lab.poll(batch["id"], after=2)
        assert running["request_counts"] == {"total": 5, "completed": 1, "failed": 1}
        batch = await lab.poll(batch["id"], after=3)
        assert batch["request_counts"] == {"total": 5, "completed": 3, "failed": 2}
        output = await lab.results(batch["output_file_id"])
        errors = await lab.results(batch["error_file_id"])
        assert ids(output) == ["l0", "l2", "l4"]
        assert output[2]["response"]["body"] == {"own": 1}
        assert [(one["custom_id"], one["response"]["status_code"], one["error"]) for one in errors] == [
            ("l1", 400, None),
            ("l3", 500, None),
        ]
        assert lab.provider.billed.all == Bill(batch=3)


async def test_nothing_but_failed_lines_makes_no_output():
    script = BatchScript(replies={0: Reply.error(400)}, absent_id="")
    async with batch_lab(batch_default=script) as lab:
        batch = await lab.poll((await lab.submit([line("a")]))["id"])
        assert (batch["status"], batch["output_file_id"]) == ("completed", "")
        assert batch["error_file_id"].startswith("file-")


async def test_an_expired_batch_has_what_was_done():
    script = BatchScript(running=10, end="expired", answered=2)
    async with batch_lab(batch_default=script) as lab:
        batch = await lab.poll((await lab.submit(FIVE))["id"], after=10)
        assert (batch["status"], batch["completed_at"]) == ("expired", None)
        assert batch["request_counts"] == {"total": 5, "completed": 2, "failed": 3}
        assert ids(await lab.results(batch["output_file_id"])) == ["l0", "l1"]
        errors = await lab.results(batch["error_file_id"])
        assert {(one["response"], one["error"]["code"]) for one in errors} == {(None, "batch_expired")}
        assert lab.provider.billed.all == Bill(batch=2)


async def test_a_batch_stuck_at_60_percent_keeps_that_when_cancelled_or_expired():
    script = BatchScript(running=10, end=None, answered=0.6, cancelling=30, finishing=1)
    async with batch_lab(batch_default=script) as lab:
        one, two = (await lab.submit(FIVE))["id"], (await lab.submit(FIVE))["id"]
        batch = await lab.poll(one, after=4000)
        assert (batch["status"], batch["request_counts"]["completed"]) == ("in_progress", 3)
        batch = (await lab.http.post(f"/v1/batches/{one}/cancel")).json()
        assert (batch["status"], batch["output_file_id"]) == ("cancelling", None)
        assert (await lab.http.post(f"/v1/batches/{one}/cancel")).json()["status"] == "cancelling"
        batch = await lab.poll(one, after=30)
        assert (batch["status"], batch["error_file_id"]) == ("cancelled", None)
        assert ids(await lab.results(batch["output_file_id"])) == ["l0", "l1", "l2", "l3"]
        late = await lab.http.post(f"/v1/batches/{one}/cancel")
        assert late.status_code == 409
        batch = await lab.poll(two, after=86400)
        assert (batch["status"], batch["request_counts"]) == ("expired", {"total": 5, "completed": 3, "failed": 2})


async def test_a_status_that_no_client_knows():
    async with batch_lab(batch_default=BatchScript(end="weird")) as lab:
        batch = await lab.submit(FIVE)
        assert (await lab.poll(batch["id"], after=9e4))["status"] == "weird"
        await lab.http.post(f"/v1/batches/{batch['id']}/cancel")
        assert (await lab.poll(batch["id"]))["status"] == "cancelled"


async def test_results_that_do_not_match_what_was_asked():
    script = BatchScript(missing=[0], doubled=["l2"], strangers=["who"], shuffle=3)
    async with batch_lab(batch_default=script) as lab:
        batch = await lab.poll((await lab.submit(FIVE))["id"])
        found = ids(await lab.results(batch["output_file_id"]))
        assert sorted(found) == ["l1", "l2", "l2", "l3", "l4", "who"]
        assert found != sorted(found)
        assert lab.provider.billed.all == Bill(batch=4)
        assert lab.provider.billed.ids_paid_twice() == {}


async def test_files_are_found_late():
    script = BatchScript(results_after=5)
    async with batch_lab(batch_default=script, file_delay=2) as lab:
        file = await lab.upload(jsonl(FIVE))
        assert (await lab.create(file["id"])).status_code == 404
        assert (await lab.get(f"/v1/files/{file['id']}")).status_code == 404
        lab.clock.now += 2
        batch = await lab.poll((await lab.create(file["id"])).json()["id"])
        assert batch["status"] == "completed"
        path = f"/v1/files/{batch['output_file_id']}/content"
        assert (await lab.get(path)).status_code == 404
        lab.clock.now += 5
        assert (await lab.get(path)).status_code == 200


async def test_a_batch_vanishes():
    async with batch_lab(batch_default=BatchScript(vanishes_after=9)) as lab:
        batch = await lab.submit(FIVE)
        lab.clock.now += 9
        assert (await lab.get(f"/v1/batches/{batch['id']}")).status_code == 404
        assert (await lab.get("/v1/batches")).json()["data"] == []


async def test_counts_may_be_null_and_files_empty():
    async with batch_lab(batch_default=BatchScript(counts=False, empty_files=True)) as lab:
        batch = await lab.poll((await lab.submit(FIVE))["id"])
        assert batch["request_counts"] is None
        assert await lab.results(batch["error_file_id"]) == []


async def test_a_creation_that_worked_and_was_not_answered():
    lost = BatchScript(on_create=Reply(drop=True))
    async with batch_lab(batch_script=[lost, BatchScript(on_create=Reply.error(503))]) as lab:
        file = await lab.upload(jsonl(FIVE))
        with pytest.raises(httpx2.TransportError):
            await lab.create(file["id"], metadata={"key": "1"})
        assert (await lab.create(file["id"], metadata={"key": "2"})).status_code == 503
        found = (await lab.get("/v1/batches")).json()["data"]
        assert [batch["metadata"]["key"] for batch in found] == ["2", "1"]
        assert lab.provider.billed.ids_paid_twice() == {f"l{number}": 2 for number in range(5)}


async def test_polls_and_downloads_fail_by_the_script():
    script = BatchScript(
        on_poll=[Reply.error(503), Reply(drop=True), Reply(body="<html>")], on_results=[Reply(cut_after=20)]
    )
    async with batch_lab(batch_default=script) as lab:
        batch = await lab.submit(FIVE)
        other = await lab.submit(FIVE)
        path = f"/v1/batches/{batch['id']}"
        assert (await lab.get(path)).status_code == 503
        with pytest.raises(httpx2.TransportError):
            await lab.get(path)
        assert (await lab.get(path)).text == "<html>"
        batch = (await lab.get(path)).json()
        assert (await lab.get(f"/v1/batches/{other['id']}")).status_code == 503
        with pytest.raises(httpx2.TransportError):
            await lab.results(batch["output_file_id"])
        assert len(await lab.results(batch["output_file_id"])) == 5


async def test_any_route_can_be_scripted():
    routes = {"POST /v1/files": [Reply.error(500)], "GET /v1/batches*": [Reply.error(429), Reply(delay=0.01)]}
    async with batch_lab(routes=routes) as lab:
        with pytest.raises(AssertionError, match="scripted"):
            await lab.upload(b"{}")
        assert (await lab.get("/v1/files")).json()["data"] == []
        batch = await lab.submit(FIVE)
        assert (await lab.get("/v1/batches")).status_code == 429
        assert (await lab.poll(batch["id"]))["status"] == "completed"


async def test_enqueued_tokens_are_a_quota_that_ends_give_back():
    script = BatchScript(validating=1, running=10)
    async with batch_lab(batch_default=script, batch_limits=BatchLimits(enqueued_tokens=70)) as lab:
        first, second = await lab.submit(FIVE), await lab.submit(FIVE)
        other_model = [line("a", body=params("to a", model="other"))]
        third = await lab.submit(other_model)
        assert (await lab.poll(first["id"], after=1))["status"] == "in_progress"
        batch = await lab.poll(second["id"])
        assert (batch["status"], codes(batch)) == ("failed", [("token_limit_exceeded", None)])
        assert (await lab.poll(third["id"]))["status"] == "in_progress"
        assert (await lab.poll(first["id"], after=10))["status"] == "completed"
        again = await lab.submit(FIVE)
        assert (await lab.poll(again["id"], after=1))["status"] == "in_progress"


async def test_creations_are_counted_by_the_hour():
    async with batch_lab(batch_limits=BatchLimits(creations_per_hour=2)) as lab:
        file = await lab.upload(jsonl(FIVE))
        answers = [await lab.create(file["id"]) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[2].headers["retry-after"] == "3600"
        lab.clock.now += 3601
        assert (await lab.create(file["id"])).status_code == 200


async def test_accounts_see_only_what_is_theirs():
    async with batch_lab(accounts={"a": "one", "new-a": "one", "b": "two"}) as lab:
        batch = await lab.submit(FIVE)
        for key, status in (("a", 200), ("new-a", 200), ("b", 404), ("c", 401)):
            assert (await lab.get(f"/v1/batches/{batch['id']}", key=key)).status_code == status
            assert (await lab.get(f"/v1/files/{batch['input_file_id']}", key=key)).status_code == status
        assert (await lab.get("/v1/batches", key="b")).json()["data"] == []
        assert (await lab.create(batch["input_file_id"], key="b")).status_code == 404


async def test_lists_go_page_by_page():
    async with batch_lab() as lab:
        made = [(await lab.submit([line("a")]))["id"] for _ in range(5)]
        first = (await lab.get("/v1/batches", limit=2)).json()
        second = (await lab.get("/v1/batches", limit=3, after=first["last_id"])).json()
        assert [one["id"] for one in first["data"] + second["data"]] == made[::-1]
        assert (first["has_more"], second["has_more"]) == (True, False)
        for wrong in ({"limit": 0}, {"limit": 101}, {"limit": "x"}, {"after": "batch_none"}):
            assert (await lab.get("/v1/batches", **wrong)).status_code == 400
        files = (await lab.get("/v1/files", purpose="batch", limit=100)).json()
        assert [one["purpose"] for one in files["data"]] == ["batch"] * 5


async def test_files_expire():
    async with batch_lab() as lab:
        fields = {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
        made = await lab.http.post("/v1/files", data=fields, files={"file": ("lines.jsonl", jsonl(FIVE))})
        assert made.json()["expires_at"] - made.json()["created_at"] == 3600
        expiry = {"anchor": "created_at", "seconds": 7200}
        batch = await lab.create(made.json()["id"], output_expires_after=expiry)
        output = (await lab.poll(batch.json()["id"], after=3600))["output_file_id"]
        assert (await lab.get(f"/v1/files/{made.json()['id']}")).status_code == 404
        assert len(await lab.results(output)) == 5
        lab.clock.now += 7200
        assert (await lab.get(f"/v1/files/{output}/content")).status_code == 404


@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"x", "multipart/form-data; boundary=b"), (b"{}", "application/json"), (b"", "multipart/form-data")],
)
async def test_an_upload_without_its_parts_is_refused(body: bytes, kind: str):
    async with batch_lab() as lab:
        answer = await lab.http.post("/v1/files", content=body, headers={"content-type": kind})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")
        assert (await lab.http.post("/v1/batches", content=b"[]")).status_code == 400
        assert (await lab.http.put("/v1/files", content=b"")).status_code == 405


async def test_files_are_read_and_deleted():
    async with batch_lab() as lab:
        content = b"a\r\n\r\n--b\r\n" + bytes(range(256))
        file = await lab.upload(content, purpose="user_data")
        assert (file["bytes"], file["filename"], file["purpose"]) == (len(content), "lines.jsonl", "user_data")
        assert (await lab.get(f"/v1/files/{file['id']}/content")).content == content
        assert (await lab.create(file["id"])).status_code == 400
        deleted = await lab.http.delete(f"/v1/files/{file['id']}")
        assert deleted.json() == {"id": file["id"], "object": "file", "deleted": True}
        assert (await lab.get(f"/v1/files/{file['id']}")).status_code == 404


async def test_what_was_paid_at_which_price():
    async with batch_lab() as lab:
        await lab.submit(FIVE)
        for stream in (False, True):
            await lab.http.post("/v1/chat/completions", json={**params("to l1"), "stream": stream})
        lab.provider.script.append(Reply.error(500))
        await lab.http.post("/v1/chat/completions", json=params("to l2"))
        billed = lab.provider.billed
        assert billed.all == Bill(sync=2, batch=5)
        assert billed.of(params("to l1")) == Bill(sync=2, batch=1)
        assert billed.of(params("to l2")) == Bill(batch=1)
        assert list(billed.requests_paid_twice().values()) == [Bill(sync=2, batch=1)]
        assert billed.of_id("l2") == 1


async def test_batches_outlast_a_restart_and_large_bodies_leave_the_log():
    async with batch_lab(batch_default=BatchScript(running=5)) as lab:
        batch = await lab.submit([line("a", "x" * (2 << 20))])
        upload = lab.provider.log[0]
        assert (upload.body, upload.size > 2 << 20, len(upload.body_hash)) == (b"", True, 64)
        assert upload.connection == lab.provider.log[1].connection
        await lab.provider.restart()
        batch = await lab.poll(batch["id"], after=5)
        assert batch["status"] == "completed"
        assert json.loads(lab.provider.log[1].body)["endpoint"] == "/v1/chat/completions"
        assert lab.provider.log[2].connection != upload.connection


async def test_batches_take_nothing_from_the_limits_of_the_models():
    from orchestra.testing import Limits

    async with batch_lab(limits=Limits(requests_per_minute=1)) as lab:
        for _ in range(3):
            await lab.submit(FIVE)
        assert (await lab.http.post("/v1/chat/completions", json=params("x"))).status_code == 200


@pytest.mark.parametrize("wrong", [{"running": -1}, {"validating": float("nan")}, {"answered": 1.5}])
def test_no_such_script(wrong: dict[str, float]):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        BatchScript(**wrong)  # type: ignore[arg-type]
