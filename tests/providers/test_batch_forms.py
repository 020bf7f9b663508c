"""The forms of batch endpoints: what they read. Samples are validated wire samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestra.kinds import KINDS
from orchestra.providers import Endpoint, FormatError
from orchestra.providers.batches import Ask, BatchForm, BatchOrder, BatchState, LineResult, form_of_kind

SAMPLES = Path(__file__).parent.parent / "samples"
KEY = "01JSAMPLE"
DAY = 86_400.0
ANY = Ask("GET", "/x")


def form(kind: str) -> BatchForm:
    found = form_of_kind(kind)
    assert found is not None
    return found


def sample(name: str) -> Any:
    return json.loads((SAMPLES / f"{name}.json").read_text())


def state(kind: str, told: Any) -> BatchState:
    return form(kind).read(json.dumps(told).encode())


def lines(kind: str, name: str, ask: Ask = ANY) -> list[LineResult]:
    reader = form(kind).reader(ask)
    results = reader.feed((SAMPLES / f"{name}.jsonl").read_bytes()) + reader.finish()
    assert reader.unreadable == 0
    return results


def kinds_of(results: list[LineResult]) -> dict[str, tuple[str, int | None]]:
    return {result.custom_id: (result.kind, result.status) for result in results}


def one(kind: str, told: Any) -> LineResult:
    """Read a single line."""
    reader = form(kind).reader(ANY)
    (result,) = reader.feed(json.dumps(told).encode() + b"\n")
    return result


# which kinds have one


def test_the_kinds_that_have_batches() -> None:
    have = {kind for kind in KINDS if form_of_kind(kind) is not None}
    by_default = {kind for kind in have if KINDS[kind].batches_by_default}
    assert by_default == {"openai", "anthropic", "gemini", "azure", "mistral", "groq", "together"}
    assert have - by_default == {"vllm", "sglang", "llamacpp", "openai-compatible"}
    assert form_of_kind("fireworks") is None


def test_the_table_that_the_router_reads() -> None:
    assert {kind: form(kind).traits.carrier for kind in KINDS if KINDS[kind].batches} == {
        "openai": "metadata",
        "azure": "metadata",
        "groq": "metadata",
        "mistral": "metadata",
        "vllm": "metadata",
        "sglang": "metadata",
        "llamacpp": "metadata",
        "openai-compatible": "metadata",
        "gemini": "name",
        "together": "file",
        "anthropic": "custom_id",
    }
    assert form("groq").traits.endpoints == {Endpoint.CHAT}
    assert form("groq").traits.windows == tuple(days * DAY for days in range(1, 8))
    assert form("azure").traits.hard_expiry is None
    assert form("gemini").traits.hard_expiry == 2 * DAY
    assert not form("gemini").traits.keeps_finished
    assert form("openai-compatible").traits.price_factor == 1.0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].batches])
def test_every_endpoint_is_one_of_the_providers(kind: str) -> None:
    found = form(kind)
    for endpoint in found.traits.endpoints:
        path = (
            found.dialect.root + endpoint if endpoint is not Endpoint.GENERATE_CONTENT else f"/models/m{endpoint}"
        )
        assert found.dialect.endpoint(path) is endpoint
    assert set(found.endings().values()) == {True, False}


def test_a_key_that_could_break_out_of_its_place_is_refused() -> None:
    with pytest.raises(ValueError, match="no key"):
        BatchOrder('k"\r\n', "/v1/chat/completions", "m")


# batches: OpenAI and those who do as it


def test_openai_statuses() -> None:
    told = sample("openai_batch_objects_by_status")
    states = {status: state("openai", one) for status, one in told.items()}
    assert {status for status, one in states.items() if one.ended} == {
        "completed",
        "failed",
        "expired",
        "cancelled",
    }
    assert all(one.key == KEY and one.input_file == "file-InSample1" for one in states.values())
    assert states["completed"].files == ("file-OutSample1", "file-ErrSample1")
    assert states["expired"].files == ("file-OutSample1", "file-ErrSample1")
    assert states["cancelled"].files == ("file-OutSample1",)
    assert (states["in_progress"].total, states["in_progress"].finished) == (4, 1)
    assert states["validating"].total is None
    assert (states["completed"].created, states["completed"].expires) == (1795950100.0, 1796036500.0)
    assert {status for status, one in states.items() if one.failed} == {"failed"}


def test_a_queue_without_room_fails_the_batch() -> None:
    told = sample("openai_batch_objects_by_status")["failed"]
    failed = state("openai", told)
    assert failed.queue_full
    assert failed.failed is not None
    assert failed.failed[0] == "token_limit_exceeded"
    assert "queued batch tokens" in failed.failed[1]
    told["errors"]["data"][0]["code"] = "invalid_json_line"
    assert not state("openai", told).queue_full
    assert state("azure", {**told, "errors": {"data": [{"code": "too_many_tasks", "message": "m"}]}}).queue_full
    assert state("openai", {**told, "errors": None}).failed == ("failed", "the provider does not say why")


def test_ids_that_are_null_or_empty_are_none() -> None:
    told = sample("openai_batch_object")
    only_errors = state("openai", {**told, "output_file_id": "", "request_counts": None, "metadata": None})
    assert only_errors.files == ("file-ErrSample1",)
    assert (only_errors.total, only_errors.finished, only_errors.key) == (None, None, None)
    assert state("openai", {**told, "output_file_id": None, "error_file_id": ""}).files == ()


@pytest.mark.parametrize(
    ("kind", "name", "field"),
    [
        ("openai", "openai_batch_object", "status"),
        ("groq", "groq_batch_object", "status"),
        ("mistral", "mistral_batch_job", "status"),
        ("together", "together_batch_object", "status"),
        ("anthropic", "anthropic_batch_object", "processing_status"),
    ],
)
def test_an_unknown_status_is_no_end(kind: str, name: str, field: str) -> None:
    told = sample(name)
    assert state(kind, told).ended
    weird = state(kind, {**told, field: "weird"})
    assert (weird.status, weird.ended, weird.failed) == ("weird", False, None)


def test_other_forms_of_openais() -> None:
    assert state("groq", sample("groq_batch_object")).key == KEY
    job = state("mistral", sample("mistral_batch_job"))
    assert (job.key, job.ended, job.total, job.finished) == (KEY, True, 2, 2)
    assert job.input_file == "f1a90000-0000-4000-8000-000000000001"
    assert job.files == ("f1a90000-0000-4000-8000-000000000002", "f1a90000-0000-4000-8000-000000000003")
    created = state("together", sample("together_batch_create_response"))
    assert (created.status, created.ended, created.input_file) == ("VALIDATING", False, "file-3f0asample")
    assert created.expires == 1796047200.0
    ended = state("together", sample("together_batch_object"))
    assert (ended.ended, ended.files) == (True, ("file-3f0aout", "file-3f0aerr"))


def test_jobs_that_failed_as_a_whole() -> None:
    job = {**sample("mistral_batch_job"), "status": "FAILED", "errors": [{"message": "no such model", "count": 2}]}
    assert state("mistral", job).failed is None  # it has results
    assert state("mistral", {**job, "output_file": None, "error_file": ""}).failed == ("FAILED", "no such model")
    together = {**sample("together_batch_object"), "status": "FAILED", "error": "bad file"}
    together |= {"output_file_id": None, "error_file_id": None}
    assert state("together", together).failed == ("FAILED", "bad file")


# batches: Anthropic and Gemini


def test_anthropic_statuses() -> None:
    states = {name: state("anthropic", one) for name, one in sample("anthropic_batch_objects_by_status").items()}
    assert {name for name, one in states.items() if one.ended} == {"ended"}
    assert all(one.total == 5 for one in states.values())
    assert (states["in_progress"].finished, states["ended"].finished) == (0, 5)
    assert states["ended"].created == pytest.approx(1795960800.12)


def test_results_of_anthropic_are_never_asked_at_the_address_that_it_tells() -> None:
    told = {**sample("anthropic_batch_object"), "results_url": "https://elsewhere.example/v1/steal"}
    (ask,) = form("anthropic").results(state("anthropic", told))
    assert (ask.method, ask.path) == ("GET", "/v1/messages/batches/msgbatch_01SampleB/results")
    assert form("anthropic").results(state("anthropic", {**told, "processing_status": "in_progress"})) == []


def test_gemini_operations() -> None:
    pending = state("gemini", sample("gemini_batch_operation_pending"))
    assert (pending.id, pending.key, pending.ended) == ("batches/sample0001", "orchestra-01JSAMPLE", False)
    done = state("gemini", sample("gemini_batch_operation_done_inline"))
    assert (done.ended, done.failed, done.total, done.finished) == (True, None, 2, 2)
    assert [ask.path for ask in form("gemini").results(done)] == ["/v1beta/batches/sample0001"]
    filed = state("gemini", sample("gemini_batch_operation_done_file"))
    assert [ask.path for ask in form("gemini").results(filed)] == [
        "/download/v1beta/files/batch-sample0001:download?alt=media"
    ]
    expired = state("gemini", sample("gemini_batch_operation_expired"))
    assert (expired.ended, expired.failed) == (True, None)
    assert form("gemini").results(expired) == []


@pytest.mark.parametrize("prefix", ["BATCH_STATE_", "JOB_STATE_"])
def test_gemini_states_under_both_spellings(prefix: str) -> None:
    told = sample("gemini_batch_operation_pending")

    def ends(word: str) -> bool:
        return state("gemini", {**told, "metadata": {**told["metadata"], "state": prefix + word}}).ended

    assert not any(ends(word) for word in ("PENDING", "RUNNING", "QUEUED", "NEW_WORD"))
    assert all(ends(word) for word in ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "PARTIALLY_SUCCEEDED"))


def test_a_gemini_batch_that_failed() -> None:
    told = sample("gemini_batch_operation_expired")
    told["metadata"]["state"] = "BATCH_STATE_FAILED"
    told["error"] = {"code": 8, "message": "too many enqueued tokens"}
    failed = state("gemini", told)
    assert failed.failed == ("RESOURCE_EXHAUSTED", "too many enqueued tokens")
    assert failed.queue_full
    told["error"]["code"] = 3
    assert not state("gemini", told).queue_full


# lists


def test_lists_and_their_cursors() -> None:
    page = sample("openai_batch_list")
    states, cursor = form("openai").read_list(json.dumps(page).encode(), None)
    assert ([one.id for one in states], cursor) == (["batch_6b1f0sample"], None)
    _, cursor = form("openai").read_list(json.dumps({**page, "has_more": True}).encode(), None)
    assert form("openai").list(cursor).path == "/batches?limit=100&after=batch_6b1f0sample"
    page = {**sample("anthropic_batch_list"), "has_more": True}
    states, cursor = form("anthropic").read_list(json.dumps(page).encode(), None)
    assert [one.id for one in states] == ["msgbatch_01SampleB"]
    assert form("anthropic").list(cursor).path == "/v1/messages/batches?limit=100&after_id=msgbatch_01SampleB"
    jobs = [sample("together_batch_object")]
    assert form("together").read_list(json.dumps(jobs).encode(), None)[0][0].status == "COMPLETED"
    page = {"object": "list", "data": [sample("mistral_batch_job")] * 100, "total": 150}
    states, cursor = form("mistral").read_list(json.dumps(page).encode(), None)
    assert (len(states), cursor) == (100, "1")
    assert form("mistral").read_list(json.dumps(page).encode(), "1")[1] is None
    operations = {"operations": [sample("gemini_batch_operation_pending")], "nextPageToken": "a/b"}
    states, cursor = form("gemini").read_list(json.dumps(operations).encode(), None)
    assert ([one.id for one in states], form("gemini").list(cursor).path) == (
        ["batches/sample0001"],
        "/v1beta/batches?pageSize=20&pageToken=a%2Fb",
    )


@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini", "mistral", "together"])
@pytest.mark.parametrize("body", [b"", b"null", b"[1]", b'"x"', b"{}", b'{"id":7}', b"<html>", b"[" * 100_000])
def test_what_is_no_batch(kind: str, body: bytes) -> None:
    with pytest.raises(FormatError):
        form(kind).read(body)
    try:
        states, cursor = form(kind).read_list(body, None)
    except FormatError:
        return
    assert (list(states), cursor) == ([], None)


def test_an_uploaded_file() -> None:
    assert form("openai").read_upload((SAMPLES / "openai_file_object.json").read_bytes()) == "file-InSample1"
    with pytest.raises(FormatError):
        form("openai").read_upload(b'{"id":""}')
    with pytest.raises(TypeError, match="no files"):
        form("anthropic").read_upload(b"{}")


# results


def test_results_of_openai() -> None:
    good = lines("openai", "openai_batch_output")
    assert kinds_of(good) == {"bulk-000001": ("answered", 200), "bulk-000002": ("answered", 200)}
    assert json.loads(good[0].body or b"")["choices"][0]["message"]["content"] == "billing"
    assert good[0].request_id == "req_b2sample"
    refused, expired = lines("openai", "openai_batch_error")
    assert (refused.kind, refused.status, refused.code) == ("refused", 400, "integer_below_min_value")
    assert json.loads(refused.body or b"")["error"]["param"] == "max_completion_tokens"
    assert (expired.kind, expired.status, expired.code, expired.body) == ("unserved", None, "batch_expired", None)


def test_results_of_vllm() -> None:
    assert kinds_of(lines("vllm", "vllm_run_batch_output")) == {"bulk-000001": ("answered", 200)}


def test_results_of_anthropic() -> None:
    results = lines("anthropic", "anthropic_batch_results")
    assert kinds_of(results) == {
        "bulk-000002": ("answered", 200),
        "bulk-000001": ("answered", 200),
        "bulk-000003": ("refused", 400),
        "bulk-000004": ("unserved", None),
        "bulk-000005": ("unserved", None),
    }
    assert json.loads(results[0].body or b"")["content"][0]["text"] == "billing"
    assert json.loads(results[2].body or b"")["error"]["type"] == "invalid_request_error"
    assert results[2].request_id == "req_011SampleR3"


@pytest.mark.parametrize("cut", [1, 7, 100, 10_000])
def test_results_of_gemini(cut: int) -> None:
    found = form("gemini")
    reader = found.reader(found.poll("batches/sample0001"))
    body = (SAMPLES / "gemini_batch_operation_done_inline.json").read_bytes()
    results = [
        one for at in range(0, len(body), cut) for one in reader.feed(body[at : at + cut])
    ] + reader.finish()
    assert kinds_of(results) == {"bulk-000001": ("answered", 200), "bulk-000002": ("refused", 400)}
    assert json.loads(results[0].body or b"")["responseId"] == "sampleGemB1"
    assert json.loads(results[1].body or b"")["error"] == {
        "status": "INVALID_ARGUMENT",
        "code": 400,
        "message": "Request contains an invalid argument.",
    }
    filed = lines("gemini", "gemini_batch_output", Ask("GET", "/download/v1beta/files/x:download?alt=media"))
    assert kinds_of(filed) == {"bulk-000001": ("answered", 200), "bulk-000002": ("refused", 400)}


def test_answers_of_gemini_without_a_key_belong_to_nobody() -> None:
    told = sample("gemini_batch_operation_done_inline")
    for one in told["response"]["inlinedResponses"]["inlinedResponses"]:
        one.pop("metadata")
    reader = form("gemini").reader(form("gemini").poll("batches/b"))
    assert reader.feed(json.dumps(told).encode()) + reader.finish() == []
    assert reader.unreadable == 2


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "refused"), (401, "refused"), (404, "refused"), (413, "refused"), (422, "refused")]
    + [(status, "unserved") for status in (408, 409, 425, 429, 499 + 1, 501, 503, 529)],
)
def test_what_a_status_makes_of_a_line(status: int, kind: str) -> None:
    error = {"message": "m", "type": "t", "param": None, "code": "c"}
    response = {"status_code": status, "request_id": "r", "body": {"error": error}}
    result = one("openai", {"custom_id": "a", "response": response, "error": None})
    assert (result.kind, result.status, result.code, result.message) == (kind, status, "c", "m")
    assert (result.body is None) == (kind == "unserved")


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        ({"code": "batch_expired", "message": "m"}, "unserved", None),
        ({"code": "batch_cancelled", "message": "m"}, "unserved", None),
        ({"code": "weird", "message": "m"}, "unserved", None),
        ({"code": "invalid_request", "message": "m"}, "refused", None),
        ({"code": 400, "message": "m", "type": "BadRequestError"}, "refused", 400),
        ({"code": "422", "message": "m"}, "refused", 422),
        ({"code": 503, "message": "m"}, "unserved", 503),
    ],
)
def test_a_line_with_an_error_and_no_response(error: dict[str, Any], kind: str, status: int | None) -> None:
    result = one("openai", {"custom_id": "a", "response": None, "error": error})
    assert (result.kind, result.status, result.message) == (kind, status, "m")
    if kind == "refused":
        assert json.loads(result.body or b"") == {"error": error}


def test_a_spent_account_is_not_the_lines_fault() -> None:
    spent = {"error": {"message": "You exceeded your quota.", "type": "insufficient_quota", "code": None}}
    response = {"status_code": 429, "body": spent}
    assert one("openai", {"custom_id": "a", "response": response}).kind == "unserved"
    message = "You have reached your specified API usage limits. You will regain access on 2026-12-01."
    told = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    assert one("anthropic", {"custom_id": "a", "result": {"type": "errored", "error": told}}).kind == "unserved"


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("invalid_request_error", "refused"),
        ("request_too_large", "refused"),
        ("not_found_error", "refused"),
        ("rate_limit_error", "unserved"),
        ("api_error", "unserved"),
        ("timeout_error", "unserved"),
        ("overloaded_error", "unserved"),
        ("a_new_error", "unserved"),
    ],
)
def test_what_anthropics_errors_make_of_a_line(word: str, kind: str) -> None:
    told = {"type": "error", "error": {"type": word, "message": "m"}, "request_id": "r"}
    result = one("anthropic", {"custom_id": "a", "result": {"type": "errored", "error": told}})
    assert (result.kind, result.code, result.request_id) == (kind, word, "r")


@pytest.mark.parametrize("code", [1, 2, 4, 8, 10, 13, 14, 429, 503])
def test_googles_own_trouble_is_not_the_lines_fault(code: int) -> None:
    reader = form("gemini").reader(Ask("GET", "/download/v1beta/files/f:download"))
    (result,) = reader.feed(json.dumps({"key": "a", "error": {"code": code, "message": "m"}}).encode() + b"\n")
    assert result.kind == "unserved"


def test_lines_that_leave_things_out() -> None:
    body = {"choices": []}
    assert one("together", {"custom_id": "a", "response": {"body": body}}).status == 200
    assert (
        one("together", {"custom_id": "a", "response": {"body": {"error": {"message": "m"}}}}).kind == "unserved"
    )
    assert one("openai", {"custom_id": "a", "response": {"status_code": 200, "body": None}}).kind == "unserved"
    assert one("openai", {"custom_id": "a"}).kind == "unserved"
    assert one("openai", {"custom_id": "a", "response": "x", "error": "y"}).kind == "unserved"
    assert one("anthropic", {"custom_id": "a", "result": {"type": "succeeded"}}).kind == "unserved"
