"""Our errors in the form of each wire."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestra import errors
from orchestra.transports.synthetic import answer_of

OPENAI = "https://host/v1/chat/completions"
ANTHROPIC = "https://host/v1/messages?beta=true"
GOOGLE = "https://host/v1beta/models/m:streamGenerateContent?alt=sse"
LIMITED = ("rate_limit_error", "rate_limit_error", "RESOURCE_EXHAUSTED")
UNKNOWN = ("invalid_request_error", "not_found_error", "NOT_FOUND")
INVALID = ("invalid_request_error", "invalid_request_error", "INVALID_ARGUMENT")
LATE = ("server_error", "timeout_error", "DEADLINE_EXCEEDED")
BUSY = ("service_unavailable_error", "overloaded_error", "UNAVAILABLE")
INTERNAL = ("server_error", "api_error", "INTERNAL")
SLOW = errors.ConnectionFailed("no answer", sent=True, timed_out=True)
ALL: list[tuple[errors.OrchestraError, int, str, tuple[str, str, str]]] = [
    (errors.AdmissionTimeout("too long", timed_out=False), 429, "orchestra_deadline", LIMITED),
    (errors.AdmissionTimeout("late"), 504, "orchestra_deadline", LATE),
    (errors.DeadlineExceeded("late"), 504, "orchestra_deadline", LATE),
    (errors.QueueFull("full"), 429, "orchestra_queue_full", LIMITED),
    (errors.PriceUnknown("usd"), 429, "orchestra_budget_exceeded", LIMITED),
    (errors.UnknownModelError("who"), 404, "model_not_found", UNKNOWN),
    (errors.InputError("bad"), 400, "orchestra_invalid_request", INVALID),
    (errors.CallTimeout("slow"), 504, "orchestra_timeout", LATE),
    (errors.AllRoutesFailed("none"), 503, "orchestra_no_route_answered", BUSY),
    (errors.AllRoutesFailed("none", attempts=[("a/b", SLOW)]), 504, "orchestra_no_route_answered", LATE),
    (errors.LocalEngineError("ill"), 503, "orchestra_local_engine", BUSY),
    (errors.ConfigError("no key"), 500, "orchestra_config", INTERNAL),
]


async def told(error: errors.OrchestraError, url: str, *names: str) -> tuple[Any, dict[str, str], int]:
    outcome = answer_of(error, url, tuple((name, "x") for name in names))
    return json.loads(await outcome.read()), dict(outcome.headers), outcome.status


@pytest.mark.parametrize(("error", "status", "code", "kinds"), ALL)
async def test_each_wire_has_its_form(
    error: errors.OrchestraError, status: int, code: str, kinds: tuple[str, str, str]
):
    openai, anthropic, google = kinds
    words = str(error)
    body, headers, given = await told(error, OPENAI)
    assert (given, headers["x-should-retry"], headers["content-type"]) == (status, "false", "application/json")
    assert body == {"error": {"message": words, "type": openai, "param": None, "code": code}}
    body, _, given = await told(error, ANTHROPIC)
    assert given == status
    assert (body["type"], body["error"]["type"], body["error"]["message"]) == ("error", anthropic, words)
    assert body["error"]["details"] == {"error_code": code}
    body, _, given = await told(error, GOOGLE)
    assert given == status
    assert {key: body["error"][key] for key in ("code", "message", "status")} == {
        "code": status,
        "message": words,
        "status": google,
    }
    assert body["error"]["details"][0]["reason"] == code.upper()


@pytest.mark.parametrize(
    ("url", "names", "form"),
    [
        ("https://host/v1/models", ["authorization"], "openai"),
        ("https://host/v1/models", ["x-api-key", "anthropic-version"], "anthropic"),
        ("https://host/v1/messages/count_tokens", ["anthropic-version"], "anthropic"),
        ("https://host/v1beta/models", ["x-goog-api-key"], "google"),
        # Google's and Anthropic's own endpoints in OpenAI's form
        ("https://host/v1beta/openai/chat/completions", ["x-goog-api-key"], "openai"),
        ("https://host/v1/chat/completions", ["anthropic-version"], "openai"),
    ],
)
async def test_the_form_is_that_of_the_request(url: str, names: list[str], form: str):
    body, _, _ = await told(errors.InputError("bad"), url, *names)
    seen = "anthropic" if "type" in body else "google" if "status" in body["error"] else "openai"
    assert seen == form


@pytest.mark.parametrize(
    ("wait", "header"), [(0.2, "1"), (7.1, "8"), (90000.0, "90000"), (None, None), (float("inf"), None)]
)
async def test_a_known_wait_is_told(wait: float | None, header: str | None):
    _, headers, _ = await told(errors.AdmissionTimeout("late", expected_wait=wait), OPENAI)
    assert headers.get("retry-after") == header
