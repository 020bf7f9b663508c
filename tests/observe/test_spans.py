"""The span of a call."""

from __future__ import annotations

import pytest
from hypothesis import given
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from told_calls import KINDS, Teller, calls

from orchestra.observe.call_log import CallLog
from orchestra.observe.measuring import Measuring
from orchestra.observe.spans import span_of
from orchestra.policies.traffic import TrafficClass


@given(calls())
def test_children_lie_within_and_nothing_secret_can_be_in_it(events):
    span = span_of(events, KINDS)
    assert span.start == events[0].at
    assert span.end == events[-1].at
    for child in span.children:
        assert span.start <= child.start <= child.end <= span.end
        assert not child.children
    assert all(span.start <= point.at <= span.end for point in span.events)
    requests = [child for child in span.children if child.name.startswith("request ")]
    assert len(requests) == sum(event.kind == "sent" for event in events)
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    for attribute in span.attributes:
        assert attribute in known or attribute.startswith(("orchestra.", "http.response.")), attribute
    assert bool(span.error) == (events[-1].kind != "settled")


def test_a_call_that_waited_was_retried_and_fell_back_to_the_engine():
    tell = Teller(TrafficClass.BULK, job="nightly")
    span = span_of(
        [
            tell("queued", attempt=1),
            tell("admitted", attempt=1, waited=3.0, after=3.0),
            tell("sent", attempt=1, after=0.0),
            tell("fell_back", "local/own", attempt=2, reason="busy", status=503, waited=0.25, after=2.25),
            tell("sent", "local/own", attempt=2, after=0.0),
            tell("queued", "local/own", attempt=2, after=0.0),
            tell("admitted", "local/own", attempt=2, waited=0.5, after=0.5),
            tell("first_byte", "local/own", attempt=2, ttft=0.75, after=0.25),
            tell("settled", "local/own", attempt=2, status=200, input_tokens=5, output_tokens=2, ttft=0.75),
        ],
        KINDS,
    )
    assert (span.name, span.kind, span.error) == ("chat own", "internal", "")
    assert span.attributes["gen_ai.provider.name"] == "orchestra"
    assert span.attributes["orchestra.job"] == "nightly"
    assert span.attributes["gen_ai.usage.output_tokens"] == 2
    assert [(one.name, one.kind, one.end - one.start, one.error) for one in span.children] == [
        ("queue", "internal", 3.0, ""),
        ("request main/m1", "client", 2.0, "503"),  # without the wait before the next attempt
        ("queue", "internal", 0.5, ""),
        ("request local/own", "internal", 1.75, ""),
    ]
    assert [point.name for point in span.events] == ["orchestra.fell_back", "orchestra.first_token"]


def test_a_call_that_rode_in_a_batch_and_one_that_was_taken_out():
    tell = Teller(TrafficClass.BULK)
    rode = span_of([tell("parked", ""), tell("settled", after=60.0, duration=60.0)], KINDS)
    assert rode.attributes["orchestra.outlet"] == "batch"
    assert [(one.name, one.end - one.start) for one in rode.children] == [("batch", 60.0)]
    tell = Teller(TrafficClass.BULK)
    out = [
        tell("parked", ""),
        tell("queued", attempt=1, after=30.0),
        tell("admitted", attempt=1, waited=2.0, after=2.0),
        tell("sent", attempt=1, after=0.0),
        tell("settled", attempt=1),
    ]
    taken = span_of(out, KINDS)
    assert taken.attributes["orchestra.outlet"] == "online"
    assert [(one.name, one.end - one.start) for one in taken.children] == [
        ("batch", 30.0),
        ("queue", 2.0),
        ("request main/m1", 1.0),
    ]


def test_a_call_that_got_nowhere_began_when_it_did():
    span = span_of([Teller(at=50.0)("failed", "", reason="no route is ready", duration=8.0)], KINDS)
    assert (span.start, span.end, span.error) == (43.0, 51.0, "no route is ready")


def test_a_batch_of_a_job_is_a_span_of_its_own_and_no_call():
    told = Teller(TrafficClass.BULK, job="nightly", call="batch-1")
    brought = told("batch_ended", lines=1000, answered=990, waited=10.0, duration=50.0)
    refused = told("batch_ended", lines=5, answered=0, duration=4.0, reason="given up")
    log, measuring = CallLog(), Measuring(KINDS)
    for event in (brought, refused):
        whole = log.add(event)
        assert whole is not None
        assert [*measuring.event(event), *measuring.whole(whole.events)] == []
    assert len(log) == 0
    span = span_of([brought], KINDS)
    assert (span.name, span.end - span.start, span.error) == ("batch chat m1", 60.0, "")
    assert (span.attributes["orchestra.lines"], span.attributes["orchestra.answered"]) == (1000, 990)
    assert span.attributes["orchestra.job"] == "nightly"
    assert [(one.name, one.end - one.start) for one in span.children] == [
        ("queue", 10.0),
        ("request main/m1", 50.0),
    ]
    span = span_of([refused], KINDS)
    assert (span.end - span.start, span.error) == (4.0, "given up")
    assert [(one.name, one.error) for one in span.children] == [("queue", "given up")]


def test_a_refused_and_a_cancelled_wait_are_errors_of_the_queue():
    for kind, error in (("refused", "QueueFull"), ("interrupted", "cancelled")):
        tell = Teller()
        events = [tell("queued", attempt=1), tell(kind, attempt=1, reason=error, waited=1.0)]
        if kind == "refused":
            events.append(tell("failed", reason=error, duration=2.0))
        (queue,) = span_of(events, KINDS).children
        assert (queue.name, queue.end - queue.start, queue.error) == ("queue", 1.0, error)


@pytest.mark.parametrize(("status", "error"), [(None, ""), (500, "500")])
def test_a_hedge_that_lost_is_no_error_unless_it_failed(status, error):
    tell = Teller()
    events = [
        tell("queued", attempt=1),
        tell("sent", attempt=1),
        tell("hedged", attempt=2, duration=0.5),
        tell("sent", attempt=2),
        tell("interrupted", attempt=1, reason="outrun", status=status),
        tell("settled", attempt=2, status=200),
    ]
    span = span_of(events, KINDS)
    assert [(one.name, one.start, one.end, one.error) for one in span.children if one.name != "queue"] == [
        ("request main/m1", 102.0, 105.0, error),
        ("request main/m1", 103.0, 106.0, ""),
    ]


def test_what_failed_ends_before_what_followed_whichever_of_two_it_was():
    tell = Teller()
    both = [
        tell("queued", attempt=1),
        tell("sent", attempt=1),
        tell("hedged", attempt=2, duration=0.5),
        tell("sent", attempt=2),
    ]
    retried = [
        tell("retried", attempt=3, from_route="main/m1", reason="busy", status=503, waited=0.25),
        tell("queued", attempt=3),
        tell("sent", attempt=3),
        tell("settled", attempt=3, status=200),
    ]
    requests = [one for one in span_of([*both, *retried], KINDS).children if one.name != "queue"]
    assert [(one.end, one.error) for one in requests] == [(104.75, "503"), (104.75, "503"), (108.0, "")]
    given_up = Teller(at=104.0)("interrupted", reason="cancelled", waited=0.5, duration=4.0)
    requests = [one for one in span_of([*both, given_up], KINDS).children if one.name != "queue"]
    assert [(one.end, one.error) for one in requests] == [(104.5, "_OTHER")] * 2
