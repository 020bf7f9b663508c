"""What events and snapshots measure, and that no caller can make the labels endless."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.attributes import error_attributes
from told_calls import KINDS, Teller, calls

from orchestra.kinds import KINDS as KINDS_OF_PROVIDERS
from orchestra.localengine.events import FirstToken, RequestFinished
from orchestra.localengine.request import Timing, Usage
from orchestra.observe.call_log import CallLog
from orchestra.observe.instruments import BY_NAME, INSTRUMENTS
from orchestra.observe.measuring import MOST_VALUES, OTHER, PROVIDER_NAMES, Measuring, seen_in
from orchestra.policies.traffic import TrafficClass


def measured(events, measuring=None):
    """Return all that a stream of events measures, as a feed would."""
    measuring, log = measuring or Measuring(KINDS), CallLog()
    found = []
    for event in events:
        found += measuring.event(event)
        if (call := log.add(event)) is not None:
            found += measuring.whole(call.events)
    return found


def labels(one):
    return dict(zip(BY_NAME[one.name].labels, one.labels, strict=True))


# The names are the conventions'


def test_the_conventions_names_and_units_are_theirs():
    """By the package that OpenTelemetry releases: it makes each metric with the unit that it is to have."""
    theirs = {}
    meter = SimpleNamespace(create_histogram=lambda name, description, unit: theirs.update({name: unit}))
    for name in dir(gen_ai_metrics):
        if name.startswith("create_"):
            getattr(gen_ai_metrics, name)(meter)
    ours = {one.name: one.unit for one in INSTRUMENTS if one.name.startswith("gen_ai.")}
    assert len(ours) == 6
    assert ours.items() <= theirs.items()
    attributes = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used = {label for one in INSTRUMENTS for label in one.labels}
    foreign = {label for label in used if not label.startswith("orchestra.")}
    assert foreign <= {value for value in attributes if isinstance(value, str)} | {error_attributes.ERROR_TYPE}


def test_providers_have_the_conventions_names():
    well_known = {one.value for one in gen_ai_attributes.GenAiProviderNameValues}
    assert set(PROVIDER_NAMES.values()) <= well_known
    assert set(PROVIDER_NAMES) <= set(KINDS_OF_PROVIDERS)
    assert {"openai", "anthropic", "groq"} <= well_known & set(KINDS_OF_PROVIDERS)  # those that need no other name


def test_instruments_are_told_apart_and_their_buckets_rise():
    assert len(BY_NAME) == len(INSTRUMENTS)
    for one in INSTRUMENTS:
        assert bool(one.buckets) == (one.kind == "histogram"), one.name
        assert all(low < high for low, high in pairwise(one.buckets)), one.name
        # names of jobs, calls and keys are without end
        assert not any(word in label for label in one.labels for word in ("job", "call", "key")), one.name


# Calls


@given(st.lists(calls(), max_size=4))
def test_each_call_is_counted_once_with_all_labels(told):
    found = measured([event for call in told for event in call])
    counts = Counter(one.name for one in found)
    assert counts["gen_ai.client.operation.duration"] == len(told)
    for one in found:
        assert len(one.labels) == len(BY_NAME[one.name].labels)
        assert one.value >= 0
    attempts = [event for call in told for event in call if event.kind in ("retried", "fell_back")]
    assert counts["orchestra.retries"] == len(attempts)
    admitted = [event.waited for call in told for event in call if event.kind == "admitted"]
    assert sorted(one.value for one in found if one.name == "orchestra.queue.duration") == sorted(admitted)
    granted = [event for call in told for event in call if event.kind == "admitted"]
    granted = [event for event in granted if not event.route.startswith("local/")]
    assert counts["orchestra.pool.granted"] == len(granted), "an engine is no account"
    assert counts["orchestra.bulk.duration"] == sum(call[0].traffic is TrafficClass.BULK for call in told)


@given(st.data())
def test_calls_in_one_another_measure_what_they_do_alone(data):
    """Events of many calls come mixed."""
    told = data.draw(st.lists(calls(), min_size=2, max_size=4))
    order = data.draw(st.permutations([number for number, call in enumerate(told) for _ in call]))
    rest = [iter(call) for call in told]
    mixed = measured([next(rest[number]) for number in order])
    alone = [one for call in told for one in measured(call)]
    assert Counter(mixed) == Counter(alone)


def test_a_call_with_a_retry_and_a_fallback():
    tell = Teller()
    found = measured(
        [
            tell("queued", attempt=1),
            tell("admitted", attempt=1, waited=1.0),
            tell("sent", attempt=1),
            tell("retried", attempt=2, from_route="main/m1", reason="429 slow down", status=429, waited=0.5),
            tell("queued", attempt=2),
            tell("fell_back", "eu/m3", attempt=3, from_route="main/m1", reason="timed out", waited=0.0),
            tell("sent", "eu/m3", attempt=3),
            tell("first_byte", "eu/m3", attempt=3, ttft=0.75),
            tell("settled", "eu/m3", attempt=3, status=200, input_tokens=9, output_tokens=4, usd=0.25),
        ]
    )
    (duration,) = [one for one in found if one.name == "gen_ai.client.operation.duration"]
    assert duration.value == 8.0
    assert labels(duration) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "azure.ai.openai",
        "gen_ai.request.model": "m3",
        "orchestra.account": "eu",
        "orchestra.outlet": "online",
        "orchestra.traffic": "interactive",
        "error.type": "",
    }
    retries = [
        (labels(one)["orchestra.state"], labels(one)["error.type"]) for one in found if "retries" in one.name
    ]
    assert retries == [("retried", "429"), ("fell_back", "timed out")]
    tokens = {
        labels(one)["gen_ai.token.type"]: one.value for one in found if one.name == "gen_ai.client.token.usage"
    }
    assert tokens == {"input": 9, "output": 4}
    assert [one.value for one in found if one.name == "orchestra.cost.usd"] == [0.25]


@pytest.mark.parametrize(
    ("kind", "fields", "error"),
    [
        ("failed", {"reason": "no usable answer", "duration": 3.0}, "no usable answer"),
        ("failed", {"reason": "x", "status": 500, "duration": 3.0}, "500"),
        ("interrupted", {"reason": "cancelled"}, "cancelled"),
        ("settled", {"status": 404}, "404"),
        ("failed", {"reason": "so says the\nprovider: " + "x" * 200}, OTHER),
    ],
)
def test_what_a_call_ended_with(kind, fields, error):
    tell = Teller()
    found = measured([tell("sent", attempt=1), tell(kind, **fields)])
    (duration,) = [one for one in found if one.name == "gen_ai.client.operation.duration"]
    assert labels(duration)["error.type"] == error


def test_an_attempt_that_was_outrun_is_not_the_end_of_its_call_nor_another_one():
    tell = Teller()
    first = [tell("queued", attempt=1), tell("sent", attempt=1), tell("hedged", attempt=2, duration=0.5)]
    won = [tell("sent", attempt=2), tell("settled", attempt=2, status=200)]
    late = tell("interrupted", attempt=1, reason="outrun", duration=2.0)
    durations = [
        [one.value for one in measured(events) if one.name == "gen_ai.client.operation.duration"]
        for events in ([*first, *won, late], [*first, late, *won])
    ]
    assert [len(one) for one in durations] == [1, 1]
    # the loser's last words, when its call is over, open no call that nobody ends
    log = CallLog()
    for event in [
        *first,
        *won,
        tell("admitted", attempt=2),
        tell("hedged", attempt=2),
        tell("sent", attempt=2),
        late,
    ]:
        log.add(event)
    assert len(log) == 0


def test_an_engine_that_takes_in_a_call_which_was_given_up_opens_no_other():
    tell, log = Teller(), CallLog()
    sent, given_up = tell("sent", "local/own", attempt=1), tell("interrupted", "local/own", attempt=1)
    late = [tell(kind, "local/own", attempt=1) for kind in ("queued", "admitted")]
    assert [log.add(event) is not None for event in (sent, given_up, *late)] == [False, True, False, False]
    assert len(log) == 0


def test_outlets():
    outlets = []
    for events in (
        [("parked", ""), ("settled", "main/m1")],
        [("parked", ""), ("queued", "main/m1", 1), ("settled", "main/m1", 1)],
        [("sent", "local/own", 1), ("settled", "local/own", 1)],
    ):
        tell = Teller(TrafficClass.BULK)
        found = measured(
            [tell(kind, route, attempt=attempt[0] if attempt else None) for kind, route, *attempt in events]
        )
        outlets += [labels(one)["orchestra.outlet"] for one in found if "operation.duration" in one.name]
    assert outlets == ["batch", "online", "local"]


@given(st.integers(1, 20), st.integers(0, 60))
def test_labels_from_outside_are_bounded(most, models):
    measuring = Measuring(KINDS, most_values=most)
    seen = set()
    for number in range(models):
        tell = Teller()
        events = [
            tell("sent", f"main/model-{number}", attempt=1),
            tell("failed", f"main/model-{number}", reason=f"r{number}"),
        ]
        seen |= {one.labels for one in measured(events, measuring)}
    assert len({one[2] for one in seen}) <= most + 1
    assert len({one[-1] for one in seen}) <= most + 1


def test_calls_that_never_end_are_bounded_and_so_are_their_events():
    log = CallLog(most_calls=10, most_events=16)
    for _ in range(100):
        log.add(Teller()("queued", attempt=1))
    assert len(log) == 10
    tell = Teller()
    for number in range(1, 100):
        log.add(tell("queued", attempt=number))
    whole = log.add(tell("settled", attempt=99))
    assert whole is not None
    assert len(whole.events) == 16
    assert (whole.events[0].attempt, whole.events[-1].kind) == (1, "settled")


# Engines


def test_an_engine_measures_what_a_server_would():
    common = {"at": 5.0, "request_id": 1, "traffic": TrafficClass.BULK, "completion": 0}
    timing = Timing(queue=0.5, ttft=1.0, tokens=(1.0, 1.5, 2.0))
    measuring = Measuring({})
    found = [
        *measuring.engine("own", FirstToken(ttft=1.0, **common)),
        *measuring.engine("own", RequestFinished(reason="stop", usage=Usage(7, 3), timing=timing, **common)),
    ]
    assert {one.name.removeprefix("gen_ai.server."): one.value for one in found} == {
        "time_to_first_token": 1.0,
        "request.duration": 2.0,
        "time_per_output_token": 0.5,
    }
    assert {one.labels for one in found} == {("text_completion", "orchestra", "own", "bulk")}


# Snapshots


def pool(key="k1", models=("gpt-*",), waiting=3, **more):
    dimension = {"limit": 600.0, "used": 12.0, "available": 88.0}
    return {
        "provider": "main",
        "key": key,
        "models": list(models),
        "kind": "online",
        "waiting": {"interactive": 0, "bulk": waiting},
        "in_use": {"interactive": 1, "bulk": 2},
        "granted": {"interactive": 120, "bulk": 388},
        "dimensions": {"requests": dimension, "concurrency": {"limit": None, "used": 3.0, "available": None}},
        **more,
    }


def test_pools_that_differ_in_their_key_are_one():
    found = {(one.name, *one.labels): one.value for one in seen_in({"pools": [pool("k1"), pool("k2", waiting=4)]})}
    where = ("main", "gpt-*", "online")
    assert found["orchestra.pool.waiting", *where, "bulk"] == 7
    assert found["orchestra.pool.waiting", *where, "interactive"] == 0, "what is idle is at 0, and not missing"
    assert found["orchestra.limit.size", *where, "requests"] == 1200
    assert ("orchestra.limit.size", *where, "concurrency") not in found, "what has no limit has no size"
    assert found["orchestra.limit.used", *where, "concurrency"] == 6


def test_pools_and_routes_that_callers_may_name_are_bounded():
    many = range(3 * MOST_VALUES)
    snapshot = {
        "pools": [pool(models=[f"model-{number}"]) for number in many],
        "routes": {f"main/model-{number}": {"state": "open" if number == 299 else "closed"} for number in many},
    }
    found = seen_in(snapshot)
    waiting = {one.labels: one.value for one in found if one.name == "orchestra.pool.waiting"}
    assert len(waiting) == 2 * (MOST_VALUES + 1)
    assert sum(waiting.values()) == 3 * len(many), "what is beyond the bound is counted all the same"
    routes = {one.labels: one.value for one in found if one.name == "orchestra.route.state"}
    assert len(routes) == 3 * MOST_VALUES
    assert routes["main/model-299", "open"] == 1, "a route that fails is never left out"
