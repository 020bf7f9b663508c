"""Responses in the background as batches of one line: what is asked, and what is read of the answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai.types.responses import ResponseError, ResponseStatus, response_create_params
from openai.types.responses.response_create_params import BackgroundOptions
from pydantic import TypeAdapter

from orchestra.providers import Endpoint
from orchestra.providers.base import FormatError
from orchestra.providers.batches import BatchForm, BatchLine, BatchOrder, LineResult, forms_of_kind
from orchestra.providers.batches.background import LINE_FIELD, Background2Hours, Background8Hours

BODY: dict[str, Any] = {"model": "gpt-x", "input": 'say "ä\n\ud800"', "max_output_tokens": 16}
ORDER = BatchOrder("key-1", "/v1/responses", "gpt-x", window=28_800.0)
FORM = Background8Hours()
ANSWER: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1_795_950_000,
    "status": "completed",
    "metadata": {LINE_FIELD: "0123456789ab-7"},
    "output": [],
    "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
    "background": True,
}


def codes() -> list[str]:
    return list(ResponseError.model_fields["code"].annotation.__args__)  # type: ignore[union-attr]


async def asked(form: BatchForm = FORM, **fields: Any) -> tuple[Any, Any]:
    """Return the request that a line becomes, and its body."""
    line = form.line(ORDER, BatchLine("0123456789ab-7", json.dumps({**BODY, **fields}).encode()))
    assert line.endswith(b"\n")
    assert b"\n" not in line[:-1]

    async def each() -> AsyncIterator[bytes]:
        yield line[:-1]

    ask = form.create(ORDER, each(), len(line))
    assert not isinstance(ask.body, bytes)
    body = b"".join([piece async for piece in ask.body])
    assert dict(ask.headers) == {"content-type": "application/json", "content-length": str(len(body))}
    return ask, json.loads(body)


def read(**told: Any) -> LineResult:
    reader = FORM.reader(FORM.poll("resp_1"))
    body = json.dumps({**ANSWER, **told}, indent=2).encode()
    assert reader.feed(body[:20]) == []
    assert reader.feed(body[20:]) == []
    (result,) = reader.finish()
    assert reader.unreadable == 0
    return result


# asking


@pytest.mark.parametrize(
    ("form", "window", "seconds", "factor"),
    [(Background8Hours(), "8h", 28_800.0, 0.6), (Background2Hours(), "2h", 7_200.0, 0.7)],
)
async def test_a_line_becomes_a_response_of_its_own(
    form: BatchForm, window: str, seconds: float, factor: float
) -> None:
    ask, body = await asked(form, metadata={"mine": "1"}, store=True)
    assert (ask.method, ask.path) == ("POST", "/responses")
    TypeAdapter(response_create_params.ResponseCreateParamsNonStreaming).validate_python(body)
    assert body == {
        **BODY,
        "background": True,
        "background_options": {"completion_window": window},
        "store": True,
        "service_tier": "default",
        "metadata": {"mine": "1", LINE_FIELD: "0123456789ab-7"},
    }
    traits = form.traits
    assert (traits.windows, traits.price_factor, traits.max_requests) == ((seconds,), factor, 1)


def test_the_windows_are_those_that_the_official_client_knows() -> None:
    known = TypeAdapter(BackgroundOptions)
    for form in (Background8Hours, Background2Hours):
        known.validate_python({"completion_window": form.window})
    with pytest.raises(ValueError, match="completion_window"):
        known.validate_python({"completion_window": "24h"})


async def test_nothing_is_added_to_the_metadata_of_a_line_that_has_none() -> None:
    _, body = await asked(metadata=None, stream=False, service_tier="auto")
    assert body["metadata"] == {LINE_FIELD: "0123456789ab-7"}
    assert body["stream"] is False
    assert body["service_tier"] == "default"


@pytest.mark.parametrize(
    ("fields", "rides"),
    [
        ({}, True),
        ({"store": True}, True),
        ({"store": None}, True),
        ({"stream": False}, True),
        ({"service_tier": "default"}, True),
        ({"metadata": {str(number): "x" for number in range(15)}}, True),
        ({"metadata": {str(number): "x" for number in range(16)}}, False),
        ({"metadata": {LINE_FIELD: "theirs"}}, False),
        ({"metadata": "no object"}, False),
        ({"store": False}, False),
        ({"stream": True}, False),
        ({"service_tier": "flex"}, False),
        ({"service_tier": "priority"}, False),
        ({"background": True}, False),
        ({"background_options": {"completion_window": "soonest"}}, False),
    ],
)
def test_what_rides(fields: dict[str, Any], rides: bool) -> None:
    assert FORM.takes({**BODY, **fields}) is rides


def test_looking_and_cancelling() -> None:
    assert FORM.poll("resp_/1")[:2] == ("GET", "/responses/resp_%2F1")
    assert FORM.cancel("resp_1")[:2] == ("POST", "/responses/resp_1/cancel")


def test_it_takes_no_files_and_has_no_list() -> None:
    assert not FORM.takes_files
    assert FORM.traits.carrier == "none"
    for refused in (
        lambda: FORM.create(ORDER, "file-1"),
        lambda: FORM.list(None),
        lambda: FORM.read_list(b"{}", None),
    ):
        with pytest.raises(TypeError):
            refused()


def test_only_openai_has_them_and_its_batches_come_first() -> None:
    assert [form.label for form in forms_of_kind("openai")] == ["batch", "background 8h", "background 2h"]
    assert [form.via for form in forms_of_kind("azure")] == ["batch"]
    assert forms_of_kind("fireworks") == ()
    assert FORM.traits.endpoints == {Endpoint.RESPONSES}


# reading


def test_every_status_that_there_is_is_known() -> None:
    assert set(FORM.endings()) == set(ResponseStatus.__args__)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("status", "ended", "finished"),
    [
        ("queued", False, 0),
        ("in_progress", False, 0),
        ("pondering", False, 0),
        ("completed", True, 1),
        ("incomplete", True, 1),
        ("failed", True, 0),
        ("cancelled", True, 0),
    ],
)
def test_statuses(status: str, ended: bool, finished: int) -> None:
    state = FORM.read(json.dumps({**ANSWER, "status": status}).encode())
    assert (state.id, state.status, state.ended, state.finished, state.total) == (
        "resp_1",
        status,
        ended,
        finished,
        1,
    )
    assert state.created == 1_795_950_000.0
    assert state.failed is None  # that would be of more than one line
    assert bool(FORM.results(state)) is (ended and status != "cancelled")


@pytest.mark.parametrize("body", [b"[]", b"no json", b'{"id":"resp_1"}', b'{"status":"queued"}'])
def test_what_is_no_response(body: bytes) -> None:
    with pytest.raises(FormatError):
        FORM.read(body)


@pytest.mark.parametrize("status", ["completed", "incomplete"])
def test_an_answer_is_handed_on_as_it_would_have_come_without_us(status: str) -> None:
    result = read(status=status, metadata={LINE_FIELD: "0123456789ab-7", "mine": "1"})
    assert (result.kind, result.custom_id, result.status) == ("answered", "0123456789ab-7", 200)
    assert json.loads(result.body or b"") == {**ANSWER, "status": status, "metadata": {"mine": "1"}}
    assert json.loads(read().body or b"")["metadata"] == {}


@pytest.mark.parametrize("code", codes())
def test_every_code_that_there_is(code: str) -> None:
    result = read(status="failed", error={"code": code, "message": "why"}, usage=None)
    by_chance = {"server_error", "rate_limit_exceeded", "vector_store_timeout", "failed_to_download_image"}
    assert (result.kind, result.code, result.message) == (
        "unserved" if code in by_chance else "refused",
        code,
        "why",
    )
    if result.kind == "refused":
        assert (result.status, json.loads(result.body or b"")) == (
            400,
            {"error": {"code": code, "message": "why"}},
        )
    else:
        assert result.body is None


@pytest.mark.parametrize("error", [None, "why", {"code": "a_new_one", "message": "m"}, {}])
def test_a_failure_of_which_nothing_is_known_may_be_tried_again(error: Any) -> None:
    assert read(status="failed", error=error).kind == "unserved"


def test_a_cancelled_one_brings_nothing() -> None:
    assert read(status="cancelled") == LineResult("0123456789ab-7", "unserved", code="cancelled")


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"id":"resp_1","status":"completed","metadata":{}}'])
def test_what_is_no_result_is_counted(body: bytes) -> None:
    reader = FORM.reader(FORM.poll("resp_1"))
    reader.feed(body)
    assert reader.finish() == []
    assert reader.unreadable == 1


def test_a_refusal_of_the_window_itself_is_known() -> None:
    assert FORM.is_unknown("acc: POST /v1/responses answered 400: Unknown parameter: 'background_options'.")
    assert not FORM.is_unknown("acc: POST /v1/responses answered 400 invalid_prompt: no")
