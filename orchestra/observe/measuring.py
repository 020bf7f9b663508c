"""Turns what is told, and what is seen in a snapshot, into measurements: the one place that does.

Pure: no clock, no exporter. What is measured, and with which labels, is in `orchestra.observe.instruments`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestra.observe import instruments as names
from orchestra.observe.events import Event
from orchestra.policies.traffic import TrafficClass

if TYPE_CHECKING:
    from orchestra.localengine.events import EngineEvent

__all__ = ["PROVIDER_NAMES", "Measurement", "Measuring", "error_type", "outlet_of", "provider_of", "seen_in"]

PROVIDER_NAMES: Mapping[str, str] = {
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
}
"""How OpenTelemetry calls our kinds of providers, where it calls them otherwise (``gen_ai.provider.name``)."""

OURS = "orchestra"
"""The provider of what an engine in this process computes."""
LOCAL = "local"
OTHER = "_OTHER"
"""Stands for the values of a label beyond the most that it may have: OpenTelemetry's word for other errors."""
MOST_VALUES = 100

_NAME = re.compile(r"[\w./:@+ -]{1,80}", re.ASCII)
_ENGINE_OPERATION = "text_completion"  # whatever the caller's endpoint: an engine goes on with a text
_CLASSES = ("interactive", "bulk")
_BREAKER_STATES = ("closed", "open", "half-open")

Labels = tuple[str, ...]
_Seen = defaultdict[tuple[str, Labels], float]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A value of the instrument called ``name``: one more observation, how much more, or what there is.

    ``labels`` are in the order of the instrument's; what does not apply is empty.
    """

    name: str
    value: float
    labels: Labels


class Measuring:
    """Measures the events of one `Orchestra`. Not thread-safe.

    ``kinds`` are the kinds of its providers by their names. Names that come from callers and providers are kept
    within bounds: of each label the first hundred values count as such, and all others as ``_OTHER``.
    """

    def __init__(self, kinds: Mapping[str, str], *, most_values: int = MOST_VALUES) -> None:
        self._kinds = kinds
        self._known: dict[str, set[str]] = {}
        self._most_values = most_values

    def event(self, event: Event) -> Iterator[Measurement]:
        """Yield what an event of a call measures by itself."""
        labels = self._labels(event)
        match event.kind:
            case "admitted" | "refused":
                if event.waited is not None:
                    yield Measurement("orchestra.queue.duration", event.waited, labels)
                if event.kind == "refused":
                    yield Measurement("orchestra.refusals", 1, (*labels, self._error(event)))
                elif not event.route.startswith(f"{LOCAL}/"):
                    yield Measurement("orchestra.pool.granted", 1, labels)
            case "retried" | "fell_back" | "hedged":
                yield Measurement("orchestra.retries", 1, (*labels, event.kind, self._error(event)))
            case "paused":
                yield Measurement("orchestra.pauses", 1, (*labels, self._error(event)))
            case "passed_through":
                yield Measurement("orchestra.unmetered", 1, (event.operation or OTHER, str(event.traffic)))
            case "first_byte" if event.ttft is not None:
                yield Measurement("gen_ai.client.operation.time_to_first_chunk", event.ttft, labels)

    def engine(self, name: str, event: EngineEvent) -> Iterator[Measurement]:
        """Yield what an event of the engine behind ``[local.NAME]`` measures."""
        from orchestra.localengine.events import FirstToken, RequestFinished  # on use: there is an engine

        match event:
            case FirstToken(traffic=traffic):
                labels = (_ENGINE_OPERATION, OURS, name, str(traffic))
                yield Measurement("gen_ai.server.time_to_first_token", event.ttft, labels)
            case RequestFinished(traffic=traffic, timing=timing):
                labels = (_ENGINE_OPERATION, OURS, name, str(traffic))
                yield Measurement("gen_ai.server.request.duration", timing.total, labels)
                if timing.tpot is not None:
                    yield Measurement("gen_ai.server.time_per_output_token", timing.tpot, labels)

    def whole(self, events: Sequence[Event]) -> Iterator[Measurement]:
        """Yield what a call measures that is over: all of its events, in their order. A batch is no call."""
        last = events[-1]
        if last.kind == "batch_ended":
            return
        labels = self._labels(last, outlet_of(events))
        seconds = max(0.0, last.at - events[0].at)
        if len(events) == 1 and last.duration is not None:  # it got no further than to its own end
            seconds = last.duration
        failed = last.kind != "settled" or (last.status or 0) >= 400
        error = self._error(last) if failed else ""
        yield Measurement("gen_ai.client.operation.duration", seconds, (*labels, error))
        if last.traffic is TrafficClass.BULK:
            yield Measurement("orchestra.bulk.duration", seconds, (*labels, error))
        if last.kind != "settled":
            return
        for kind, tokens in (("input", last.input_tokens), ("output", last.output_tokens)):
            if tokens is not None:
                yield Measurement("gen_ai.client.token.usage", tokens, (*labels, kind))
        if last.cached_tokens:
            yield Measurement("orchestra.tokens.cached", last.cached_tokens, labels)
        if last.usd:
            yield Measurement("orchestra.cost.usd", last.usd, labels)

    def _labels(self, event: Event, outlet: str | None = None) -> Labels:
        """Return the labels in `instruments.CALL`."""
        account, _, model = event.route.partition("/")
        return (
            event.operation or OTHER,
            provider_of(account, self._kinds),
            self._bounded(names.MODEL, model),
            account,
            outlet or (LOCAL if account == LOCAL else "online"),
            str(event.traffic),
        )

    def _error(self, event: Event) -> str:
        return self._bounded(names.ERROR, error_type(event))

    def _bounded(self, label: str, value: str) -> str:
        if not value:
            return value
        known = self._known.setdefault(label, set())
        if value not in known:
            if len(known) >= self._most_values or not _NAME.fullmatch(value):
                return OTHER
            known.add(value)
        return value


def provider_of(account: str, kinds: Mapping[str, str]) -> str:
    """Return what OpenTelemetry calls who answers for an account (``gen_ai.provider.name``).

    ``kinds`` are the kinds of providers by their names.
    """
    if account == LOCAL:
        return OURS
    kind = kinds.get(account, OTHER)
    return PROVIDER_NAMES.get(kind, kind)


def error_type(event: Event) -> str:
    """Return what kind of error an event tells of: the HTTP status, or else the reason; empty where it is none."""
    if event.status is not None and event.status >= 400:
        return str(event.status)
    return event.reason or ("" if event.kind in ("settled", "hedged") else event.kind)


def outlet_of(events: Sequence[Event]) -> str:
    """Return by which way a call went in the end: ``online``, ``batch`` or ``local``."""
    if events[-1].route.startswith(f"{LOCAL}/"):
        return LOCAL
    return "batch" if all(event.attempt is None for event in events) and events[0].kind == "parked" else "online"


def seen_in(snapshot: Mapping[str, Any]) -> list[Measurement]:
    """Return what an `Orchestra.snapshot` measures.

    Pools that differ in their key alone count as one: callers may bring any number of keys. So do pools beyond the
    first hundred, and of the routes those beyond it are left out, healthy ones first: callers may name any model.
    """
    seen: _Seen = defaultdict(float)
    shared: set[str] = set()
    for pool in snapshot.get("pools", ()):
        models = ",".join(str(model) for model in pool["models"] if model) or "*"
        if models not in shared and len(shared) >= MOST_VALUES:
            models = OTHER
        shared.add(models)
        _pool(pool, models, seen)
    routes = sorted(snapshot.get("routes", {}).items(), key=lambda one: one[1]["state"] == "closed")
    for route, told in routes[:MOST_VALUES]:
        for state in _BREAKER_STATES:
            seen["orchestra.route.state", (route, state)] += told["state"] == state
    for batch in snapshot.get("batches", ()):
        labels = (str(batch["provider"]), str(batch["state"]))
        seen["orchestra.batch.open", labels] += 1
        seen["orchestra.batch.riding", labels] += batch["riding"]
    for name, told in snapshot.get("local", {}).items():
        if told.get("state") == "running":
            _engine(name, told, seen)
    return [Measurement(name, value, labels) for (name, labels), value in seen.items()]


def _pool(pool: Mapping[str, Any], models: str, seen: _Seen) -> None:
    labels = (str(pool["provider"]), models, str(pool.get("kind", "online")))
    for traffic in _CLASSES:
        for field in ("waiting", "in_use"):
            seen[f"orchestra.pool.{field}", (*labels, traffic)] += pool[field].get(traffic, 0)
    seen["orchestra.pool.paused", labels] += pool.get("paused") is not None
    for dimension, told in pool.get("dimensions", {}).items():
        for name, field in (("size", "limit"), ("used", "used"), ("available", "available")):
            if told.get(field) is not None:
                seen[f"orchestra.limit.{name}", (*labels, dimension)] += told[field]


def _engine(engine: str, told: Mapping[str, Any], seen: _Seen) -> None:
    def put(name: str, value: float | None, *labels: str) -> None:
        if value is not None:
            seen[f"orchestra.engine.{name}", (engine, *labels)] += value

    for traffic in _CLASSES:
        put("running", told["running"].get(traffic, 0), traffic)
        put("waiting", told["waiting"].get(traffic, 0), traffic)
        put("prompt.tokens", told["prompt_tokens"].get(traffic, 0), traffic)
        put("prompt.cached", told["cached_tokens"].get(traffic, 0), traffic)
    put("slots", told["slots"])
    put("occupancy", told["occupancy"])
    for state in ("total", "free"):
        put("blocks", told["blocks"][state], state)
    put("tokens", told["prefill_tokens"], "input")
    put("tokens", told["output_tokens"], "output")
    for name in ("steps", "displacements", "evictions"):
        put(name, told[name])
