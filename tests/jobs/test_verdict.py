"""What is a line's own fault, what is not, and what its answer leaves in the ledger."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable

import pytest

from orchestra.call import Outcome
from orchestra.errors import (
    AdmissionTimeout,
    AllRoutesFailed,
    BudgetExceeded,
    ConfigError,
    ConnectionFailed,
    InputError,
    LocalEngineError,
    OrchestraError,
    PriceUnknown,
    ProviderError,
    QueueFull,
    StreamInterrupted,
    UnknownModelError,
)
from orchestra.jobs.ledger.record import End
from orchestra.jobs.sending.verdict import Blocked, judge_answer, judge_error


async def judge(outcome: Outcome) -> End | Blocked:
    return judge_answer(4, outcome, await outcome.read())


async def test_an_answer_is_kept(outcome: Callable[..., Outcome]) -> None:
    end = await judge(outcome(body=b'{\n  "a": "\xc3\xa9",\n "b": 0.1\n}'))
    assert end == End(
        4,
        None,
        status_code=200,
        request_id="req-1",
        response='{"a":"é","b":0.1}'.encode(),
        input_tokens=7,
        output_tokens=3,
        route="fake/model",
    )


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"a": NaN}', b"\xff", b"[" * 100_000])
async def test_what_is_no_json_is_no_answer(outcome: Callable[..., Outcome], body: bytes) -> None:
    end = await judge(outcome(body=body))
    assert isinstance(end, End)
    assert end.error is not None
    assert end.error.code == "not_an_answer"
    assert end.response is not None
    assert json.loads(end.response)["error"]["type"] == "not_json"
    assert b"\n" not in end.response


async def test_half_a_character_in_an_answer_is_kept(outcome: Callable[..., Outcome]) -> None:
    end = await judge(outcome(body=b'{"a": "\\ud83d"}'))
    assert isinstance(end, End)
    assert end.response == b'{"a": "\\ud83d"}'


@pytest.mark.parametrize(
    ("status", "body", "code", "message"),
    [
        (400, {"error": {"code": "context_length", "message": "too long"}}, "context_length", "too long"),
        (404, {"error": {"code": None, "type": "not_found", "message": "no model"}}, "not_found", "no model"),
        (422, {"detail": "bad"}, "http_422", "bad"),
        (413, {"error": "too large"}, "http_413", "too large"),
        (400, ["?"], "http_400", "the provider answered with status 400"),
        (400, b"<html>", "http_400", "the provider answered with status 400"),
    ],
)
async def test_a_refusal_of_the_line_ends_it(
    outcome: Callable[..., Outcome], status: int, body: object, code: str, message: str
) -> None:
    end = await judge(outcome(status, body))
    assert isinstance(end, End)
    assert end.error == (code, message)
    assert (end.status_code, end.response is not None) == (status, True)


@pytest.mark.parametrize(
    ("status", "body", "hopeless", "suspect", "retry_after"),
    [
        (401, {"error": {"message": "bad key"}}, True, False, 0),
        (402, {}, True, False, 0),
        (403, {}, False, True, 0),
        (429, {"error": {"code": "rate_limit_exceeded"}}, False, False, 12),
        (429, {"error": {"code": "insufficient_quota"}}, True, False, 0),
        (429, {"error": {"type": "insufficient_quota", "code": None}}, True, False, 0),
        (408, {}, False, False, 12),
        (500, {}, False, True, 12),
        (503, b"<html>", False, True, 12),
        (529, {}, False, True, 12),
    ],
)
async def test_what_meets_all_lines_ends_none(
    outcome: Callable[..., Outcome], status: int, body: object, hopeless: bool, suspect: bool, retry_after: float
) -> None:
    given = outcome(status, body, (("retry-after", "12"),))
    blocked = await judge(given)
    assert isinstance(blocked, Blocked)
    assert (blocked.hopeless, blocked.suspect, blocked.retry_after) == (hopeless, suspect, retry_after)
    assert f"status {status}" in blocked.error.message


@pytest.mark.parametrize("value", ["soon", "-5", "nan", "inf", ""])
async def test_an_odd_retry_after_is_none(outcome: Callable[..., Outcome], value: str) -> None:
    blocked = await judge(outcome(503, {}, (("retry-after", value),)))
    assert isinstance(blocked, Blocked)
    assert blocked.retry_after == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AdmissionTimeout("late"), "expired"),
        (BudgetExceeded("never fits"), "budget_exceeded"),
        (InputError("bad field"), "invalid_request"),
        (InputError("too long", code="context_length_exceeded"), "context_length_exceeded"),
        (UnknownModelError("who?"), "invalid_request"),
        (ProviderError("no", status=400, code="bad"), "bad"),
        (
            AllRoutesFailed("none", attempts=[("a/b", InputError("x")), ("c/d", InputError("y"))]),
            "invalid_request",
        ),
    ],
)
def test_errors_about_the_line(error: OrchestraError, code: str) -> None:
    end = judge_error(4, error)
    assert isinstance(end, End)
    assert end.error is not None
    assert end.error.code == code


@pytest.mark.parametrize(
    ("error", "hopeless", "suspect"),
    [
        (ConnectionFailed("reset", sent=True), False, True),
        (StreamInterrupted("cut"), False, True),
        (LocalEngineError("died"), True, True),
        (QueueFull("full", expected_wait=3.0), False, False),
        (ConfigError("no key"), True, False),
        (PriceUnknown("no price is known"), True, False),
        (AllRoutesFailed("x", attempts=[("a", PriceUnknown("p")), ("b", PriceUnknown("p"))]), True, False),
        (ProviderError("no", status=401), True, False),
        (ProviderError("no", status=503, body=b"x"), False, True),
        (AllRoutesFailed("cooling down"), False, False),
        (AllRoutesFailed("x", attempts=[("a", StreamInterrupted("r")), ("b", InputError("y"))]), False, True),
        (AllRoutesFailed("x", attempts=[("a", ConfigError("k")), ("b", ConfigError("k"))]), True, False),
        (AllRoutesFailed("x", attempts=[("a", ConfigError("k")), ("b", QueueFull("q"))]), False, False),
    ],
)
def test_errors_about_all_lines(error: OrchestraError, hopeless: bool, suspect: bool) -> None:
    blocked = judge_error(4, error)
    assert isinstance(blocked, Blocked)
    assert (blocked.hopeless, blocked.suspect) == (hopeless, suspect)


@pytest.mark.parametrize("value", ["1e999", "[" * 400 + "]" * 400])
def test_a_response_is_always_json(value: str) -> None:
    end = judge_answer(1, Outcome(200, (), _no_body(), "r"), b'{"x": %s, "y": "\\ud83d"}' % value.encode())
    assert isinstance(end, End)
    assert end.response is not None

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    json.loads(end.response, parse_constant=refuse)


async def _no_body() -> AsyncIterator[bytes]:
    yield b""
