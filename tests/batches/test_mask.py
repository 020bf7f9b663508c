"""A key that a provider quotes gets into no error, no log and no ledger."""

from __future__ import annotations

import json
from typing import Any

import pytest
from batch_client_lab import SECRET, everything, order_for, ready_client, sample

from orchestra.batches import BatchRefused
from orchestra.batches.mask import Mask
from orchestra.providers.batches import LineResult

QUOTED = f"Incorrect key {SECRET}"


@pytest.mark.parametrize("before", [0, 250, 278, 285, 295, 299])
async def test_it_is_masked_before_a_long_message_is_cut(before: int) -> None:
    body = {"error": {"message": "x" * before + SECRET + " is bad", "code": f"bad-{SECRET}"}}
    client, _ = ready_client("openai", {"GET /batches/b": [(400, (), json.dumps(body).encode())]})
    with pytest.raises(BatchRefused) as caught:
        await client.poll("b")
    told = f"{caught.value} {caught.value.code}"
    assert not any(SECRET[:length] in told for length in range(6, len(SECRET) + 1))


async def test_the_failure_of_a_batch() -> None:
    problem = {"code": SECRET, "message": QUOTED}
    told = {**sample("openai_batch_object"), "status": "failed", "errors": {"data": [problem]}}
    page = {"data": [told], "has_more": False}
    client, _ = ready_client("openai", {"GET /batches/b": [told], "GET /batches?limit=100": [page]})
    found = await client.find(
        order_for("openai"), since=0.0, is_ours=lambda _: False, file_id=told["input_file_id"]
    )
    for state in (await client.poll("b"), found):
        assert state is not None
        assert state.failed == ("***", "Incorrect key ***")


async def results_of(response: dict[str, Any]) -> list[LineResult]:
    told = {**sample("openai_batch_object"), "status": "completed", "output_file_id": "f", "error_file_id": None}
    line = json.dumps({"custom_id": "c0", "response": response}).encode()
    client, _ = ready_client("openai", {"GET /batches/b": [told], "GET /files/f/content": [(200, (), line)]})
    return await everything(client, await client.poll("b"))


async def test_the_error_of_a_line_and_its_body() -> None:
    long = "x" * (1000 - 10) + SECRET
    for message in (QUOTED, long):
        body = {"error": {"message": message, "code": "bad_thing"}}
        (result,) = await results_of({"status_code": 400, "request_id": f"r-{SECRET}", "body": body})
        assert result.kind == "refused"
        assert not any(SECRET[:length] in repr((result, result.body)) for length in range(8, len(SECRET) + 1))
        assert len(result.message) <= 1000
        assert b"***" in (result.body or b"")


async def test_an_answer_stays_as_it_is() -> None:
    (result,) = await results_of({"status_code": 200, "body": {"says": SECRET}})
    assert json.loads(result.body or b"") == {"says": SECRET}


async def test_what_a_line_says_of_itself_has_a_bound() -> None:
    error = {"code": "c" * 5000, "message": "m" * 5000}
    (result,) = await results_of({"status_code": 500, "request_id": "r" * 5000, "body": {"error": error}})
    assert result.kind == "unserved"
    assert result.size < 2000


def test_however_it_is_written() -> None:
    mask = Mask(['Bearer se"cret/word'])
    assert mask.text('se"cret/word, se\\"cret/word, se%22cret%2Fword, Bearer se"cret/word') == "***, ***, ***, ***"
    assert Mask(["short"]).text("short") == "short"
