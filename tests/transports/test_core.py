"""A request becomes a call, an error of ours becomes a response."""

from __future__ import annotations

import contextvars
import json
import time
from typing import Any

import pytest

from orchestra import errors
from orchestra.call import Call, Outcome
from orchestra.policies.traffic import TrafficClass
from orchestra.tagging import TAG_HEADER, bulk, current_tag, interactive
from orchestra.transports.core import TransportCore

BODY = json.dumps({"model": "m", "messages": []}).encode()


class Recorder:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.calls: list[Call] = []

    async def __call__(self, call: Call) -> Outcome:
        self.calls.append(call)
        if self.error is not None:
            raise self.error

        async def body() -> Any:
            yield b"{}"

        return Outcome(200, (), body(), "one/m")


async def ask(recorder: Recorder, *, headers: dict[str, str] | None = None, body: bytes = BODY) -> Outcome:
    core = TransportCore(recorder, clock=lambda: 100.0, wall=time.time)
    timeouts = {"connect": 5.0, "read": 60.0}
    return await core.handle("POST", "http://host/v1/chat/completions", (headers or {}).items(), body, timeouts)


async def test_an_untagged_call_is_interactive_and_waits_as_long_as_its_reader_would():
    recorder = Recorder()
    await ask(recorder, headers={"Authorization": "Bearer x"})
    (call,) = recorder.calls
    assert (call.traffic, call.queue_bound, call.expires_at) == (TrafficClass.INTERACTIVE, 60.0, None)
    assert (call.read_timeout, call.connect_timeout, call.model) == (60.0, 5.0, "m")
    assert call.headers == (("authorization", "Bearer x"),)
    assert call.body == BODY


async def test_the_tag_comes_from_the_block_or_from_the_header_which_is_stripped():
    recorder = Recorder()
    with bulk(deadline="1h", job="nightly"):
        await ask(recorder)
        await ask(recorder, headers={TAG_HEADER: "interactive; timeout=20s", "x-other": "kept"})
    with interactive(timeout=7):
        await ask(recorder)
    with bulk():
        await ask(recorder)
    nightly, header, block, plain = recorder.calls
    assert (nightly.traffic, nightly.job, nightly.queue_bound) == (TrafficClass.BULK, "nightly", None)
    assert nightly.expires_at == pytest.approx(3700, abs=5)
    assert (header.traffic, header.expires_at, header.queue_bound) == (TrafficClass.INTERACTIVE, 120.0, None)
    assert header.headers == (("x-other", "kept"),)
    assert (block.expires_at, block.queue_bound) == (107.0, None)
    assert (plain.expires_at, plain.queue_bound) == (None, None)


async def test_a_malformed_tag_is_refused_before_anything_is_sent():
    recorder = Recorder()
    outcome = await ask(recorder, headers={TAG_HEADER: "bluk"})
    assert (outcome.status, recorder.calls) == (400, [])
    assert "bluk" in json.loads(await outcome.read())["error"]["message"]


async def test_the_tag_may_be_a_field_of_the_body_which_is_stripped_and_counts_first():
    recorder = Recorder()
    tagged = {"model": "m", TAG_HEADER: "bulk; job=nightly", "messages": []}
    with interactive(timeout=7):
        await ask(recorder, headers={TAG_HEADER: "interactive"}, body=json.dumps(tagged).encode())
    (call,) = recorder.calls
    assert (call.traffic, call.job, call.expires_at) == (TrafficClass.BULK, "nightly", None)
    assert call.payload == {"model": "m", "messages": []}
    assert isinstance(call.body, bytes)
    assert json.loads(call.body) == call.payload
    assert call.headers == ()


@pytest.mark.parametrize("tag", ["", "bluk", "bulk; deadline=soon", "bulk; jobs=x", 7, {"class": "bulk"}])
async def test_a_tag_that_cannot_be_meant_says_how_it_is_written(tag: Any):
    recorder = Recorder()
    outcome = await ask(recorder, body=json.dumps({"model": "m", TAG_HEADER: tag}).encode())
    told = json.loads(await outcome.read())["error"]
    assert (outcome.status, recorder.calls, told["param"]) == (400, [], TAG_HEADER)
    assert "bulk" in told["message"]
    assert "job=nightly" in told["message"]


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b"{", b"--boundary\r\n", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000]
)
async def test_a_body_that_is_no_json_object_is_still_a_call(body: bytes):
    recorder = Recorder()
    await ask(recorder, body=body)
    assert (recorder.calls[0].payload, recorder.calls[0].body) == (None, body)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.AdmissionTimeout("late", timed_out=False), 429, "orchestra_deadline"),
        (errors.QueueFull("full"), 429, "orchestra_queue_full"),
        (errors.BudgetExceeded("never"), 429, "orchestra_budget_exceeded"),
        (errors.UnknownModelError("who", param="model"), 404, "model_not_found"),
        (errors.InputError("bad", param="messages"), 400, "orchestra_invalid_request"),
        (errors.InputError("long", code="context_length_exceeded"), 400, "context_length_exceeded"),
        (errors.AllRoutesFailed("none"), 503, "orchestra_no_route_answered"),
        (errors.LocalEngineError("no memory"), 503, "orchestra_local_engine"),
        (errors.ConfigError("no key"), 500, "orchestra_config"),
        (errors.JobLocked("elsewhere"), 409, "orchestra_job_locked"),
        (errors.JobError("no ledger"), 503, "orchestra_job"),
        (errors.OrchestraError("other"), 500, "orchestra_error"),
    ],
)
async def test_our_errors_are_answers_in_the_providers_form(error: Exception, status: int, code: str):
    outcome = await ask(Recorder(error))
    told = json.loads(await outcome.read())["error"]
    assert (outcome.status, told["code"], told["message"]) == (status, code, str(error))
    assert set(told) == {"message", "type", "param", "code"}
    assert told["param"] == getattr(error, "param", None)
    assert outcome.header("x-should-retry") == "false"


async def test_a_failed_connection_of_an_unmetered_call_is_the_familys_to_raise():
    with pytest.raises(errors.ConnectionFailed):
        await ask(Recorder(errors.ConnectionFailed("refused", sent=False)))


async def test_a_call_shows_no_header_when_it_is_printed():
    recorder = Recorder()
    await ask(recorder, headers={"authorization": "Bearer top-secret"})
    assert "top-secret" not in repr(recorder.calls[0])


def test_a_block_may_end_in_another_context_than_it_began_in():
    """As a generator does that a framework starts in one thread and finishes in another."""
    block = bulk()
    contextvars.copy_context().run(block.__enter__)
    block.__exit__(None, None, None)
    assert current_tag() is None
