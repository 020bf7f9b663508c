"""Spans and metrics through OpenTelemetry: needs the extra ``otel``.

::

    from orchestra.observe.otel import instrument

    stop = instrument(orc)

They go where the program's own go: to the providers that were set for the process, by code, or by
``opentelemetry-instrument`` from ``OTEL_EXPORTER_OTLP_ENDPOINT`` and the like. Where none was set they go nowhere.
A call's span is a child of the span that is current where the call is made. Of several `Orchestra`s that tell the
same provider, gauges and totals are summed.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace

from orchestra.observe.call_log import WholeCall
from orchestra.observe.feed import Client, Feed
from orchestra.observe.instruments import BY_NAME, INSTRUMENTS, Instrument
from orchestra.observe.measuring import Labels, Measurement, seen_in
from orchestra.observe.spans import Span, span_of

__all__ = ["instrument"]

SCOPE = "orchestra"
_LOOK_SECONDS = 1.0
"""A collection asks for one gauge after the other: they are told of one look."""


def instrument(
    client: Client,
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> Callable[[], None]:
    """Tell OpenTelemetry of every call of ``client`` (an `Orchestra`) and of its engines, from now on.

    The providers are those of the process where none are given. Returns the function that ends it.
    """
    return _Exporter(client, trace.get_tracer(SCOPE, tracer_provider=tracer_provider), meter_provider).close


class _Exporter:
    def __init__(self, client: Client, tracer: trace.Tracer, meter_provider: metrics.MeterProvider | None) -> None:
        self._client: Callable[[], Client | None] = weakref.ref(client)
        self._tracer = tracer
        self._provider = _resolver(meter_provider)
        self._kinds = {name: one.kind for name, one in client.config.providers.items()}
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
        self._put = {one.name: _made(meter, one) for one in INSTRUMENTS if one.kind in ("counter", "histogram")}
        _observe(meter, self._provider)
        self._feed = Feed(client, self._record, ended=self._ended, origin=otel_context.get_current)
        _open[id(self)] = self

    def close(self) -> None:
        self._feed.close()
        _open.pop(id(self), None)

    def client_at(self, provider: metrics.MeterProvider) -> Client | None:
        """Return the client, where it tells ``provider``."""
        return self._client() if self._provider() is provider else None

    def _record(self, measured: Measurement) -> None:
        self._put[measured.name](measured.value, _attributes(measured))

    def _ended(self, call: WholeCall) -> None:
        # the two clocks may drift apart, so they are compared anew for each call
        offset = time.time_ns() - time.monotonic_ns()
        self._export(span_of(call.events, self._kinds), cast("otel_context.Context", call.origin), offset)

    def _export(self, span: Span, parent: otel_context.Context | None, offset: int) -> None:
        def instant(at: float) -> int:
            return offset + round(at * 1e9)

        ours = self._tracer.start_span(
            span.name,
            context=parent,
            kind=trace.SpanKind.CLIENT if span.kind == "client" else trace.SpanKind.INTERNAL,
            attributes=span.attributes,
            start_time=instant(span.start),
        )
        if ours.is_recording():
            for event in span.events:
                ours.add_event(event.name, event.attributes, instant(event.at))
            if span.error:
                ours.set_attribute("error.type", span.error)
                ours.set_status(trace.StatusCode.ERROR, span.error)
            within = trace.set_span_in_context(ours, parent)
            for child in span.children:
                self._export(child, within, offset)
        ours.end(instant(span.end))


class _Together:
    """What the clients that tell one provider show together, by instrument and labels.

    Gauges are summed, and of shares the mean is taken. Totals are summed and never fall: what an engine had
    counted that began anew, or whose client has ended, stays in them.
    """

    def __init__(self) -> None:
        self._at = -math.inf
        self._of: list[int] = []
        self._before: weakref.WeakKeyDictionary[Client, dict[_Key, float]] = weakref.WeakKeyDictionary()
        self._totals: defaultdict[_Key, float] = defaultdict(float)
        self._seen: dict[str, list[metrics.Observation]] = {}

    def seen(self, name: str, clients: Iterable[Client]) -> Iterable[metrics.Observation]:
        """Return what ``clients`` show of an instrument."""
        there = {id(client): client for client in clients}
        now = time.monotonic()
        if list(there) != self._of or now - self._at > _LOOK_SECONDS:
            self._look(there.values())
            self._at, self._of = now, list(there)
        return self._seen.get(name, ())

    def _look(self, clients: Iterable[Client]) -> None:
        levels: defaultdict[_Key, list[float]] = defaultdict(list)
        for client in clients:
            before = self._before.setdefault(client, {})
            for one in seen_in(client.snapshot()):
                key = (one.name, one.labels)
                if BY_NAME[one.name].kind == "total":
                    had, before[key] = before.get(key, 0.0), one.value
                    self._totals[key] += one.value - had if one.value >= had else one.value
                else:
                    levels[key].append(one.value)
        shown = dict(self._totals)
        for key, values in levels.items():
            shown[key] = sum(values) / (len(values) if BY_NAME[key[0]].unit == "1" else 1)
        self._seen = {}
        for (name, labels), value in shown.items():
            measured = Measurement(name, value, labels)
            self._seen.setdefault(name, []).append(metrics.Observation(value, _attributes(measured)))


_Key = tuple[str, Labels]
_open: weakref.WeakValueDictionary[int, _Exporter] = weakref.WeakValueDictionary()
_together: weakref.WeakKeyDictionary[metrics.MeterProvider, _Together] = weakref.WeakKeyDictionary()


def _resolver(given: metrics.MeterProvider | None) -> Callable[[], metrics.MeterProvider]:
    """Return what returns the provider: the process's may be set later."""
    return metrics.get_meter_provider if given is None else lambda: given


def _observe(meter: metrics.Meter, provider: Callable[[], metrics.MeterProvider]) -> None:
    """Have a meter ask for gauges and totals.

    OpenTelemetry keeps its first callback for a name for ever, and drops those of later exporters: so each asks
    after whoever tells the provider at the time.
    """

    def observer(name: str) -> Callable[[metrics.CallbackOptions], Iterable[metrics.Observation]]:
        def observe(options: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
            asking = provider()
            exporters = [one for one in (there() for there in _open.valuerefs()) if one is not None]
            clients = [one for one in (each.client_at(asking) for each in exporters) if one is not None]
            return _together.setdefault(asking, _Together()).seen(name, clients)

        return observe

    for one in INSTRUMENTS:
        if one.kind == "gauge":
            meter.create_observable_gauge(one.name, [observer(one.name)], one.unit, one.description)
        elif one.kind == "total":
            meter.create_observable_counter(one.name, [observer(one.name)], one.unit, one.description)


def _made(meter: metrics.Meter, one: Instrument) -> Callable[[float, Mapping[str, str]], None]:
    if one.kind == "counter":
        return meter.create_counter(one.name, one.unit, one.description).add
    return meter.create_histogram(
        one.name, one.unit, one.description, explicit_bucket_boundaries_advisory=one.buckets
    ).record


def _attributes(measured: Measurement) -> dict[str, str]:
    """Return the labels that say something: in OpenTelemetry what does not apply is left out."""
    labels = BY_NAME[measured.name].labels
    return {name: value for name, value in zip(labels, measured.labels, strict=True) if value}
